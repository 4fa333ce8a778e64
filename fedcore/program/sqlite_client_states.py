"""The states of clients in an SQLite database, and a file beside it that has their bytes.

A row of the database holds from one round until another, and names a slot of the file; see decision 0250. Slots have
one size, for states of one layout (decision 0322). A state of another layout, such as one with texts, stands in its row
as a manifest and tensors, as all states did before there were slots.
"""

import bisect
import contextlib
import errno
import functools
import io
import itertools
import os
import secrets
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np

from fedcore.collection_pause import without_collection
from fedcore.errors import InvalidValue
from fedcore.program.client_states import ClientId, ClientStates, check_kind, no_state_of
from fedcore.program.program_state_manager import ProgramStateDamagedError
from fedcore.program.safetensors_file import SafetensorsFile
from fedcore.program.state_files import Damaged, StateParts, check_manifest, from_files, manifest_of, take_apart
from fedcore.program.state_layout import StateLayout, signature_of
from fedcore.whole_files import write_whole

MAX_UNSAVED_BYTES = 1 << 28
"""Bytes of states in memory from which they are written without waiting for a checkpoint."""

MAX_READ_BYTES = 1 << 24
"""Bytes of states that are read at once."""

MAX_QUERY_CLIENTS = 1000
"""Clients that a query names; SQLite takes 32,766."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS training (identity TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS states ("
    "client NOT NULL, version INTEGER NOT NULL, until INTEGER, manifest BLOB NOT NULL, tensors BLOB NOT NULL)",
    "CREATE UNIQUE INDEX IF NOT EXISTS newest ON states (client) WHERE until IS NULL",
    "CREATE INDEX IF NOT EXISTS superseded ON states (until, version) WHERE until IS NOT NULL",
)
_SLOTS_SCHEMA = (  # what databases of earlier versions lack
    "ALTER TABLE states ADD COLUMN slot INTEGER",
    "ALTER TABLE states ADD COLUMN checksum INTEGER",
    "CREATE TABLE slots (layout TEXT, number INTEGER NOT NULL)",
    "INSERT INTO slots VALUES (NULL, 0)",
    "CREATE TABLE free (slot INTEGER PRIMARY KEY)",
)


class _Packed(NamedTuple):
    """A state that is in memory only, as the content of a slot."""

    content: bytes
    version: int

    @property
    def size_bytes(self) -> int:
        return len(self.content)


@attrs.frozen
class _StateInRow:
    """A state that is in memory only, and will be written into its row: its layout is not that of the slots."""

    state: Any
    parts: StateParts
    version: int

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.parts.arrays.values())


_Unsaved = _Packed | _StateInRow


class _Row(NamedTuple):
    """A state in the database: in a slot of the file, or in the row as manifest and tensors.

    Args:
        slot, checksum: the number of the slot, and the CRC-32 of its content; None for a state in the row.
        manifest, tensors: empty for a state in a slot.
    """

    version: int
    slot: int | None
    checksum: int | None
    manifest: bytes
    tensors: bytes


class SQLiteClientStates(ClientStates):
    """Keeps the states of clients in an SQLite database.

    Types: a row has a client's state from a round on, `version`, until the round before `until`, or the newest state,
    where `until` is NULL. The bytes of states are in slots of the file `…-slots` beside the database.

    Guarantees:
      - A checkpoint that is there has all states of its clients in the database, on the disk. Rows of later rounds are
        removed when a training goes on from it; rows that no checkpoint needs are removed by the next save.
      - A slot is written only while no row that is on the disk names it, and is on the disk before a row names it.
      - The file of slots is as large as the most states that were needed at once, and those of one save.
      - Memory holds the states of the rounds since the last save, at most 256 MiB and a round, and 16 MiB of others.
      - A bit that changed in a state is noticed when it is read.
      - Processes may read while one writes. Databases of versions before the file of slots are read and go on.

    The database is in WAL mode, where the file system can have it; it has the file `…-wal` beside it while it is open.
    A copy of the states has all these files.

    Args:
        path: the database; made where there is none.
    Raises:
        NotFound: `states[client_id]`: the client has no state.
        ProgramStateDamagedError: a state is not what was written.
        InvalidValue: the file is no such database, or has the states of another training.
        OSError: it cannot be read or written.
    Example:
        >>> states = fc.program.SQLiteClientStates(pathlib.Path(folder) / "states.sqlite")
        >>> states.begin(None, None)
        >>> states.put({"client_a": np.float32(1.0)}, version=1)
        >>> part, write = states.begin_save(version=1)
        >>> write([])
        >>> dict(fc.program.SQLiteClientStates(pathlib.Path(folder) / "states.sqlite"))
        {'client_a': np.float32(1.0)}
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._path = Path(path)
        self._slots_path = Path(f"{self._path}-slots")
        self._structure: Any = None
        self._identity = ""
        self._layout: StateLayout | None = None
        self._signature: object = None  # `signature_of` the states of the layout
        self._unsaved: dict[ClientId, _Unsaved] = {}
        self._clients = 0  # that have a state
        self._lock = threading.Lock()  # of what is in memory, and of the connection that reads

    def begin(self, structure: Any, checkpoint: tuple[Any, int] | None) -> None:
        if checkpoint is not None:
            check_kind(checkpoint[0], "sqlite", checkpoint[1])
        self._structure, self._unsaved, self._signature = structure, {}, None
        with self._writing(create=checkpoint is None) as database:
            if checkpoint is None:
                self._begin_training(database)
            else:
                self._go_on(database, *checkpoint)
            self._layout, number = _layout_and_number(database)
            if number:
                os.stat(self._slots_path)
            else:
                write_whole(self._slots_path, b"")

    def _begin_training(self, database: sqlite3.Connection) -> None:
        """Makes the tables where they are missing, and gives the training a new identity.

        Raises:
            InvalidValue: the database has states.
        """
        for statement in _SCHEMA:
            database.execute(statement)
        _add_slots(database)
        if database.execute("SELECT 1 FROM states LIMIT 1").fetchone():
            raise InvalidValue(
                f"{self._path} has the client states of another training\n"
                "  fix: go on with that training, by its directory; or take another file"
            )
        self._identity = secrets.token_hex(16)
        database.execute("DELETE FROM training")
        database.execute("INSERT INTO training VALUES (?)", (self._identity,))
        database.execute("DELETE FROM free")
        database.execute("UPDATE slots SET layout = NULL, number = 0")
        self._clients = 0

    def _go_on(self, database: sqlite3.Connection, part: Any, version: int) -> None:
        """Restores the states of a checkpoint: removes later rows, and makes the rows that they superseded the newest.

        Raises:
            InvalidValue: the database has the states of another training, or lacks some of the checkpoint.
        """
        identity = database.execute("SELECT identity FROM training").fetchone()
        if identity != (part["identity"],):
            raise InvalidValue(f"{self._path} has the client states of another training than the checkpoint")
        self._identity = part["identity"]
        _add_slots(database)
        later = database.execute("SELECT rowid, slot FROM states WHERE version > ?", (version,)).fetchall()
        _remove(database, later)
        database.execute("UPDATE states SET until = NULL WHERE until > ?", (version,))
        self._clients = self._count(database)
        if self._clients != part["clients"]:
            raise InvalidValue(
                f"{self._path} has the states of {self._clients} clients at round {version}; its checkpoint was "
                f"written with those of {part['clients']}\n  fix: go on from a copy of the whole directory"
            )

    def put(self, states: Mapping[ClientId, Any], version: int) -> None:
        with without_collection():  # several new objects for each client
            entries = self._packed(states, version)
        new = self.missing(entries)
        with self._lock:
            self._clients += len(new)
            self._unsaved.update(entries)
            is_much = sum(entry.size_bytes for entry in self._unsaved.values()) > MAX_UNSAVED_BYTES
        if is_much:
            self._write({**self._unsaved})

    def _packed(self, states: Mapping[ClientId, Any], version: int) -> dict[ClientId, _Unsaved]:
        """The states as they will be written, by client; a training's first state of arrays decides on the layout."""
        entries: dict[ClientId, _Unsaved] = {}
        for client_id, state in states.items():
            arrays: list = []
            signature = signature_of(state, arrays)
            if signature != self._signature or self._layout is None:  # else its layout is known to fit
                parts = take_apart(state)
                layout = StateLayout.of(parts) if len(arrays) == len(parts.arrays) else None
                self._layout = self._layout or layout
                if layout is None or layout != self._layout:
                    entries[client_id] = _StateInRow(state, parts, version)
                    continue
                self._signature = signature
            entries[client_id] = _Packed(self._layout.pack(arrays), version)
        return entries

    def begin_save(self, version: int) -> tuple[Any, Callable[[Sequence[int]], None]]:
        part = {"kind": "sqlite", "identity": self._identity, "clients": self._clients}
        return part, functools.partial(self._write, {**self._unsaved})

    def _write(self, entries: Mapping[ClientId, _Unsaved], versions: Sequence[int] | None = None) -> None:
        """Removes the rows that no checkpoint needs, and then writes states, which may use their slots.

        Args:
            versions: of the checkpoints that are there. Default: nothing is removed.
        """
        if versions is not None:
            with self._writing() as database:
                _remove_unneeded(database, versions)
        with self._writing() as database:
            packed = [entry.content for entry in entries.values() if isinstance(entry, _Packed)]
            slots = iter(self._write_slots(database, packed))
            rows = [
                (client_id, entry.version, b"", b"", next(slots), zlib.crc32(entry.content))
                if isinstance(entry, _Packed)
                else (client_id, entry.version, *_row_content(entry), None, None)
                for client_id, entry in entries.items()
            ]
            superseded = [(version, client_id) for client_id, version, *_ in rows]
            database.executemany("UPDATE states SET until = ? WHERE client = ? AND until IS NULL", superseded)
            database.executemany("INSERT INTO states VALUES (?, ?, NULL, ?, ?, ?, ?)", rows)
        with self._lock:
            for client_id, entry in entries.items():
                if self._unsaved.get(client_id) is entry:
                    del self._unsaved[client_id]

    def _write_slots(self, database: sqlite3.Connection, contents: Sequence[bytes]) -> list[int]:
        """Writes states to the disk, into slots that are free for this transaction; returns the slots."""
        if not contents:
            return []
        layout, number = _layout_and_number(database)
        if layout not in (None, self._layout):
            raise InvalidValue(f"{self._path} has the client states of another training")
        assert self._layout is not None
        query = "SELECT slot FROM free ORDER BY slot LIMIT ?"
        slots = [slot for (slot,) in database.execute(query, (len(contents),))]
        if slots:
            database.execute("DELETE FROM free WHERE slot <= ?", (slots[-1],))
        slots += range(number, number + len(contents) - len(slots))
        number = max(number, slots[-1] + 1)
        database.execute("UPDATE slots SET layout = ?, number = ?", (self._layout.text, number))
        with self._slots_file("r+b") as file:
            for slot, content in zip(slots, contents, strict=True):
                if file.tell() != slot * len(content):
                    file.seek(slot * len(content))
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return slots

    @contextlib.contextmanager
    def _slots_file(self, mode: str) -> Iterator[Any]:
        """Opens the file of slots; an OSError names it.

        Args:
            mode: `r+b` to write, or `rb` to read: without a buffer, since `_read` reads whole slots into its array.
        """
        try:
            with self._slots_path.open(mode, buffering=1 << 20 if mode == "r+b" else 0) as file:
                yield file
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._slots_path)) from error

    def close(self) -> None:
        with self._lock:
            if "_reader" in vars(self):
                self._reader.close()  # the last connection moves what is in the file `…-wal` into the database
                del self._reader

    def __getitem__(self, client_id: ClientId) -> Any:
        return self.read_ahead([client_id])[0]

    def missing(self, client_ids: Iterable[ClientId]) -> set[ClientId]:
        with self._lock:
            ids = {*client_ids}.difference(self._unsaved)
            return ids.difference(client_id for (client_id,) in self._rows("client", [*ids]))

    def read_ahead(self, client_ids: Sequence[ClientId]) -> list:
        first = client_ids[0]
        most = 1 if self._layout is None else max(1, MAX_READ_BYTES // self._layout.row_bytes)
        entries = self._find(client_ids[:most])
        entry = entries[0]
        if entry is None:
            raise no_state_of(first)
        try:
            if isinstance(entry, _StateInRow):
                return [entry.state]
            if not _is_in_slot(entry):
                return [from_files(check_manifest(entry.manifest, entry.version), [entry.tensors], self._structure)]
            return self._read([*itertools.takewhile(_is_in_slot, entries)])
        except Damaged as error:
            if self._find([first]) != [entry]:  # superseded meanwhile, and its slot was used again
                return self.read_ahead(client_ids)
            raise ProgramStateDamagedError(f"{self._path}: the state of client {first!r}: {error}") from error

    def _find(self, client_ids: Sequence[ClientId]) -> list:
        """The newest state of each client: an `_Unsaved` if it is in memory, else a `_Row`; None if it has none."""
        with self._lock:
            saved = [client_id for client_id in client_ids if client_id not in self._unsaved]
            rows = self._rows("client, version, slot, checksum, manifest, tensors", saved)
            entries = self._unsaved | {client_id: _Row(*row) for client_id, *row in rows}
            if self._layout is None and rows:
                self._layout, _ = _layout_and_number(self._reader)
        return [entries.get(client_id) for client_id in client_ids]

    def _read(self, entries: "Sequence[_Packed | _Row]") -> list:
        """The states of entries for which `_is_in_slot` is true; the states before the first that is damaged.

        Raises:
            Damaged: the first one is.
        """
        assert self._layout is not None
        rows = np.empty((len(entries), self._layout.row_bytes), np.uint8)
        intact = 0  # number of states that were read and are whole
        with self._slots_file("rb") as file:
            for row, entry in zip(rows, entries, strict=True):
                if isinstance(entry, _Packed):
                    row[:] = np.frombuffer(entry.content, np.uint8)
                elif entry.slot is not None:
                    file.seek(entry.slot * len(row))
                    if not _read_whole(file, row.data) or zlib.crc32(row.data) != entry.checksum:
                        break
                intact += 1
        if not intact:
            raise Damaged("the tensors have another checksum")
        return self._layout.unpack(rows[:intact], self._structure)

    def __contains__(self, client_id: Any) -> bool:
        return not self.missing([client_id])

    def __iter__(self) -> Iterator[ClientId]:
        with self._lock, self._errors_of_file():
            rows = self._reader.execute("SELECT client FROM states WHERE until IS NULL ORDER BY rowid").fetchall()
            saved = dict.fromkeys(client_id for (client_id,) in rows)
            return iter([*saved, *(client_id for client_id in self._unsaved if client_id not in saved)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _rows(self, columns: str, client_ids: Sequence) -> list[tuple]:
        """These columns of the newest row of each client that has one."""
        rows: list[tuple] = []
        with self._errors_of_file():
            for begin in range(0, len(client_ids), MAX_QUERY_CLIENTS):
                some = client_ids[begin : begin + MAX_QUERY_CLIENTS]
                names = ",".join("?" * len(some))
                query = f"SELECT {columns} FROM states WHERE client IN ({names}) AND until IS NULL"
                rows += self._reader.execute(query, some).fetchall()
        return rows

    def _count(self, database: sqlite3.Connection) -> int:
        return database.execute("SELECT count(*) FROM states WHERE until IS NULL").fetchone()[0]

    @contextlib.contextmanager
    def _writing(self, create: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction, which is on the disk after the `with` block."""
        with self._errors_of_file():
            database = _connect(self._path, "rwc" if create else "rw")
            with contextlib.closing(database), database:
                database.execute("BEGIN IMMEDIATE")
                yield database

    @functools.cached_property
    def _reader(self) -> sqlite3.Connection:
        """The connection that reads, which stays open as long as this object or until `close`."""
        database = _connect(self._path, "rw")
        weakref.finalize(self, database.close)
        if not _has_slots(database):
            with self._writing() as writer:
                _add_slots(writer)
        return database

    @contextlib.contextmanager
    def _errors_of_file(self) -> Iterator[None]:
        """Raises SQLite's errors as an OSError or an InvalidValue that names the file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            name = getattr(error, "sqlite_errorname", "")
            number = next((number for part, number in _NUMBERS.items() if name.startswith(part)), errno.EIO)
            if name == "SQLITE_CANTOPEN" and not self._path.exists():
                number = errno.ENOENT
            raise OSError(number, f"{os.strerror(number)} ({error})", str(self._path)) from error
        except sqlite3.DataError as error:
            raise InvalidValue(f"{self._path}: {error}; a client's state has at most 10^9 bytes in SQLite") from error
        except sqlite3.DatabaseError as error:
            raise InvalidValue(f"{self._path} is no database of client states, or is damaged: {error}") from error


_NUMBERS = {
    "SQLITE_FULL": errno.ENOSPC,
    "SQLITE_READONLY": errno.EROFS,
    "SQLITE_CANTOPEN": errno.EACCES,
    "SQLITE_PERM": errno.EACCES,
    "SQLITE_BUSY": errno.EBUSY,
}
"""The beginning of the name of an SQLite error -> the number of the OSError that it becomes. Others become EIO."""


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection in which each transaction that was committed survives a crash of the machine."""
    uri = f"{Path(os.path.abspath(path)).as_uri()}?mode={mode}"
    database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=60)
    if mode == "rwc":
        database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    return database


def _read_whole(file: io.RawIOBase, buffer: memoryview) -> bool:
    """Fills a buffer from a file that may read less than is asked for, as of more than 2 GiB; false where it ends."""
    while buffer:
        count = file.readinto(buffer)
        if not count:
            return False
        buffer = buffer[count:]
    return True


def _has_slots(database: sqlite3.Connection) -> bool:
    return any(column == "slot" for _, column, *_ in database.execute("PRAGMA table_info(states)"))


def _add_slots(database: sqlite3.Connection) -> None:
    """Adds what a database of an earlier version lacks."""
    if not _has_slots(database):
        for statement in _SLOTS_SCHEMA:
            database.execute(statement)


def _layout_and_number(database: sqlite3.Connection) -> tuple[StateLayout | None, int]:
    """The layout of the states in slots, None before the first of them, and the number of slots that the file has."""
    layout, number = database.execute("SELECT layout, number FROM slots").fetchone()
    return None if layout is None else StateLayout(layout), number


def _is_in_slot(entry: "_Unsaved | _Row | None") -> bool:
    """Whether an entry of `_find` is the content of a slot, in memory or in the file."""
    return isinstance(entry, _Packed) or (isinstance(entry, _Row) and entry.slot is not None)


def _row_content(entry: _StateInRow) -> tuple[bytes, bytes]:
    """The manifest and the tensors that a row has of a state."""
    tensors = SafetensorsFile(entry.parts.arrays)
    content = b"".join(tensors)
    assert tensors.digest is not None
    return manifest_of(entry.parts, entry.version, tensors.digest), content


def _remove(database: sqlite3.Connection, rows: Sequence[tuple[int, int | None]]) -> None:
    """Removes rows and frees their slots.

    Args:
        rows: (rowid, slot or None).
    """
    database.executemany("DELETE FROM states WHERE rowid = ?", [(row,) for row, _ in rows])
    database.executemany("INSERT INTO free VALUES (?)", [(slot,) for _, slot in rows if slot is not None])


def _remove_unneeded(database: sqlite3.Connection, versions: Sequence[int]) -> None:
    """Removes the rows of superseded states that no checkpoint of these versions has."""
    versions = sorted(versions)
    rows = database.execute("SELECT rowid, slot, version, until FROM states WHERE until IS NOT NULL")
    _remove(database, [(row, slot) for row, slot, begin, until in rows if not _some_between(versions, begin, until)])


def _some_between(versions: Sequence[int], begin: int, end: int) -> bool:
    """Whether a version of an ascending sequence is at least `begin` and less than `end`."""
    index = bisect.bisect_left(versions, begin)
    return index < len(versions) and versions[index] < end

"""The states of clients in an SQLite database, with a row for each round from which a state holds.

See decision 0250.
"""

import bisect
import contextlib
import errno
import functools
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from fedcore.errors import InvalidValue
from fedcore.program.client_states import ClientId, ClientStates, check_kind, no_state_of
from fedcore.program.program_state_manager import ProgramStateDamagedError
from fedcore.program.safetensors_file import SafetensorsFile
from fedcore.program.state_files import Damaged, StateParts, check_manifest, from_files, manifest_of, take_apart

MAX_UNSAVED_BYTES = 1 << 28
"""Bytes of states in memory from which they are written without waiting for a checkpoint."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS training (identity TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS states ("
    "client NOT NULL, version INTEGER NOT NULL, until INTEGER, manifest BLOB NOT NULL, tensors BLOB NOT NULL)",
    "CREATE UNIQUE INDEX IF NOT EXISTS newest ON states (client) WHERE until IS NULL",
    "CREATE INDEX IF NOT EXISTS superseded ON states (until, version) WHERE until IS NOT NULL",
)


@attrs.frozen
class _Unsaved:
    """A state that is in memory only."""

    state: Any
    parts: StateParts
    version: int

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.parts.arrays.values())


class SQLiteClientStates(ClientStates):
    """Keeps the states of clients in an SQLite database.

    Types: a row has a client's state from a round on, `version`, until the round before `until`, or the newest state,
    where `until` is NULL. A state is a manifest and tensors, as `FileProgramStateManager` writes them.

    Guarantees:
      - A checkpoint that is there has all states of its clients in the database, on the disk. Rows of later rounds are
        removed when a training goes on from it; rows that no checkpoint needs are removed by the next save.
      - Memory holds the states of the rounds since the last save, at most 256 MiB and a round, and no others.
      - A bit that changed in a state is noticed when it is read.

    The database is in WAL mode, where the file system can have it; it has the file `…-wal` beside it while it is open.

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
        self._structure: Any = None
        self._identity = ""
        self._unsaved: dict[ClientId, _Unsaved] = {}
        self._clients = 0
        self._lock = threading.Lock()  # of what is in memory, and of the connection that reads

    def begin(self, structure: Any, checkpoint: tuple[Any, int] | None) -> None:
        if checkpoint is not None:
            check_kind(checkpoint[0], "sqlite", checkpoint[1])
        self._structure, self._unsaved = structure, {}
        with self._writing(create=checkpoint is None) as database:
            if checkpoint is None:
                self._begin_training(database)
            else:
                self._go_on(database, *checkpoint)

    def _begin_training(self, database: sqlite3.Connection) -> None:
        for statement in _SCHEMA:
            database.execute(statement)
        if database.execute("SELECT 1 FROM states LIMIT 1").fetchone():
            raise InvalidValue(
                f"{self._path} has the client states of another training\n"
                "  fix: go on with that training, by its directory; or take another file"
            )
        self._identity = secrets.token_hex(16)
        database.execute("DELETE FROM training")
        database.execute("INSERT INTO training VALUES (?)", (self._identity,))
        self._clients = 0

    def _go_on(self, database: sqlite3.Connection, part: Any, version: int) -> None:
        identity = database.execute("SELECT identity FROM training").fetchone()
        if identity != (part["identity"],):
            raise InvalidValue(f"{self._path} has the client states of another training than the checkpoint")
        self._identity = part["identity"]
        database.execute("DELETE FROM states WHERE version > ?", (version,))
        database.execute("UPDATE states SET until = NULL WHERE until > ?", (version,))
        self._clients = self._count(database)
        if self._clients != part["clients"]:
            raise InvalidValue(
                f"{self._path} has the states of {self._clients} clients at round {version}; its checkpoint was "
                f"written with those of {part['clients']}\n  fix: go on from a copy of the whole directory"
            )

    def put(self, states: Mapping[ClientId, Any], version: int) -> None:
        entries = {client_id: _Unsaved(state, take_apart(state), version) for client_id, state in states.items()}
        with self._lock:
            self._clients += sum(not self._has(client_id) for client_id in entries)
            self._unsaved.update(entries)
            is_much = sum(entry.size_bytes for entry in self._unsaved.values()) > MAX_UNSAVED_BYTES
        if is_much:
            self._write({**self._unsaved})

    def begin_save(self, version: int) -> tuple[Any, Callable[[Sequence[int]], None]]:
        part = {"kind": "sqlite", "identity": self._identity, "clients": self._clients}
        return part, functools.partial(self._write, {**self._unsaved})

    def _write(self, entries: Mapping[ClientId, _Unsaved], versions: Sequence[int] | None = None) -> None:
        """Writes states in one transaction, and removes the rows that no checkpoint needs.

        Args:
            versions: of the checkpoints that are there. Default: nothing is removed.
        """
        with self._writing() as database:
            for client_id, entry in entries.items():
                tensors = SafetensorsFile(entry.parts.arrays)
                content = b"".join(tensors)
                assert tensors.digest is not None
                manifest = manifest_of(entry.parts, entry.version, tensors.digest)
                database.execute(
                    "UPDATE states SET until = ? WHERE client = ? AND until IS NULL", (entry.version, client_id)
                )
                row = (client_id, entry.version, manifest, content)
                database.execute("INSERT INTO states VALUES (?, ?, NULL, ?, ?)", row)
            if versions is not None:
                _remove_unneeded(database, versions)
        with self._lock:
            for client_id, entry in entries.items():
                if self._unsaved.get(client_id) is entry:
                    del self._unsaved[client_id]

    def close(self) -> None:
        with self._lock:
            if "_reader" in vars(self):
                self._reader.close()  # the last connection moves what is in the file `…-wal` into the database
                del self._reader

    def __getitem__(self, client_id: ClientId) -> Any:
        with self._lock:
            entry = self._unsaved.get(client_id)
            row = None if entry is not None else self._row("version, manifest, tensors", client_id)
        if entry is not None:
            return entry.state
        if row is None:
            raise no_state_of(client_id)
        version, manifest, tensors = row
        try:
            return from_files(check_manifest(manifest, version), [tensors], self._structure)
        except Damaged as error:
            raise ProgramStateDamagedError(f"{self._path}: the state of client {client_id!r}: {error}") from error

    def __contains__(self, client_id: object) -> bool:
        with self._lock:
            return self._has(client_id)

    def __iter__(self) -> Iterator[ClientId]:
        with self._lock, self._errors_of_file():
            rows = self._reader.execute("SELECT client FROM states WHERE until IS NULL ORDER BY rowid").fetchall()
            saved = dict.fromkeys(client_id for (client_id,) in rows)
            return iter([*saved, *(client_id for client_id in self._unsaved if client_id not in saved)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _has(self, client_id: Any) -> bool:
        return client_id in self._unsaved or self._row("1", client_id) is not None

    def _row(self, columns: str, client_id: Any) -> tuple | None:
        query = f"SELECT {columns} FROM states WHERE client = ? AND until IS NULL"
        with self._errors_of_file():
            return self._reader.execute(query, (client_id,)).fetchone()

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


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection in which each transaction that was committed survives a crash of the machine."""
    uri = f"{Path(os.path.abspath(path)).as_uri()}?mode={mode}"
    database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=60)
    if mode == "rwc":
        database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    return database


def _remove_unneeded(database: sqlite3.Connection, versions: Sequence[int]) -> None:
    """Removes the rows of states that were superseded, and which no checkpoint has."""
    versions = sorted(versions)
    rows = database.execute("SELECT rowid, version, until FROM states WHERE until IS NOT NULL").fetchall()
    unneeded = [(row,) for row, begin, until in rows if not _some_between(versions, begin, until)]
    database.executemany("DELETE FROM states WHERE rowid = ?", unneeded)


def _some_between(versions: Sequence[int], begin: int, end: int) -> bool:
    """Whether a version of an ascending sequence is at least `begin` and less than `end`."""
    index = bisect.bisect_left(versions, begin)
    return index < len(versions) and versions[index] < end

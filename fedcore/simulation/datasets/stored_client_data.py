"""Client data in files: clients are read when their data sets are asked for.

Decision 0203.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from fedcore.errors import FedcoreError, InvalidValue, brief
from fedcore.ir.regular_files import check_taken
from fedcore.simulation.datasets.client_data import ClientData
from fedcore.simulation.datasets.structures import Structure, leaves_of
from fedcore.types.dtypes import find_dtype
from fedcore.types.ragged_rows import RaggedRows

if TYPE_CHECKING:
    from fedcore.data import ClientDataset

ONE_SPLIT = "all"
"""The name of the split of client data that was stored alone."""


class Store(Protocol):
    """Clients' examples that are read when they are asked for, such as those of a file."""

    def client_ids(self) -> Iterable[str]:
        """All identifiers, in any order."""

    def read(self, client_id: str) -> Structure | None:
        """The columns of a client; None if the file has no such client."""


class StoredClientData(ClientData):
    """Client data in a file.

    Guarantees:
      - Opening reads neither examples nor client ids; ids are listed when they are first asked for.
      - A client is read when its data set is asked for, whole, and is not kept.
      - Threads may read at once. A pickled or forked copy opens the file for itself.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    @property
    def is_in_files(self) -> bool:
        return True

    def _list_client_ids(self) -> Iterable[str]:
        return self._store.client_ids()

    def create_tf_dataset_for_client(self, client_id: str) -> ClientDataset:
        from fedcore.data import ClientDataset

        columns = self._store.read(client_id)
        if columns is None:
            raise self._unknown(client_id)
        return ClientDataset.from_columns(columns)


class StoreOfFile:
    """The store of a file that each process opens for itself, at its first use.

    Guarantees:
      - Pickles without what is open; a forked process opens the file anew.
      - Threads share what is open.
      - A process reads one file, also where another one has replaced it since. The copy in another process refuses a
        file of another size, and pickles of copies differ if their files do: who keeps copies keeps no old one.

    Args:
        open_store: path -> the store of the open file; a function of a module, or a `partial` of one, so that it
            pickles.
        stamp: size in bytes and time of the change (ns) of the file. Default: those of the file at `path`.
    Raises:
        InvalidValue: a client is read, and the file has another size.
    """

    def __init__(
        self, open_store: Callable[[str], Store], path: str | os.PathLike, stamp: tuple[int, int] | None = None
    ) -> None:
        self._open_store = open_store
        self.path = os.fspath(path)
        self._stamp = stamp
        self._opened: dict[int, Store] = {}  # by process: closing another process's would disturb it
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable, tuple]:
        return StoreOfFile, (self._open_store, self.path, self._stamp)

    def client_ids(self) -> Iterable[str]:
        with self._reading("the clients"):
            return self.get().client_ids()

    def read(self, client_id: str) -> Structure | None:
        with self._reading(f"client {brief(client_id)}"):
            columns = self.get().read(client_id)
            assert self._stamp is not None  # since the file is open
            # Rows without bytes, of which a file can claim any number.
            empty = [column for column in leaves_of(columns) if np.ndim(column) and not column.nbytes]
            for column in empty if columns is not None else ():
                check_taken("a column", len(column), self._stamp[0])
            return columns

    @contextlib.contextmanager
    def _reading(self, part: str) -> Iterator[None]:
        """Names the file in errors."""
        try:
            yield
        except FedcoreError:
            raise
        except (OSError, ValueError, LookupError, RuntimeError, sqlite3.DatabaseError) as error:
            raise InvalidValue(f"{part} cannot be read from {self.path}: {error}") from error

    def get(self) -> Store:
        """The store that this process has opened, or opens now."""
        process = os.getpid()
        if process not in self._opened:
            with self._lock:
                if process not in self._opened:
                    self._opened[process] = self._open()
                    weakref.finalize(self, _close, self._opened[process], process)
        return self._opened[process]

    def _open(self) -> Store:
        opened = self._open_store(self.path)
        size_bytes, changed_ns = stamp_of(self.path)
        if self._stamp is None:
            self._stamp = size_bytes, changed_ns
        if size_bytes != self._stamp[0]:
            _close(opened, os.getpid())
            raise InvalidValue(
                f"{self.path} has {size_bytes} bytes, but had {self._stamp[0]} when the client data were made of "
                "it; fix: make them anew"
            )
        return opened


def _close(opened: Store, process: int) -> None:
    """Closes a store in the process that has opened it; a forked one leaves it alone."""
    if os.getpid() == process and hasattr(opened, "close"):
        opened.close()


def stamp_of(file: str | IO[bytes]) -> tuple[int, int]:
    """Size in bytes and time of the last change (ns) of a file, by its path or open."""
    status = os.stat(file if isinstance(file, str) else file.fileno())
    return status.st_size, status.st_mtime_ns


def existing_file(reader: str, path: str | os.PathLike) -> str:
    """The absolute path of a file that is there.

    Raises:
        InvalidValue: it is not.
    """
    if not os.path.isfile(path):
        raise InvalidValue(f"{reader}: there is no file {os.path.abspath(path)}")
    return os.path.abspath(path)


def by_split(data: ClientData | Mapping[str, ClientData]) -> Mapping[str, ClientData]:
    """Client data to store, by the names of their splits."""
    return {ONE_SPLIT: data} if isinstance(data, ClientData) else data


def chosen_split(reader: str, path: str, splits: Iterable[str], split: str | None) -> str:
    """The split to read: `split`, or the only one.

    Raises:
        InvalidValue: there is no such split, or there are several to choose from.
    """
    names = sorted(splits)
    if split is None and len(names) == 1:
        return names[0]
    if split not in names:
        problem = "name one" if split is None else f"there is no {split!r}"
        raise InvalidValue(f"{reader}: {path} has the splits {', '.join(names)}; {problem}")
    return split


_KINDS = ("dict", "tuple", "array")


class Layout:
    """The structure of a client's columns as a file keeps it: names, dtypes and shapes of rows.

    Args:
        kind: `dict`, `tuple` or `array`: how the columns stand together.
        names: of the columns; positions for a tuple.
        dtypes: their dtypes' names; `str` for text.
        shapes: of their rows.
    """

    def __init__(self, kind: str, names: list[str], dtypes: list[str], shapes: list[tuple[int, ...]]) -> None:
        self.kind = kind
        self.names = names
        self.dtypes = dtypes
        self.shapes = [tuple(shape) for shape in shapes]

    @classmethod
    def of(cls, columns: Structure) -> Layout:
        """The layout of a client's columns.

        Raises:
            InvalidValue: the columns are nested deeper than one dict or tuple, or rows differ in length.
        """
        kind = "dict" if isinstance(columns, Mapping) else "tuple" if isinstance(columns, tuple) else "array"
        flat = flat_columns(columns)
        for name, column in flat.items():
            if isinstance(column, Mapping | tuple):
                raise InvalidValue(f"a file holds one dict or tuple of columns; {brief(name)} holds others")
            if isinstance(column, RaggedRows):
                raise InvalidValue(
                    f"a file holds rows of one shape; those of {brief(name)} differ in length; fix: pad them before, "
                    "as keras.utils.pad_sequences(rows, padding='post') does"
                )
        dtypes = ["str" if column.dtype.kind == "O" else column.dtype.name for column in flat.values()]
        return cls(kind, list(flat), dtypes, [column.shape[1:] for column in flat.values()])

    @classmethod
    def parsed(cls, text: Any) -> Layout:
        """The layout of a file from elsewhere, from its JSON.

        Raises:
            ValueError: it is none.
        """
        try:
            layout = cls(**json.loads(text))
            names, dtypes, shapes = layout.names, layout.dtypes, layout.shapes
            sizes = [size for shape in shapes for size in shape]
            is_right = (
                layout.kind in _KINDS
                and len(names) == len(dtypes) == len(shapes) == len(set(names)) >= 1
                and (layout.kind != "array" or len(names) == 1)
                and all(isinstance(name, str) for name in names)
                and all(isinstance(dtype, str) and find_dtype(dtype) is not None for dtype in dtypes)
                and all(len(shape) < _MAX_RANK for shape in shapes)
                and all(type(size) is int and 0 <= size < 2**63 for size in sizes)
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"the layout of its columns is none: {error}") from None
        if not is_right:
            raise ValueError(f"the layout of its columns is none: {brief(text)}")
        return layout

    def structured(self, columns: list[np.ndarray]) -> Structure:
        """Columns, in the order of the names, in their structure."""
        if self.kind == "array":
            return columns[0]
        return tuple(columns) if self.kind == "tuple" else dict(zip(self.names, columns, strict=True))

    def described(self) -> str:
        """The layout for a message, such as `x=float32[4], y=int32[]`."""
        parts = zip(self.names, self.dtypes, self.shapes, strict=True)
        return ", ".join(f"{name}={dtype}{list(shape)}" for name, dtype, shape in parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


_MAX_RANK = 32
"""Most axes of a column, those of numpy's arrays."""


def flat_columns(columns: Structure) -> dict[str, Any]:
    """The columns of a dict, a tuple or alone, by name."""
    if isinstance(columns, Mapping):
        return {str(name): column for name, column in columns.items()}
    return {str(i): column for i, column in enumerate(columns if isinstance(columns, tuple) else [columns])}


def check_layout(writer: str, client_id: str, has: Layout, wants: Layout) -> None:
    """Refuses a client whose columns have another layout than the first client's.

    Args:
        writer: the function that stores, for the message.
    """
    if has != wants:
        raise InvalidValue(
            f"{writer}: the clients differ\n  client {brief(client_id)}  has {has.described()}\n"
            f"  the first{' ' * max(0, len(brief(client_id)) - 2)}  has {wants.described()}"
        )


def ends_of(texts: Iterable[bytes]) -> np.ndarray:
    """int64: for each of the bytes objects the position in their concatenation at which it ends."""
    return np.cumsum([len(text) for text in texts], dtype=np.int64)


def texts_of(content: bytes, ends: np.ndarray) -> np.ndarray:
    """Bytes objects, cut out of their concatenation.

    Args:
        ends: as of `ends_of`, counted from the start of `content`.
    Raises:
        ValueError: an end comes before the one before it, so that texts would overlap, or behind the content.
    """
    if len(ends) and (ends[0] < 0 or np.any(ends[1:] < ends[:-1]) or ends[-1] > len(content)):
        raise ValueError("the ends of its texts do not ascend to the end of the content")
    texts = np.empty(len(ends), dtype=object)
    stops = ends.tolist()
    texts[:] = [content[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
    return texts


def parent_made(path: str | os.PathLike) -> Path:
    """The path. Its directory is made if it is not there."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target

"""Client data in SQLite databases: TFF's examples, and a row of columns for each client."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch, brief
from fedcore.ir.regular_files import check_taken
from fedcore.simulation.datasets.client_data import ClientData
from fedcore.simulation.datasets.sqlite_tables import Tables
from fedcore.simulation.datasets.stored_client_data import (
    Layout,
    Store,
    StoredClientData,
    StoreOfFile,
    by_split,
    check_layout,
    chosen_split,
    ends_of,
    existing_file,
    flat_columns,
    parent_made,
    texts_of,
)
from fedcore.simulation.datasets.structures import Structure, num_rows, rows_of
from fedcore.whole_files import written_whole

if TYPE_CHECKING:
    import tensorflow as tf

_COLUMNS_OF_TFF = {
    "examples": {"split_name", "client_id", "serialized_example_proto"},
    "client_metadata": {"client_id", "split_name"},
}
"""The columns that tables of TFF's format need, by the name of the table."""

_DEFAULT_SPLIT = "default_split"  # TFF's name for the split of data that was stored without one


class SqlClientData(StoredClientData):
    """Client data in an SQLite database.

    Two formats are read, told apart by content:
      - TFF's: a table `examples(split_name, client_id, serialized_example_proto)` of `tf.train.Example`s, and a table
        `client_metadata(client_id, split_name, num_examples)`. An example is the serialized proto, a `str`; see
        `load_and_parse_sql_client_data`. A database without an index by client is read once, at the first read of a
        client, to find each client's rows.
      - `save_sqlite`'s: a row of columns for each client.

    Only tables are read; views and other computed ones are refused.

    Args:
        database_filepath: path of the database.
        split_name: name of the split. Default: all clients of TFF's format, the only split of `save_sqlite`'s.
    Raises:
        FedcoreError: the file is not there or in neither format, or the split is not there. When clients are listed or
            read: the database is damaged, or a query takes memory or time out of proportion to its size.
    Example:
        >>> save_sqlite(TestClientData({"a": [1, 2], "b": [3]}), path)
        >>> data = SqlClientData(path)
        >>> data.client_ids, [int(x) for x in data.create_tf_dataset_for_client("a")]
        (['a', 'b'], [1, 2])
    """

    def __init__(self, database_filepath: str | os.PathLike, split_name: str | None = None) -> None:
        path = existing_file("SqlClientData", database_filepath)
        super().__init__(_open_store(path, split_name, _without_parser))


def load_and_parse_sql_client_data(
    database_filepath: str | os.PathLike, element_spec: Mapping[str, Any], split_name: str | None = None
) -> ClientData:
    """Client data in an SQLite database of TFF's format, with parsed examples.

    Args:
        database_filepath: path of the database.
        element_spec: name of each field -> its `tf.TensorSpec`. Fields come in this order.
        split_name: name of the split. Default: all clients.
    Raises:
        FedcoreError: as for `SqlClientData`.
        TypeMismatch: `element_spec` is no dict of `tf.TensorSpec`s with known shapes and numbers or text.
    Example:
        >>> save_to_sql_client_data(["a"], data.create_tf_dataset_for_client, path)
        >>> parsed = load_and_parse_sql_client_data(path, data.element_type_structure)
        >>> [int(example["x"]) for example in parsed.create_tf_dataset_for_client("a")]
        [1, 2]
    """
    path = existing_file("load_and_parse_sql_client_data", database_filepath)
    return StoredClientData(_open_store(path, split_name, _Parser(element_spec)))


def save_sqlite(data: ClientData | Mapping[str, ClientData], path: str | os.PathLike) -> None:
    """Stores client data as an SQLite database with a row of columns for each client, which `SqlClientData` reads.

    The clients are read one after another, and only one is held. A file that is there is replaced when the new one is
    whole.

    Args:
        data: client data, or several by the names of their splits.
    Raises:
        FedcoreError: clients differ in structure, dtypes or shapes, or their examples are nested deeper than one dict
            or tuple.
    Example:
        >>> save_sqlite({"train": train, "test": test}, path)
        >>> SqlClientData(path, "test").client_ids
        ['c']
    """
    with written_whole(parent_made(path)) as partial, _Connection(partial) as connection:
        connection.execute("CREATE TABLE layouts (split_name TEXT PRIMARY KEY, layout TEXT NOT NULL)")
        connection.execute(
            "CREATE TABLE clients (split_name TEXT NOT NULL, client_id TEXT NOT NULL, num_examples INTEGER NOT NULL, "
            "content BLOB NOT NULL)"
        )
        for split, clients in by_split(data).items():
            connection.executemany("INSERT INTO clients VALUES (?, ?, ?, ?)", _rows(connection, split, clients))
        connection.execute("CREATE UNIQUE INDEX by_client ON clients (split_name, client_id)")


def _rows(connection: sqlite3.Connection, split: str, clients: ClientData) -> Iterable[tuple[str, str, int, bytes]]:
    """The rows of a split in the table `clients`. Adds its layout to the table `layouts`, with the first client."""
    layout: Layout | None = None
    for client_id in clients.client_ids:
        columns = rows_of(clients.create_tf_dataset_for_client(client_id))
        has = Layout.of(columns)
        if layout is None:
            layout = has
            connection.execute("INSERT INTO layouts VALUES (?, ?)", (split, json.dumps(vars(layout))))
        check_layout("save_sqlite", client_id, has, layout)
        content = b"".join(_pack(column) for column in flat_columns(columns).values())
        yield split, client_id, num_rows(columns, f"client {brief(client_id)}: "), content
    if layout is None:
        raise InvalidValue("save_sqlite: there are no clients to store")


def save_to_sql_client_data(
    client_ids: Iterable[str],
    dataset_fn: Callable[[str], Any],
    database_filepath: str | os.PathLike,
    allow_overwrite: bool = False,
    split_names_by_client_id: Mapping[str, str] | None = None,
) -> None:
    """Stores client data as an SQLite database of TFF's format, with an index by client.

    `save_sqlite` is smaller and faster to read.

    Args:
        client_ids: the clients.
        dataset_fn: client's id -> data set, whose examples are dicts of numbers and text.
        database_filepath: path of the database.
        allow_overwrite: whether a file that is there is replaced.
        split_names_by_client_id: the split of each client. Default: `default_split` for all.
    Raises:
        InvalidValue: the file is there, and `allow_overwrite` is False.
        TypeMismatch: examples are no dicts of numbers and text, or two clients' examples differ in type.
        ValueError: a client has no split.
    Example:
        >>> save_to_sql_client_data(data.client_ids, data.create_tf_dataset_for_client, path)
        >>> SqlClientData(path).client_ids
        ['a', 'b']
    """
    if os.path.exists(database_filepath) and not allow_overwrite:
        raise InvalidValue(f"save_to_sql_client_data: {database_filepath} is there; fix: allow_overwrite=True")
    spec = None
    with written_whole(parent_made(database_filepath)) as partial, _Connection(partial) as connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL)"
        )
        connection.execute(
            "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, "
            "num_examples INTEGER NOT NULL)"
        )
        for client_id in client_ids:
            dataset = dataset_fn(client_id)
            if spec is None:
                spec = dataset.element_spec
                _Parser(spec)
            if dataset.element_spec != spec:
                raise TypeMismatch(
                    f"save_to_sql_client_data: the clients' examples differ\n  client {brief(client_id)}  has "
                    f"{dataset.element_spec}\n  the first  has {spec}"
                )
            split = _DEFAULT_SPLIT if split_names_by_client_id is None else split_names_by_client_id.get(client_id)
            if split is None:
                raise InvalidValue(f"save_to_sql_client_data: client {brief(client_id)} has no split")
            protos = [_serialize(example) for example in dataset.as_numpy_iterator()]
            connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", ((split, client_id, p) for p in protos))
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client_id, split, len(protos)))
        connection.execute("CREATE INDEX examples_by_client ON examples (client_id, split_name)")


class _Connection:
    """A database to write in one transaction. It is dropped if that fails, so it needs no journal.

    Raises:
        OSError: it cannot be written, such as on a full disk.
    """

    def __init__(self, path: os.PathLike) -> None:
        self._path = path
        self._connection = sqlite3.connect(path)
        self._connection.execute("PRAGMA journal_mode=OFF")
        self._connection.execute("PRAGMA synchronous=OFF")

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._connection.commit()
        except sqlite3.OperationalError as refusal:
            error = refusal
        finally:
            self._connection.close()
        if isinstance(error, sqlite3.OperationalError):  # of the disk: the statements are right
            number = errno.ENOSPC if error.sqlite_errorcode == sqlite3.SQLITE_FULL else errno.EIO
            raise OSError(number, os.strerror(number), os.fspath(self._path)) from error


def _open_store(path: str, split: str | None, decode: Callable[[np.ndarray], Structure]) -> StoreOfFile:
    """The store of a database, which is opened once to find what is wrong with it.

    Args:
        decode: serialized examples of a client in TFF's format, objects [n], -> the columns.
    """
    store = StoreOfFile(functools.partial(_store, split=split, decode=decode), path)
    store.get()
    return store


def _without_parser(protos: np.ndarray) -> Structure:
    return protos


def _store(path: str, split: str | None, decode: Callable[[np.ndarray], Structure]) -> Store:
    """The open database in either format; arguments as for `_open_store`.

    Raises:
        InvalidValue: it is in neither, or has no such split.
    """
    try:
        tables = Tables(path)
        if tables.columns("layouts") and tables.columns("clients"):
            layouts = dict(tables.rows("SELECT CAST(split_name AS TEXT), layout FROM layouts"))
            name = chosen_split("SqlClientData", path, layouts, split)
            return _ClientRows(tables, name, Layout.parsed(layouts[name]))
        for table, columns in _COLUMNS_OF_TFF.items():
            missing = columns - tables.columns(table)
            if missing:
                raise InvalidValue(
                    f"SqlClientData: {path} is no database of clients: the table `{table}` lacks "
                    f"{', '.join(sorted(missing))}"
                )
        if split is not None and not _has_split(tables, split):
            splits = tables.rows("SELECT DISTINCT CAST(split_name AS TEXT) FROM client_metadata")
            chosen_split("SqlClientData", path, (name for (name,) in splits if name is not None), split)
    except FedcoreError:
        raise
    except (sqlite3.DatabaseError, ValueError) as error:
        raise InvalidValue(f"SqlClientData: {path} is no SQLite database that can be read: {error}") from None
    return _Examples(tables, split, decode)


def _has_split(tables: Tables, split: str) -> bool:
    return bool(tables.rows("SELECT 1 FROM client_metadata WHERE split_name = ? LIMIT 1", split))


def _checked_id(client_id: Any) -> str:
    """A client's id from the database; ValueError if it is no text."""
    if not isinstance(client_id, str):
        raise ValueError(f"a client's id is a text, not {brief(client_id)}")
    return client_id


class _ClientRows:
    """The format of `save_sqlite`: for each client one row, with its columns one after another."""

    def __init__(self, tables: Tables, split: str, layout: Layout) -> None:
        self._tables = tables
        self._split = split
        self._layout = layout

    def close(self) -> None:
        self._tables.close()

    def client_ids(self) -> Iterable[str]:
        query = "SELECT client_id FROM clients WHERE split_name = ?"
        return [_checked_id(client_id) for (client_id,) in self._tables.rows(query, self._split)]

    def read(self, client_id: str) -> Structure | None:
        query = "SELECT num_examples, content FROM clients WHERE split_name = ? AND client_id = ? LIMIT 1"
        matches = self._tables.rows(query, self._split, client_id)
        if not matches:
            return None
        ((row_count, content),) = matches
        if type(row_count) is not int or row_count < 0 or not isinstance(content, bytes):
            raise ValueError("its row has no number of examples, or no bytes")
        columns, start = [], 0
        for dtype, shape in zip(self._layout.dtypes, self._layout.shapes, strict=True):
            column, start = _unpack(content, start, dtype, (row_count, *shape))
            columns.append(column)
        return self._layout.structured(columns)


def _pack(column: np.ndarray) -> bytes:
    """A column in a row's content: numbers as they are in memory; of texts first the ends, then the texts."""
    if column.dtype.kind != "O":
        return np.ascontiguousarray(column).tobytes()
    texts = column.ravel()
    return ends_of(texts).tobytes() + b"".join(texts)


def _unpack(content: bytes, start: int, dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """A column that starts at a byte of a row's content, as `_pack` makes it, and the byte after it."""
    count = math.prod(shape)
    if dtype != "str":
        values = np.frombuffer(content, dtype, count, start)
        return values.reshape(shape), start + values.nbytes
    ends = np.frombuffer(content, np.int64, count, start)
    first = start + ends.nbytes
    last = max(first, first + (int(ends[-1]) if count else 0))
    return texts_of(content[first:last], ends).reshape(shape), last


class _Examples:
    """TFF's format: for each example one row, with a serialized proto."""

    def __init__(self, tables: Tables, split: str | None, decode: Callable[[np.ndarray], Structure]) -> None:
        self._tables = tables
        self._split = split
        self._decode = decode
        self._runs: dict[str, list[list[int]]] | None = None  # of `_locate_runs`; empty if there is an index by client

    def close(self) -> None:
        self._tables.close()

    def client_ids(self) -> Iterable[str]:
        query = "SELECT DISTINCT client_id FROM client_metadata" + self._split_condition("WHERE")
        return [_checked_id(client_id) for (client_id,) in self._tables.rows(query, *self._arguments())]

    def read(self, client_id: str) -> Structure | None:
        protos: list[bytes] = []
        size_bytes = 0
        for (proto,) in self._protos(client_id):
            if not isinstance(proto, bytes):
                raise ValueError(f"an example is bytes, not {brief(proto)}")
            size_bytes += len(proto)
            check_taken("it", size_bytes, self._tables.size_bytes, ratio=1)
            protos.append(proto)
        if not protos and not self._is_client(client_id):
            return None
        array = np.empty(len(protos), dtype=object)
        array[:] = protos
        return self._decode(array)

    def _is_client(self, client_id: str) -> bool:
        query = "SELECT 1 FROM client_metadata WHERE client_id = ?" + self._split_condition("AND")
        return bool(self._tables.rows(f"{query} LIMIT 1", *self._arguments(client_id)))

    def _protos(self, client_id: str) -> Iterable[tuple[Any]]:
        """The rows (serialized example,) of a client, in the order of the table."""
        query = "SELECT serialized_example_proto FROM examples WHERE client_id = ?" + self._split_condition("AND")
        if self._runs is None:
            plan = self._tables.rows(f"EXPLAIN QUERY PLAN {query}", *self._arguments(client_id))
            self._runs = {} if any(step[-1].startswith("SEARCH") for step in plan) else self._locate_runs()
        if not self._runs:
            return self._tables.rows(f"{query} ORDER BY rowid", *self._arguments(client_id))
        in_run = f"{query} AND rowid BETWEEN ? AND ? ORDER BY rowid"
        runs = self._runs.get(client_id, [])
        return itertools.chain.from_iterable(
            self._tables.rows(in_run, *self._arguments(client_id), *run) for run in runs
        )

    def _locate_runs(self) -> dict[str, list[list[int]]]:
        """Client's id -> [first row, last row] of each run of rows that are this client's, one after another.

        For a table that has no index by client.
        """
        runs: dict[str, list[list[int]]] = {}
        last: str | None = None

        def add(row: tuple[int, str]) -> None:
            nonlocal last
            rowid, client_id = row
            if client_id == last:
                runs[client_id][-1][1] = rowid
            else:
                runs.setdefault(client_id, []).append([rowid, rowid])
            last = client_id

        query = "SELECT rowid, client_id FROM examples" + self._split_condition("WHERE") + " ORDER BY rowid"
        self._tables.visit(add, query, *self._arguments())
        return runs

    def _split_condition(self, word: str) -> str:
        """The condition that takes the rows of the split, after WHERE or AND; `_arguments` has its `?`."""
        return "" if self._split is None else f" {word} split_name = ?"

    def _arguments(self, *first: str) -> tuple[str, ...]:
        return first if self._split is None else (*first, self._split)


class _Parser:
    """Parses serialized `tf.train.Example`s, all of a client at once.

    Args:
        spec: name of each field -> its `tf.TensorSpec`.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        import tensorflow as tf

        is_right = isinstance(spec, Mapping) and all(
            isinstance(name, str)
            and isinstance(leaf, tf.TensorSpec)
            and leaf.shape.is_fully_defined()
            and (leaf.dtype == tf.string or leaf.dtype.is_floating or leaf.dtype.is_integer)
            for name, leaf in spec.items()
        )
        if not is_right:
            raise TypeMismatch(
                "an example of a database is a dict from names to tf.TensorSpecs of numbers or text with known shapes, "
                f"not {brief(spec)}"
            )
        self._spec = dict(spec)
        self._parse: Callable | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_spec": self._spec, "_parse": None}

    def __call__(self, protos: np.ndarray) -> Structure:
        import tensorflow as tf

        if self._parse is None:
            self._parse = tf.function(self._parse_protos, input_signature=[tf.TensorSpec([None], tf.string)])
        try:
            return {name: column.numpy() for name, column in self._parse(tf.constant(protos, tf.string)).items()}
        except tf.errors.InvalidArgumentError as error:
            problem = error.message.split("\n\n")[-1].split("\n")[0]  # before it stands a stack
            raise FedcoreError(f"a client's examples are not what element_spec says: {problem}") from None

    def _parse_protos(self, protos: tf.Tensor) -> dict[str, tf.Tensor]:
        import tensorflow as tf

        features = {
            name: tf.io.FixedLenFeature(leaf.shape, _dtype_in_example(leaf.dtype)) for name, leaf in self._spec.items()
        }
        parsed = tf.io.parse_example(protos, features)
        return {name: tf.cast(parsed[name], leaf.dtype) for name, leaf in self._spec.items()}


def _dtype_in_example(dtype: tf.DType) -> tf.DType:
    """The dtype in which a `tf.train.Example` holds a dtype."""
    import tensorflow as tf

    if dtype == tf.string:
        return tf.string
    return tf.float32 if dtype.is_floating else tf.int64


def _serialize(example: Mapping[str, Any]) -> bytes:
    """An example of numpy values as a serialized `tf.train.Example`."""
    import tensorflow as tf

    features = {}
    for name, value in example.items():
        flat = np.ravel(np.asarray(value, object) if isinstance(value, bytes) else value)
        if flat.dtype.kind == "O":
            features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=flat.tolist()))
        elif flat.dtype.kind in "iu":
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=flat))
        else:
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=flat))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

"""Client data from what people have: arrays, data frames, Hugging Face and PyTorch data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.simulation.datasets.client_data import ArrayClientData, ClientData
from fedcore.simulation.datasets.stored_client_data import StoredClientData
from fedcore.simulation.datasets.structures import Structure, as_bytes, map_leaves, num_rows


def from_arrays(columns: Structure, client_ids: Sequence | np.ndarray) -> ArrayClientData:
    """Client data from the examples of all clients, in any order, and the client of each.

    Args:
        columns: equally long arrays in dicts and tuples.
        client_ids: the client of each example; anything but text is named by its `str`. A client's examples keep their
            order.
    Raises:
        InvalidValue: the lengths differ, or a client id is missing.
    Example:
        >>> data = from_arrays((np.array([1.0, 2.0, 3.0]), np.array([0, 1, 0])), ["b", "a", "b"])
        >>> data.client_ids, [float(x) for x, _ in data.create_tf_dataset_for_client("b")]
        (['a', 'b'], [1.0, 3.0])
    """
    columns = map_leaves(lambda column: _column("columns", np.asarray(column)), columns)
    if num_rows(columns) != len(client_ids):
        raise InvalidValue(f"from_arrays: there are {num_rows(columns)} examples and {len(client_ids)} client ids")
    return ArrayClientData.from_partition(columns, _rows_of_clients("from_arrays: client_ids", client_ids))


def from_clients(clients: Mapping[str, Structure] | Sequence[Structure]) -> ArrayClientData:
    """Client data from the arrays of each client.

    Args:
        clients: client's id -> equally long arrays, such as a pair (x, y); or a list of these, whose clients are named
            `client_0`, `client_1`, …, with as many digits as sort them.
    Raises:
        InvalidValue: there are no clients, or examples of two clients differ in structure, dtypes or shapes.
    Example:
        >>> x, y = np.zeros((2, 3), np.float32), np.zeros(2, np.int32)
        >>> from_clients([(x, y), (x, y)]).client_ids
        ['client_0', 'client_1']
    """
    if not isinstance(clients, Mapping):
        width = len(str(len(clients) - 1))
        clients = {f"client_{i:0{width}d}": columns for i, columns in enumerate(clients)}
    as_columns = {
        i: map_leaves(lambda column: _column("columns", np.asarray(column)), columns) for i, columns in clients.items()
    }
    return ArrayClientData.from_clients(as_columns)


def from_pandas(frame: Any, client_column: str, columns: Sequence[str] | None = None) -> ArrayClientData:
    """Client data from a data frame with a row for each example.

    Numbers keep their dtypes, text becomes bytes in UTF-8, and arrays of one shape in cells become one array.

    Args:
        frame: a `pandas.DataFrame`, or another one with `columns` and `frame[name].to_numpy()`.
        client_column: the column of client ids; anything but text is named by its `str`.
        columns: the fields of an example. Default: all others, in the order of the frame.
    Raises:
        FedcoreError: it is no such frame, it has no such column, or a column has missing values or values that are no
            tensors.
    Example:
        >>> frame = pandas.DataFrame({"user": ["b", "a", "b"], "x": [1.0, 2.0, 3.0]})
        >>> data = from_pandas(frame, client_column="user")
        >>> data.client_ids, [float(e["x"]) for e in data.create_tf_dataset_for_client("b")]
        (['a', 'b'], [1.0, 3.0])
    """
    names = list(getattr(frame, "columns", [frame]))
    if any(hasattr(name, "to_numpy") for name in names):  # columns in the place of their names, as of a pyarrow.Table
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        raise TypeMismatch(f"from_pandas takes a pandas.DataFrame, not a {kind}; fix: its to_pandas()")
    fields = _fields("from_pandas", names, client_column, columns)
    clients = _rows_of_clients(f"from_pandas: the column {client_column!r}", frame[client_column].to_numpy())
    read = {name: _frame_column(f"from_pandas: the column {name!r}", frame[name]) for name in fields}
    return ArrayClientData.from_partition(read, clients)


def from_huggingface(dataset: Any, client_column: str, columns: Sequence[str] | None = None) -> ClientData:
    """Client data from a data set of Hugging Face's `datasets`; a client is read when its data set is asked for.

    Args:
        dataset: a `datasets.Dataset`, one split.
        client_column: the column of client ids; anything but text is named by its `str`.
        columns: the fields of an example. Default: all others, in the order of the data set.
    Raises:
        FedcoreError: `dataset` is no `datasets.Dataset`, or has no such column. When a client is read: its examples
            differ in shape, or are missing.
    Example:
        >>> dataset = datasets.Dataset.from_dict({"user": ["b", "a", "b"], "x": [1.0, 2.0, 3.0]})
        >>> data = from_huggingface(dataset, client_column="user")
        >>> data.client_ids, [float(e["x"]) for e in data.create_tf_dataset_for_client("b")]
        (['a', 'b'], [1.0, 3.0])
    """
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "column_names") or not hasattr(dataset, "__len__"):
        raise TypeMismatch(
            f"from_huggingface takes one datasets.Dataset, no stream and no dict of splits, not {brief(dataset)}"
        )
    names = dataset.column_names
    if isinstance(names, Mapping):
        raise TypeMismatch(f"from_huggingface takes one split, not a dict of {', '.join(names)}; fix: dataset['train']")
    fields = _fields("from_huggingface", names, client_column, columns)
    ids = dataset.with_format(None)[client_column][:]
    arrays = dataset.select_columns(fields).with_format("numpy")

    def read(rows: np.ndarray) -> Structure:
        batch = arrays[rows]
        return {name: _column(f"from_huggingface: the column {name!r}", batch[name]) for name in fields}

    clients = _rows_of_clients(f"from_huggingface: the column {client_column!r}", ids)
    return StoredClientData(_Rows(clients, read))


def from_torch(dataset: Any, client_ids: Sequence | np.ndarray) -> ClientData:
    """Client data from a data set of PyTorch; a client is read when its data set is asked for.

    Args:
        dataset: a map-style `torch.utils.data.Dataset`: `len(dataset)`, and `dataset[i]` gives an example: tensors,
            arrays, images or numbers in dicts and tuples. A `TensorDataset` is one.
        client_ids: the client of each example; anything but text is named by its `str`.
    Raises:
        FedcoreError: `dataset` is no map-style data set, or the lengths differ. When a client is read: its examples
            differ in shape.
    Example:
        >>> dataset = torch.utils.data.TensorDataset(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 0]))
        >>> data = from_torch(dataset, ["b", "a", "b"])
        >>> data.client_ids, [float(x) for x, _ in data.create_tf_dataset_for_client("b")]
        (['a', 'b'], [1.0, 3.0])
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeMismatch(
            f"from_torch takes a map-style data set, with len(dataset) and dataset[i], not {brief(dataset)}; "
            "fix: read a stream into a list"
        )
    if len(dataset) != len(client_ids):
        raise InvalidValue(f"from_torch: there are {len(dataset)} examples and {len(client_ids)} client ids")

    def read(rows: np.ndarray) -> Structure:
        examples = [_as_structure(dataset[int(row)]) for row in rows]
        return map_leaves(_stack, examples[0], *examples[1:])

    return StoredClientData(_Rows(_rows_of_clients("from_torch: client_ids", client_ids), read))


class _Rows:
    """A store whose clients are rows of a data set."""

    def __init__(self, clients: Mapping[str, np.ndarray], read: Callable[[np.ndarray], Structure]) -> None:
        self._clients = clients
        self._read = read

    def client_ids(self) -> Iterable[str]:
        return self._clients

    def read(self, client_id: str) -> Structure | None:
        return self._read(self._clients[client_id]) if client_id in self._clients else None


def _rows_of_clients(role: str, client_ids: Sequence | np.ndarray) -> dict[str, np.ndarray]:
    """Client's id -> the positions of its examples, ascending."""
    ids = _vector(role, client_ids)
    missing = [x for x in ids.ravel().tolist() if x is None or x != x or str(x) == "<NA>"]
    if missing:
        raise InvalidValue(f"{role} has {len(missing)} missing values")
    try:
        distinct, number_of = np.unique(ids, return_inverse=True)
    except TypeError:
        raise TypeMismatch(f"{role} mixes text with numbers") from None
    try:
        names = [x.decode() if isinstance(x, bytes) else str(x) for x in distinct.tolist()]
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{role} has {brief(error.object)}, which is no text in UTF-8") from None
    order = np.argsort(number_of, kind="stable")
    stops = np.cumsum(np.bincount(number_of, minlength=len(names)))
    return dict(zip(names, np.split(order, stops[:-1]), strict=True))


def _vector(role: str, client_ids: Sequence | np.ndarray) -> np.ndarray:
    try:
        ids = client_ids if isinstance(client_ids, np.ndarray) else np.asarray(client_ids)
    except ValueError:  # parts of different lengths
        ids = np.zeros((0, 0))
    if ids.ndim != 1:
        raise TypeMismatch(f"{role} has not one text or number for each example")
    if not len(ids):
        raise InvalidValue(f"{role} is empty: no examples, so no clients")
    return ids


def _fields(user: str, has: Sequence[str], client_column: str, columns: Sequence[str] | None) -> list[str]:
    names = [client_column, *(columns or ())]
    unknown = [name for name in names if name not in has]
    if unknown:
        raise InvalidValue(f"{user}: there is no column {unknown[0]!r}; there are {', '.join(map(repr, has))}")
    fields = list(columns) if columns is not None else [name for name in has if name != client_column]
    if not fields:
        raise InvalidValue(f"{user}: an example needs at least one column beside {client_column!r}")
    for name in (client_column, *fields):
        if has.count(name) > 1:
            raise InvalidValue(f"{user}: {has.count(name)} columns are named {name!r}; fix: rename them")
    return fields


def _frame_column(role: str, series: Any) -> np.ndarray:
    """A column of a data frame; `NaN`, `NaT`, `None` and `<NA>` are missing values, as the frame has it."""
    column = series.to_numpy()
    is_nan = column.dtype.kind in "fc" and bool(np.isnan(column).any())
    if is_nan or (hasattr(series, "isna") and bool(np.any(series.isna()))):
        raise InvalidValue(f"{role} has missing values; fix: fill or drop them")
    return _column(role, column)


def _column(role: str, column: np.ndarray) -> np.ndarray:
    """A column of numbers, or of text as bytes."""
    if column.dtype.kind in "biufc" or column.dtype.name == "bfloat16":
        return column
    if column.dtype.kind in "SU":
        return as_bytes(column)
    if column.dtype.kind != "O":
        raise TypeMismatch(
            f"{role} has the dtype {column.dtype}, which no tensor has; fix: convert it to numbers or text"
        )
    cells = column.ravel().tolist()
    if all(isinstance(cell, str | bytes) for cell in cells):
        return as_bytes(column)
    if any(cell is None or (isinstance(cell, float) and cell != cell) or str(cell) == "<NA>" for cell in cells):
        raise InvalidValue(f"{role} has missing values; fix: fill or drop them")
    if all(isinstance(cell, np.ndarray | list | tuple) for cell in cells):
        shapes = {np.shape(cell) for cell in cells}
        if len(shapes) == 1:
            return _column(role, np.stack([np.asarray(cell) for cell in cells]))
        raise InvalidValue(f"{role} has values of different shapes, such as {sorted(shapes)[:2]}; fix: pad them")
    kinds = sorted({type(cell).__name__ for cell in cells})
    raise TypeMismatch(f"{role} holds {' and '.join(kinds)}, which are no tensors of one dtype")


def _as_structure(example: Any) -> Structure:
    """An example as `map_leaves` takes it: a list of parts is a tuple."""
    if isinstance(example, Mapping):
        return {key: _as_structure(part) for key, part in example.items()}
    if isinstance(example, list | tuple):
        parts = [_as_structure(part) for part in example]
        return type(example)(*parts) if hasattr(example, "_fields") else tuple(parts)
    return example


def _stack(*values: Any) -> np.ndarray:
    if isinstance(values[0], str | bytes):
        return as_bytes(np.array(values, object))
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InvalidValue(f"from_torch: examples differ in shape, such as {sorted(shapes)[:2]}; fix: pad them")
    return np.stack(arrays)

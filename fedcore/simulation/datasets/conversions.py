"""Client data from what people have: arrays, data frames, Hugging Face and PyTorch data sets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.simulation.datasets.client_data import (
    ArrayClientData,
    ClientData,
    FunctionClientData,
    numbered_ids,
    python_id,
)
from fedcore.simulation.datasets.stored_client_data import StoredClientData
from fedcore.simulation.datasets.structures import Structure, as_bytes, map_leaves, num_rows
from fedcore.types.ragged_rows import RaggedRows


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
    columns = array_columns(columns)
    if num_rows(columns) != len(client_ids):
        raise InvalidValue(f"from_arrays: there are {num_rows(columns)} examples and {len(client_ids)} client ids")
    return ArrayClientData.from_partition(columns, _rows_of_clients("from_arrays: client_ids", client_ids))


def from_clients(clients: Mapping[str, Any] | Sequence[Any]) -> ClientData:
    """Client data from the arrays, or the data set, of each client.

    Args:
        clients: client's id -> equally long arrays, such as a pair (x, y), or a `tf.data.Dataset`; or a list of these,
            whose clients are named `client_0`, `client_1`, …, with as many digits as sort them.
    Returns:
        An `ArrayClientData` of arrays. Data sets are neither read nor copied, and may be of batches.
    Raises:
        InvalidValue: there are no clients, or examples of two clients differ in structure, dtypes or shapes.
        TypeMismatch: some clients have data sets and others have arrays, or the data sets differ in structure or
            dtypes.
    Example:
        >>> x, y = np.zeros((2, 3), np.float32), np.zeros(2, np.int32)
        >>> from_clients([(x, y), (x, y)]).client_ids
        ['client_0', 'client_1']
    """
    if not isinstance(clients, Mapping):
        clients = dict(zip(numbered_ids(len(clients)), clients, strict=True))
    # Whatever has an element_spec is a data set of TensorFlow, which is not imported for arrays.
    ids_with_arrays = [client_id for client_id, value in clients.items() if not hasattr(value, "element_spec")]
    if clients and not ids_with_arrays:
        datasets = dict(clients)
        _check_one_type(datasets)
        return FunctionClientData(datasets, lambda client_id: datasets[python_id(client_id)])
    if len(ids_with_arrays) < len(clients):
        first = ids_with_arrays[0]
        raise TypeMismatch(
            f"from_clients takes a data set of each client, or arrays; client {brief(first)} has "
            f"{brief(clients[first])}; fix: fc.data.ClientDataset.from_columns(arrays)"
        )
    return ArrayClientData.from_clients(_ragged_for_all({i: array_columns(c) for i, c in clients.items()}))


def _ragged_for_all(clients: Mapping[str, Structure]) -> Mapping[str, Structure]:
    """The columns of clients. A column that is ragged for one client becomes ragged for all."""
    try:
        dtypes = map_leaves(_ragged_dtype, *clients.values())
    except (LookupError, TypeError, ValueError):  # clients differ in structure, which is refused next
        return clients
    return {client_id: map_leaves(_as_ragged, columns, dtypes) for client_id, columns in clients.items()}


def _ragged_dtype(*columns: np.ndarray | RaggedRows) -> np.dtype | None:
    """The dtype of the first ragged column among one column of all clients; None if none is ragged."""
    return next((column.dtype for column in columns if isinstance(column, RaggedRows)), None)


def _as_ragged(column: np.ndarray | RaggedRows, dtype: np.dtype | None) -> np.ndarray | RaggedRows:
    """A client's column as `RaggedRows`, if a client has it ragged in a `dtype` and this one has a matrix."""
    if dtype is None or isinstance(column, RaggedRows) or column.ndim != 2:
        return column
    values = column.reshape(-1)  # empty lists of Python have no dtype of their own
    return RaggedRows(values if len(values) else values.astype(dtype), [column.shape[1]] * len(column))


def _check_one_type(datasets: Mapping[str, Any]) -> None:
    """Refuses data sets of clients whose elements differ in structure or dtypes; sizes may differ."""
    first, *others = datasets
    wants = map_leaves(_dtype_name, datasets[first].element_spec)
    for other in others:
        has = map_leaves(_dtype_name, datasets[other].element_spec)
        if has != wants:
            raise TypeMismatch(
                f"clients {first!r} and {other!r} differ\n  {first!r}  has {wants}\n  {other!r}  has {has}"
            )


def _dtype_name(spec: Any) -> str:
    """The dtype of a leaf of an `element_spec`; of a spec without one its text."""
    return spec.dtype.name if hasattr(spec, "dtype") else str(spec)


def from_pandas(frame: Any, client_column: str, columns: Sequence[str] | None = None) -> ArrayClientData:
    """Client data from a data frame with a row for each example.

    Numbers keep their dtypes, text becomes bytes in UTF-8, and arrays of one shape in cells become one array. Lists of
    several lengths in cells, such as tokens, stay so, `int64[?]`: `padded_batch(n)` pads each batch.

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
    fields = frame_columns("from_pandas", frame, columns, without=client_column)
    ids = frame[client_column].to_numpy()
    return ArrayClientData.from_partition(fields, _rows_of_clients(f"from_pandas: the column {client_column!r}", ids))


def from_huggingface(dataset: Any, client_column: str, columns: Sequence[str] | None = None) -> ClientData:
    """Client data from a data set of Hugging Face's `datasets`; a client is read when its data set is asked for.

    Lists of several lengths, such as tokens, stay so, `int64[?]`: `padded_batch(n)` pads each batch.

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
    read = huggingface_reader("from_huggingface", dataset, columns, without=client_column)
    ids = dataset.with_format(None)[client_column][:]
    return rows_at_clients(_rows_of_clients(f"from_huggingface: the column {client_column!r}", ids), read)


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
    read = torch_reader("from_torch", dataset)
    if len(dataset) != len(client_ids):
        raise InvalidValue(f"from_torch: there are {len(dataset)} examples and {len(client_ids)} client ids")
    return rows_at_clients(_rows_of_clients("from_torch: client_ids", client_ids), read)


def array_columns(columns: Structure) -> Structure:
    """Arrays as columns of an example."""
    return map_leaves(lambda column: _column("columns", _as_array(column)), columns)


def _as_array(column: Any) -> np.ndarray:
    """A column as an array; rows of several shapes become an array of objects."""
    try:
        return np.asarray(column)
    except ValueError:  # a list of rows of several shapes
        cells = np.empty(len(column), object)
        cells[:] = list(column)
        return cells


def frame_columns(
    user: str, frame: Any, columns: Sequence[str] | None = None, *, without: str | None = None
) -> dict[str, np.ndarray | RaggedRows]:
    """The columns of a data frame.

    Args:
        user: the function that reads, for messages.
        columns: their names. Default: all but `without`.
    """
    names = list(getattr(frame, "columns", [frame]))
    if any(hasattr(name, "to_numpy") for name in names):  # columns in the place of their names, as of a pyarrow.Table
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        raise TypeMismatch(f"{user} takes a pandas.DataFrame, not a {kind}; fix: its to_pandas()")
    fields = _fields(user, names, without, columns)
    return {name: _frame_column(f"{user}: the column {name!r}", frame[name]) for name in fields}


Reader = Callable[[np.ndarray], Structure]
"""Row numbers -> the columns of these rows."""


def huggingface_reader(
    user: str, dataset: Any, columns: Sequence[str] | None = None, *, without: str | None = None
) -> Reader:
    """The function that reads rows of a data set of Hugging Face; arguments as for `frame_columns`."""
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "column_names") or not hasattr(dataset, "__len__"):
        raise TypeMismatch(f"{user} takes one datasets.Dataset, no stream and no dict of splits, not {brief(dataset)}")
    names = dataset.column_names
    if isinstance(names, Mapping):
        raise TypeMismatch(f"{user} takes one split, not a dict of {', '.join(names)}; fix: dataset['train']")
    fields = _fields(user, names, without, columns)
    ragged_names = _ragged_lists(dataset, fields)
    dense_names = [name for name in fields if name not in ragged_names]
    ragged_part = dataset.select_columns(ragged_names).with_format("arrow")
    dense_part = dataset.select_columns(dense_names).with_format("numpy")

    def read(rows: np.ndarray) -> Structure:
        ragged: Any = ragged_part[rows] if ragged_names else None
        dense = dense_part[rows] if dense_names else {}
        return {
            name: _arrow_column(f"{user}: the column {name!r}", ragged.column(name))
            if name in ragged_names
            else _column(f"{user}: the column {name!r}", dense[name])
            for name in fields
        }

    return read


def _ragged_lists(dataset: Any, fields: Sequence[str]) -> list[str]:
    """The columns of a data set of Hugging Face that are lists of several lengths.

    The whole data set decides, so that a column is ragged at all clients or at none.
    """
    import pyarrow  # which `datasets` needs
    import pyarrow.compute

    def is_ragged(name: str) -> bool:
        column = dataset.data.column(name)
        is_list = pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type)
        if not is_list or pyarrow.types.is_nested(column.type.value_type):
            return False
        lengths = pyarrow.compute.min_max(pyarrow.compute.list_value_length(column)).as_py()
        return lengths["min"] != lengths["max"]

    return [name for name in fields if is_ragged(name)]


def _arrow_column(role: str, column: Any) -> RaggedRows:
    """Lists of several lengths, from a `pyarrow.ChunkedArray`."""
    import pyarrow.compute

    if column.null_count:
        raise InvalidValue(f"{role} has missing values; fix: fill or drop them")
    values = pyarrow.compute.list_flatten(column).to_numpy()
    return RaggedRows(_column(role, values), pyarrow.compute.list_value_length(column).to_numpy())


def torch_reader(user: str, dataset: Any) -> Reader:
    """The function that reads rows of a map-style data set of PyTorch."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeMismatch(
            f"{user} takes a map-style data set, with len(dataset) and dataset[i], not {brief(dataset)}; "
            "fix: read a stream into a list"
        )

    def read(rows: np.ndarray) -> Structure:
        examples = [_as_structure(dataset[int(row)]) for row in rows]
        return map_leaves(functools.partial(_stack, user), examples[0], *examples[1:])

    return read


def rows_at_clients(clients: Mapping[str, np.ndarray], read: Reader) -> ClientData:
    """Client data whose clients are rows of a data set, which are read when a client is asked for."""
    return StoredClientData(_Rows(clients, read))


class _Rows:
    """A store whose clients are rows of a data set."""

    def __init__(self, clients: Mapping[str, np.ndarray], read: Reader) -> None:
        self._clients = clients
        self._read = read

    def client_ids(self) -> Iterable[str]:
        return self._clients

    def read(self, client_id: str) -> Structure | None:
        return self._read(self._clients[client_id]) if client_id in self._clients else None


def _rows_of_clients(role: str, client_ids: Sequence | np.ndarray) -> dict[str, np.ndarray]:
    """Client's id -> the positions of its examples, ascending.

    Args:
        role: what the ids are, for messages.
        client_ids: the client of each example.
    """
    ids = _vector(role, client_ids)
    missing = [x for x in ids.ravel().tolist() if x is None or x != x or str(x) == "<NA>"]
    if missing:
        raise InvalidValue(f"{role} has {len(missing)} missing values")
    try:
        distinct, client_numbers = np.unique(ids, return_inverse=True)
    except TypeError:
        raise TypeMismatch(f"{role} mixes text with numbers") from None
    try:
        names = [x.decode() if isinstance(x, bytes) else str(x) for x in distinct.tolist()]
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{role} has {brief(error.object)}, which is no text in UTF-8") from None
    order = np.argsort(client_numbers, kind="stable")
    stops = np.cumsum(np.bincount(client_numbers, minlength=len(names)))
    return dict(zip(names, np.split(order, stops[:-1]), strict=True))


def _vector(role: str, client_ids: Sequence | np.ndarray) -> np.ndarray:
    """The ids of the examples' clients as an array [examples].

    Raises:
        TypeMismatch: they are not one-dimensional.
        InvalidValue: there are none.
    """
    try:
        ids = client_ids if isinstance(client_ids, np.ndarray) else np.asarray(client_ids)
    except ValueError:  # lists of different lengths, which are refused below, as not one-dimensional
        ids = np.zeros((0, 0))
    if ids.ndim != 1:
        raise TypeMismatch(f"{role} has not one text or number for each example")
    if not len(ids):
        raise InvalidValue(f"{role} is empty: no examples, so no clients")
    return ids


def _fields(user: str, has: Sequence[str], without: str | None, columns: Sequence[str] | None) -> list[str]:
    """The names of the columns of an example: `columns`, or by default all that the table has but `without`.

    Raises:
        InvalidValue: the table lacks a column, an example would have none, or two columns have one name.
    """
    outside = [] if without is None else [without]
    unknown = [name for name in [*outside, *(columns or ())] if name not in has]
    if unknown:
        raise InvalidValue(f"{user}: there is no column {unknown[0]!r}; there are {', '.join(map(repr, has))}")
    fields = list(columns) if columns is not None else [name for name in has if name != without]
    if not fields:
        beside = "" if without is None else f" beside {without!r}"
        raise InvalidValue(f"{user}: an example needs at least one column{beside}")
    for name in (*outside, *fields):
        if has.count(name) > 1:
            raise InvalidValue(f"{user}: {has.count(name)} columns are named {name!r}; fix: rename them")
    return fields


def _frame_column(role: str, series: Any) -> np.ndarray | RaggedRows:
    """A column of a data frame; `NaN`, `NaT`, `None` and `<NA>` are missing values, as the frame has it."""
    column = series.to_numpy()
    is_nan = column.dtype.kind in "fc" and bool(np.isnan(column).any())
    if is_nan or (hasattr(series, "isna") and bool(np.any(series.isna()))):
        raise InvalidValue(f"{role} has missing values; fix: fill or drop them")
    return _column(role, column)


def _column(role: str, column: np.ndarray) -> Any:
    """A column of numbers, or of text as bytes; rows of several lengths as `RaggedRows`."""
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
        return _column_of_arrays(role, [_as_array(cell) for cell in cells])
    kinds = sorted({type(cell).__name__ for cell in cells})
    raise TypeMismatch(f"{role} holds {' and '.join(kinds)}, which are no tensors of one dtype")


def _column_of_arrays(role: str, rows: list[np.ndarray]) -> np.ndarray | RaggedRows:
    """A column whose rows are arrays: stacked if they have one shape, as `RaggedRows` if they are vectors.

    Raises:
        InvalidValue: the rows are of several shapes that are not all vectors.
        TypeMismatch: the elements are of no dtype that tensors have, or of several kinds.
    """
    shapes = {row.shape for row in rows}
    # A row that holds lists of several lengths is an array of objects, see `_as_array`.
    is_nested = any(isinstance(part, list | tuple) for row in rows if row.dtype.kind == "O" for part in row)
    if len(shapes) == 1 and not is_nested:
        return _column(role, np.stack(rows))
    if is_nested or {len(shape) for shape in shapes} != {1}:
        some = f", such as {sorted(shapes)[:2]}" if len(shapes) > 1 else " in lists"
        raise InvalidValue(f"{role} has values of different shapes{some}; fix: pad or resize them to one shape")
    parts = [row for row in rows if len(row)]  # empty lists of Python have no dtype
    kinds = {row.dtype.kind in "biufc" for row in parts}
    if len(kinds) > 1:
        raise TypeMismatch(f"{role} holds numbers and text, which are no tensors of one dtype")
    return RaggedRows(_column(role, np.concatenate(parts)), [len(row) for row in rows])


def _as_structure(example: Any) -> Structure:
    """An example as `map_leaves` takes it: a list of parts is a tuple."""
    if isinstance(example, Mapping):
        return {key: _as_structure(part) for key, part in example.items()}
    if isinstance(example, list | tuple):
        parts = [_as_structure(part) for part in example]
        return type(example)(*parts) if hasattr(example, "_fields") else tuple(parts)
    return example


def _stack(user: str, *values: Any) -> np.ndarray:
    """The column of one leaf of all examples; texts become bytes."""
    if isinstance(values[0], str | bytes):
        return as_bytes(np.array(values, object))
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InvalidValue(f"{user}: examples differ in shape, such as {sorted(shapes)[:2]}; fix: pad them")
    return np.stack(arrays)

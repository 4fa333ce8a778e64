"""Structures of arrays: dicts, tuples and named tuples whose leaves are the columns of examples."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import InvalidValue, brief

if TYPE_CHECKING:
    import tensorflow as tf

    from fedcore.data import ClientDataset

Structure = Any  # arrays in dicts and tuples, as tf.data has them; a list is an array


def map_leaves(fn: Callable[..., Any], structure: Structure, *others: Structure) -> Structure:
    """The structure with `fn` applied to each leaf, together with the leaves at its place in the others."""
    if isinstance(structure, Mapping):
        return {key: map_leaves(fn, structure[key], *(o[key] for o in others)) for key in structure}
    if isinstance(structure, tuple):
        items = [map_leaves(fn, *item) for item in zip(structure, *others, strict=True)]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return fn(structure, *others)


def leaves_of(structure: Structure) -> list[Any]:
    leaves: list[Any] = []
    map_leaves(leaves.append, structure)
    return leaves


def row_type(structure: Structure) -> Structure:
    """For each column the dtype and the shape of a row, as text."""
    return map_leaves(lambda column: f"{column.dtype}{list(column.shape[1:])}", structure)


def num_rows(structure: Structure, owner: str = "") -> int:
    """The number of rows of all columns.

    Args:
        owner: whose columns they are, for the message.
    Raises:
        InvalidValue: there are no columns, one has no rows, or their lengths differ.
    """
    columns = leaves_of(structure)
    scalars = [column for column in columns if np.ndim(column) == 0]
    if scalars:
        raise InvalidValue(f"{owner}a column has a row for each example; {brief(scalars[0])} has none")
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise InvalidValue(f"{owner}columns must be equally long, not {sorted(lengths)}")
    return lengths.pop()


def as_tensorflow_has_it(value: Any) -> np.ndarray:
    """A column of Python values in TensorFlow's dtypes: int32 where it holds them, float32, text as bytes."""
    column = np.asarray(value)
    if column.ndim == 0:
        raise InvalidValue(f"a client's value must have rows; {brief(value)} has none")
    if column.dtype.kind in "SU":
        return as_bytes(column)
    innermost = value
    while isinstance(innermost, list | tuple) and len(innermost):
        innermost = innermost[0]
    if hasattr(innermost, "dtype"):
        return column
    if column.dtype == np.int64 and np.array_equal(column, column.astype(np.int32)):
        return column.astype(np.int32)
    return column.astype(np.float32) if column.dtype == np.float64 else column


def as_bytes(column: np.ndarray) -> np.ndarray:
    """An array of text as an array of bytes objects, in UTF-8."""
    encoded = [v.encode() if isinstance(v, str) else v for v in column.ravel().tolist()]
    array = np.empty(len(encoded), dtype=object)
    array[:] = encoded
    return array.reshape(column.shape)


def rows_of(dataset: "ClientDataset | tf.data.Dataset", fix: str = "store them before they are batched") -> Structure:
    """The columns of a data set's elements, in its order.

    Args:
        dataset: a `ClientDataset` or another `tf.data.Dataset`.
        fix: of elements that differ in shape, for the message.
    Raises:
        InvalidValue: its elements differ in shape, such as batches with a smaller last one, or are not tensors; or it
            does not end.
    """
    from fedcore.data import ClientDataset
    from fedcore.data.tf_data_end import is_endless

    if isinstance(dataset, ClientDataset) and dataset.stored_rows is not None:
        return dataset.stored_rows
    if dataset.columns.is_endless if isinstance(dataset, ClientDataset) else is_endless(dataset):
        raise InvalidValue("the data set repeats without end, so it cannot be held; fix: leave .repeat() out")
    elements = list(dataset.as_numpy_iterator())
    if not elements:
        return map_leaves(_no_rows, dataset.element_spec)
    try:
        return map_leaves(lambda *parts: _stack(parts), elements[0], *elements[1:])
    except ValueError:
        raise InvalidValue(f"the examples differ in shape, so they are no columns; fix: {fix}") from None


def _stack(parts: tuple) -> np.ndarray:
    """The column of the values of one leaf."""
    if isinstance(parts[0], bytes):
        return as_bytes(np.array(parts, dtype=object))
    return np.stack(parts)


def _no_rows(spec: "tf.TensorSpec") -> np.ndarray:
    """The column of a leaf of a data set without elements."""
    shape = [size or 0 for size in spec.shape.as_list()]
    return np.zeros((0, *shape), spec.dtype.as_numpy_dtype)

"""The local operations on tensors whose first axis counts rows: what is collected, and sequences made of it."""

import numpy as np

from fedcore.errors import TypeMismatch
from fedcore.intrinsics.numerics import leafwise
from fedcore.ir.operations import operation
from fedcore.types import SequenceType, StructType, TensorType, Type, leaves, map_tensors


def _rows_of(type_: Type, name: str) -> int | None:
    """How many rows the leaves of a type have; None where that is not known."""
    sizes = set()
    for path, leaf in leaves(type_):
        if not isinstance(leaf, TensorType) or not leaf.shape:
            raise TypeMismatch(f"{name}: {path or 'it'} is {leaf}, which has no first axis to count rows by")
        sizes.add(leaf.shape[0])
    if len(sizes) != 1:
        raise TypeMismatch(f"{name}: the leaves of {type_} have not equally many rows")
    return sizes.pop()


def _as_row_typing(types, attributes) -> Type:
    return map_tensors(lambda t: TensorType(t.dtype, (1, *t.sizes)), types[0])


@operation(_as_row_typing)
def as_row(value):
    """Gives every leaf a first axis of size 1."""
    return leafwise(lambda x: x[np.newaxis], value)


def _append_rows_typing(types, attributes) -> Type:
    for type_ in types:
        _rows_of(type_, "append_rows")
    return map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes[1:])), types[0])


@operation(_append_rows_typing)
def append_rows(left, right, *, at_most):
    """The rows of `left`, then those of `right`, of which `at_most` in all are kept."""
    return leafwise(lambda a, b: np.concatenate([a, b])[:at_most], left, right)


def _sequence_typing(types, attributes) -> Type:
    _rows_of(types[0], "sequence_from_rows")
    return SequenceType(map_tensors(lambda t: TensorType(t.dtype, t.sizes[1:]), types[0]))


@operation(_sequence_typing)
def sequence_from_rows(value):
    """The rows of the leaves as the elements of a sequence.

    Example:
        >>> elements = fc.sequence_from_rows(matrix)
    """

    def row(x, i):
        return tuple(row(part, i) for part in x) if isinstance(x, tuple) else x[i]

    def count(x):
        return count(x[0]) if isinstance(x, tuple) else len(x)

    return [row(value, i) for i in range(count(value))]


def no_rows(type_: Type) -> StructType | Type:
    """The type of the leaves with a first axis of no rows."""
    return map_tensors(lambda t: TensorType(t.dtype, (0, *t.sizes)), type_)

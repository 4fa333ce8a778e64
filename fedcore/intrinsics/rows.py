"""Local operations on tensors of rows (first axis): collected client values, and conversion to sequences.

A plan broadcasts a server's sequence as its columns, so metering and executors treat it as any broadcast.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from fedcore.errors import TypeMismatch
from fedcore.intrinsics.numerics import NumpyValue, leafwise
from fedcore.ir import Builder, Value
from fedcore.ir.module import Attributes
from fedcore.ir.operations import operation
from fedcore.ir.structural import item
from fedcore.types import SequenceType, StructType, TensorType, Type, is_static, leaves, map_tensors, tensor_leaves


def _rows_of(type_: Type, name: str) -> int | None:
    """Number of rows of the leaves of a type; None if it is unknown.

    Raises:
        TypeMismatch: a leaf has no first axis, or leaves have different numbers of rows; `name` is the operation's.
    """
    sizes = set()
    for path, leaf in leaves(type_):
        if not isinstance(leaf, TensorType) or not leaf.shape:
            raise TypeMismatch(f"{name}: {path or 'it'} is {leaf}, which has no first axis to count rows by")
        sizes.add(leaf.shape[0])
    if len(sizes) != 1:
        raise TypeMismatch(f"{name}: the leaves of {type_} have not equally many rows")
    return sizes.pop()


def _as_row_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    return map_tensors(lambda t: TensorType(t.dtype, (1, *t.sizes)), types[0])


@operation(_as_row_typing)
def as_row(value: NumpyValue) -> NumpyValue:
    """Gives every leaf a first axis of size 1."""
    return leafwise(lambda x: x[np.newaxis], value)


def _append_rows_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    for type_ in types:
        _rows_of(type_, "append_rows")
    return map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes[1:])), types[0])


@operation(_append_rows_typing)
def append_rows(left: NumpyValue, right: NumpyValue, *, at_most: int | None = None) -> NumpyValue:
    """The rows of `left` followed by those of `right`; the first `at_most` of them, if it is given."""
    return leafwise(lambda a, b: np.concatenate([a, b])[:at_most], left, right)


def _sequence_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    _rows_of(types[0], "sequence_from_rows")
    return SequenceType(map_tensors(lambda t: TensorType(t.dtype, t.sizes[1:]), types[0]))


@operation(_sequence_typing)
def sequence_from_rows(value: np.ndarray | tuple) -> list[NumpyValue]:
    """The rows of the leaves as the elements of a sequence.

    Example:
        >>> elements = fc.sequence_from_rows(matrix)
    """

    def row(x: np.ndarray | tuple, i: int) -> NumpyValue:
        return tuple(row(part, i) for part in x) if isinstance(x, tuple) else x[i]

    return [row(value, i) for i in range(_count_rows(value))]


def _count_rows(value: np.ndarray | tuple) -> int:
    """The number of rows that all leaves of a value have."""

    def tensors(part: np.ndarray | tuple) -> Iterator[np.ndarray]:
        if isinstance(part, tuple):
            for element in part:
                yield from tensors(element)
        else:
            yield part

    return len(next(tensors(value)))  # a struct without elements has no rows to count


def _groups_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    value, splits = types
    _rows_of(value, "sequence_from_groups")
    if not isinstance(splits, TensorType) or splits.dtype.name != "int64" or splits.rank != 1:
        raise TypeMismatch(f"sequence_from_groups: `splits` is an int64 vector, not {splits}")
    return SequenceType(map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes[1:])), value))


@operation(_groups_typing)
def sequence_from_groups(value: NumpyValue, splits: np.ndarray) -> list[NumpyValue]:
    """Groups of rows as the elements of a sequence: element i has the rows `splits[i]` to `splits[i + 1] - 1`.

    `splits` starts with 0, does not decrease, and ends with the number of rows.

    Example:
        >>> batches = fc.sequence_from_groups(matrix, np.array([0, 2]))
    """
    return [leafwise(lambda x, a=a, b=b: x[a:b], value) for a, b in itertools.pairwise(splits)]


def no_rows(type_: Type) -> StructType | Type:
    """The type with 0 rows: each leaf gets a first axis of size 0."""
    return map_tensors(lambda t: TensorType(t.dtype, (0, *t.sizes)), type_)


# Sequences as columns.


def why_no_columns(element: Type) -> str | None:
    """Why columns cannot hold elements of the type; None if they can."""
    element_leaves = [leaf for _, leaf in leaves(element)]
    if not element_leaves or not all(isinstance(t, TensorType) for t in element_leaves):
        return f"an element of type {element} holds no tensors, or more than tensors"
    for t in tensor_leaves(element):
        if t.shape is None or None in t.shape[1:]:
            return f"elements of {t} may differ in more than their first dimension; pad them"
    if len({bool(t.shape) and t.sizes[0] is None for t in tensor_leaves(element)}) > 1:
        return f"in {element} only some of the leaves have a first dimension that is unknown; pad those"
    return None


def in_columns(type_: Type) -> Type:
    """The type with each sequence replaced by the type of its columns."""
    if isinstance(type_, SequenceType):
        return columns_type(type_.element)
    return type_.map_children(in_columns) if isinstance(type_, StructType) else type_


def is_grouped(element: Type) -> bool:
    """Whether the elements of a sequence are groups of rows, whose numbers differ from element to element."""
    return any(bool(t.shape) and t.sizes[0] is None for t in tensor_leaves(element))


def columns_type(element: Type) -> Type:
    """The type of the columns of a sequence; for elements that are groups of rows, `<columns,splits>`."""
    if not is_grouped(element):
        return map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes)), element)
    return StructType([(None, element), (None, TensorType("int64", (None,)))])


def _columns_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    (sequence,) = types
    if not isinstance(sequence, SequenceType):
        raise TypeMismatch(f"columns_of_sequence takes a sequence, not {sequence}")
    problem = why_no_columns(sequence.element)
    if problem is not None:
        raise TypeMismatch(f"columns_of_sequence: {problem}")
    return columns_type(sequence.element)


@operation(_columns_typing, attributes=("grouped",))
def columns_of_sequence(
    value: list[np.ndarray | tuple], *, grouped: bool, operand_types: tuple[SequenceType]
) -> NumpyValue:
    """The elements of a sequence as the rows of columns; with `grouped`, groups of rows and their splits."""
    element = operand_types[0].element

    def column(parts: list, type_: Type) -> NumpyValue:
        """The columns of a part of all elements, one below the other."""
        if isinstance(type_, StructType):
            return tuple(column([part[i] for part in parts], t) for i, t in enumerate(type_.types))
        assert isinstance(type_, TensorType)
        rows = [part if grouped else np.asarray(part)[np.newaxis] for part in parts]
        sizes = type_.sizes[1:] if grouped else type_.sizes
        assert is_static(sizes)
        return np.concatenate([np.zeros((0, *sizes), type_.dtype.numpy), *rows])

    columns = column(value, element)
    if not grouped:
        return columns
    return columns, np.cumsum([0, *map(_count_rows, value)], dtype=np.int64)


def columns_of(builder: Builder, value: Value) -> Value:
    """The value with each sequence in it replaced by its columns; `sequences_of` is the inverse."""
    if isinstance(value.type, SequenceType):
        return columns_of_sequence.emit([value], builder=builder, grouped=is_grouped(value.type.element))
    if not isinstance(value.type, StructType) or value.type == in_columns(value.type):
        return value
    return builder.append("struct", [columns_of(builder, v) for v in _items(builder, value)], in_columns(value.type))


def sequences_of(builder: Builder, value: Value, type_: Type) -> Value:
    """The value of a type whose sequences `columns_of` has replaced by columns."""
    if isinstance(type_, SequenceType):
        if is_grouped(type_.element):
            return sequence_from_groups.emit(_items(builder, value), builder=builder)
        return sequence_from_rows.emit([value], builder=builder)
    if not isinstance(type_, StructType):
        return value
    parts = [sequences_of(builder, v, t) for v, t in zip(_items(builder, value), type_.types, strict=True)]
    return builder.append("struct", parts, type_)


def _items(builder: Builder, value: Value) -> list[Value]:
    """The elements of a struct, taken by this builder rather than by the active one."""
    assert isinstance(value.type, StructType)
    return [item.emit([value], builder=builder, index=i) for i in range(len(value.type))]

"""Sequences as results of graphs: a loop writes every element into columns.

Elements of one static shape are the rows of the columns. Elements with an unknown first dimension, such as batches, are
groups of rows: the columns concatenate the rows of all groups, and the int64 vector `splits` has the row at which each
group begins, and the number of rows at its end.
"""

from typing import Any, TypeAlias

import tensorflow as tf

from fedcore.graphs.graphdef.form.sequence_operands import IndexedSequence
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Sequence, rows
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import Nested, flatten, leaves_of, unflatten
from fedcore.intrinsics.rows import is_grouped
from fedcore.types import SequenceType, StructType, Type, tensor_leaves

Arrays: TypeAlias = tuple[tf.TensorArray, ...]
"""For each leaf of the elements an array, and one of the sizes of groups if the sequence is grouped."""


def as_columns(sequence: IndexedSequence, element: Type) -> list[tf.Tensor]:
    """The columns of a sequence (`count`, and `element`: index -> nested tuple), and its splits if it is grouped."""

    def step(i: tf.Tensor, arrays: Arrays) -> tuple[tf.Tensor, Arrays]:
        return i + 1, _write_element(arrays, i, flatten(sequence.element(i)), element)

    start = (tf.constant(0, tf.int64), _arrays(element))
    _, arrays = tf.while_loop(lambda i, _: i < sequence.count, step, start)
    return _columns(arrays, element)


def from_dataset(dataset: tf.data.Dataset, element: Type) -> Sequence:
    """The sequence of a `tf.data.Dataset` inside a graph; the dataset is iterated once."""

    def step(state: tuple[tf.Tensor, Arrays], x: Any) -> tuple[tf.Tensor, Arrays]:
        i, arrays = state
        return i + 1, _write_element(arrays, i, leaves_of(x, element), element)

    _, arrays = dataset.reduce((tf.constant(0, tf.int64), _arrays(element)), step)
    columns = _columns(arrays, element)
    if is_grouped(element):
        return groups(columns[:-1], columns[-1], element)
    return rows(element, columns)


def _arrays(element: Type) -> Arrays:
    """The arrays of a sequence before its first element."""
    arrays = [
        tf.TensorArray(spec(t).dtype, 0, dynamic_size=True, infer_shape=False, element_shape=t.shape)
        for t in tensor_leaves(element)
    ]
    sizes = [tf.TensorArray(tf.int64, 0, dynamic_size=True, element_shape=())] if is_grouped(element) else []
    return (*arrays, *sizes)


def _write_element(arrays: Arrays, i: tf.Tensor, leaves: list[tf.Tensor], element: Type) -> Arrays:
    """The arrays after the leaves of element i, and the size of its group, have been written to them.

    The graph fails where the leaves of a group have several numbers of rows.
    """
    if is_grouped(element):
        sizes = [tf.shape(leaf, out_type=tf.int64)[0] for leaf in leaves]
        checks = [tf.debugging.Assert(tf.equal(n, sizes[0]), [_UNEQUAL, n, sizes[0]]) for n in sizes[1:]]
        with tf.control_dependencies([check for check in checks if check is not None]):
            leaves = [*leaves, tf.identity(sizes[0])]
    return tuple(a.write(tf.cast(i, tf.int32), leaf) for a, leaf in zip(arrays, leaves, strict=True))


_UNEQUAL = "the leaves of an element have unequal first dimensions"


def _columns(arrays: Arrays, element: Type) -> list[tf.Tensor]:
    """The columns of all elements that were written, and the splits if the sequence is grouped."""
    types = tensor_leaves(element)
    if not is_grouped(element):
        return [tf.ensure_shape(a.stack(), (None, *t.sizes)) for a, t in zip(arrays, types, strict=True)]
    *joined, sizes = arrays
    splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(sizes.stack())], 0)
    return [*(tf.ensure_shape(a.concat(), t.shape) for a, t in zip(joined, types, strict=True)), splits]


def groups(columns: list[tf.Tensor], splits: tf.Tensor, element: Type) -> Sequence:
    """The sequence of groups of rows, inside a graph.

    Args:
        splits: int64 [groups + 1], the row at which each group begins, and the number of rows.
    """

    def group(i: tf.Tensor) -> Nested:
        return unflatten([c[splits[i] : splits[i + 1]] for c in columns], element)

    return Sequence(tf.shape(splits, tf.int64)[0] - 1, group)


def result_tensors(value: Nested, type_: Type) -> list[tf.Tensor]:
    """The tensors by which a graph returns a value; the inverse of `result_value`."""
    if isinstance(type_, StructType):
        return [tensor for v, t in zip(value, type_.types, strict=True) for tensor in result_tensors(v, t)]
    return as_columns(value, type_.element) if isinstance(type_, SequenceType) else [value]


def result_value(tensors: list, type_: Type) -> Nested:
    """The value of a graph's result tensors, with sequences as `Columns`.

    Args:
        tensors: those of the value, and maybe of values behind it; those of the value are removed from the list.
    """
    if isinstance(type_, StructType):
        return tuple([result_value(tensors, t) for t in type_.types])
    if not isinstance(type_, SequenceType):
        return tensors.pop(0)
    count = len(tensor_leaves(type_.element))
    columns, tensors[:count] = tensors[:count], []
    splits = tensors.pop(0).numpy() if is_grouped(type_.element) else None
    return Columns(type_.element, columns, groups=splits)

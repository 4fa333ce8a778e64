"""Sequences that leave a graph: every element is drawn, and goes out in columns.

Elements of one shape are the rows of the columns. Where a first dimension is unknown, as that of batches is, elements
are groups of rows: the columns hold the rows of all, and `splits` says where each group begins and ends.
"""

import numpy as np
import tensorflow as tf

from fedcore.graphs.columns import Columns
from fedcore.graphs.sequences import Sequence
from fedcore.graphs.trace import spec
from fedcore.graphs.values import flatten, leaves_of, unflatten
from fedcore.intrinsics.rows import is_grouped
from fedcore.types import SequenceType, StructType, TensorType, Type, tensor_leaves


def as_columns(sequence, element: Type) -> list[tf.Tensor]:
    """The columns of a sequence (`count`, and `element`: index -> nested tuple), and its splits where it is grouped."""
    if is_grouped(element):
        return _as_groups(sequence, element)
    signature = tuple(spec(t) for t in tensor_leaves(element))
    rows = tf.map_fn(
        lambda i: tuple(flatten(sequence.element(i))), tf.range(sequence.count), fn_output_signature=signature
    )
    return list(rows)


def _as_groups(sequence, element: Type) -> list[tf.Tensor]:
    types = tensor_leaves(element)
    arrays = [
        tf.TensorArray(spec(t).dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=t.shape)
        for t in types
    ]
    sizes = tf.TensorArray(tf.int64, size=0, dynamic_size=True, element_shape=[])

    def step(i, sizes, arrays):
        parts = flatten(sequence.element(i))
        rows = [tf.shape(p, out_type=tf.int64)[0] for p in parts]
        equal = [
            tf.debugging.Assert(tf.equal(n, rows[0]), ["the leaves of an element have unequal first dimensions", rows])
            for n in rows[1:]
        ]
        with tf.control_dependencies([e for e in equal if e is not None]):
            size = tf.identity(rows[0])
        at = tf.cast(i, tf.int32)
        return i + 1, sizes.write(at, size), [a.write(at, p) for a, p in zip(arrays, parts, strict=True)]

    start = (tf.constant(0, tf.int64), sizes, arrays)
    _, sizes, arrays = tf.while_loop(lambda i, *_: i < sequence.count, step, start)
    splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(sizes.stack())], 0)
    return [*(tf.ensure_shape(a.concat(), t.shape) for a, t in zip(arrays, types, strict=True)), splits]


def from_dataset(dataset: tf.data.Dataset, element: Type) -> Sequence:
    """The sequence of a dataset that a traced body has made: it is run through once, in order."""
    types = tensor_leaves(element)
    columns = [tf.zeros([0, *_known(t)], spec(t).dtype) for t in types]
    if not is_grouped(element):
        # One batch of all elements: a state of columns would be copied with each element.
        together = dataset.batch(np.iinfo(np.int64).max)
        shapes = [(None, *t.sizes) for t in types]
        columns = _last(together, element, columns, shapes, lambda state, batch: batch)
        return Sequence(
            tf.shape(columns[0], tf.int64)[0], lambda i: unflatten([tf.gather(c, i) for c in columns], element)
        )
    columns = [tf.zeros([0, *_known(t)[1:]], spec(t).dtype) for t in types]

    def appended(state, group):
        *joined, splits = state
        end = splits[-1:] + tf.shape(group[0], tf.int64)[:1]
        return [*(tf.concat([a, b], 0) for a, b in zip(joined, group, strict=True)), tf.concat([splits, end], 0)]

    shapes = [t.sizes for t in types] + [(None,)]
    *columns, splits = _last(dataset, element, [*columns, tf.zeros([1], tf.int64)], shapes, appended)
    return groups(columns, splits, element)


def _last(dataset: tf.data.Dataset, type_: Type, state: list[tf.Tensor], shapes, step) -> list[tf.Tensor]:
    """The state after the last element; its shapes change on the way."""
    out = dataset.reduce(tuple(state), lambda s, x: tuple(step(list(s), leaves_of(x, type_))))
    return [tf.ensure_shape(t, shape) for t, shape in zip(out, shapes, strict=True)]


def _known(type_: TensorType) -> tuple[int, ...]:
    return tuple(0 if size is None else size for size in type_.sizes)


def groups(columns: list[tf.Tensor], splits: tf.Tensor, element: Type) -> Sequence:
    """The sequence of groups of rows, inside a graph."""

    def group(i):
        return unflatten([c[splits[i] : splits[i + 1]] for c in columns], element)

    return Sequence(tf.shape(splits, tf.int64)[0] - 1, group)


def leaving(value, type_: Type) -> list[tf.Tensor]:
    """The tensors of a value that a stage returns; see `arrived`."""
    if isinstance(type_, StructType):
        return [tensor for v, t in zip(value, type_.types, strict=True) for tensor in leaving(v, t)]
    return as_columns(value, type_.element) if isinstance(type_, SequenceType) else [value]


def arrived(tensors: list, type_: Type):
    """The value outside, its sequences as `Columns`; takes its tensors from the front of the list."""
    if isinstance(type_, StructType):
        return tuple(arrived(tensors, t) for t in type_.types)
    if not isinstance(type_, SequenceType):
        return tensors.pop(0)
    count = len(tensor_leaves(type_.element))
    columns, tensors[:count] = tensors[:count], []
    splits = tensors.pop(0).numpy() if is_grouped(type_.element) else None
    return Columns(type_.element, columns, groups=splits)

"""Sizes in bits of values whose types do not determine them: strings, codes, sequences, unknown dimensions, and tables
that cross as their non-zero rows.

A client's value is measured in the graph that folds it: repeated calls count once, dropped clients not at all.
"""

from typing import Any

import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.tensors.values import Nested, flatten
from fedcore.intrinsics.sent_values import crosses_in_rows, row_bits
from fedcore.types import SequenceType, TensorType, Type, leaves, tensor_leaves


def measured_leaves(type_: Type, table_rows: int = 0) -> list[int]:
    """The positions of the leaves whose sizes are measured.

    Args:
        table_rows: of the stage that sends the value, see `crosses_in_rows`; 0 for other values.
    """
    return [
        i
        for i, (_, leaf) in enumerate(leaves(type_))
        if getattr(leaf, "size_bits", None) is None or crosses_in_rows(leaf, table_rows)
    ]


def measured_bits(value: Nested, type_: Type, table_rows: int = 0) -> list[tf.Tensor]:
    """The sizes in bits of the measured leaves: int64 scalars, also inside a graph."""
    parts, types = flatten(value), leaves(type_)
    return [measured_size(parts[i], types[i][1]) for i in measured_leaves(type_, table_rows)]


def measured_size(leaf: Any, type_: Type) -> tf.Tensor:
    """The size in bits of a measured leaf; of a table or of codes with a client axis, int64 [clients]."""
    if getattr(type_, "size_bits", None) is None:
        return bits_of(leaf, type_)
    return bits_of_rows(ops.equal(ops.operation("Bitcast", leaf, type=tf.int32), 0), type_)  # -0.0 has a bit


def bits_of_rows(is_zero: tf.Tensor, type_: Type) -> tf.Tensor:
    """The size in bits of tables that cross in rows, int64 [...].

    Args:
        is_zero: bool [..., r, m], of the entries of all rows that may be non-zero.
        type_: of a table.
    """
    assert isinstance(type_, TensorType)
    count = ops.reduce_sum(ops.cast(~ops.reduce_all(is_zero, -1), tf.int64), -1)
    return ops.minimum(count * row_bits(type_), type_.size_bits or 0)


def bits_of(leaf: Any, type_: Type) -> tf.Tensor:
    """The size in bits of a leaf, an int64 scalar; of codes with a client axis, int64 [clients]."""
    if isinstance(type_, SequenceType):
        types = tensor_leaves(type_.element)

        def add(total: tf.Tensor, element: Nested) -> tf.Tensor:
            return total + ops.add_n(
                [bits_of(t, leaf_type) for t, leaf_type in zip(flatten(element), types, strict=True)]
            )

        return leaf.reduce(ops.constant(0, tf.int64), add, TensorType("int64"))
    if isinstance(type_, TensorType) and type_.dtype.name == "code":
        size = ops.cast(ops.operation("Bitcast", leaf[..., :4], type=tf.int32), tf.int64)  # its first 4 bytes
        most_bits = 8 * (int(leaf.shape[-1]) - 4)
        return ops.minimum(ops.maximum(size, 0), most_bits)  # a code that was altered in transit may have any size
    if not isinstance(type_, TensorType) or type_.dtype.bits is None:
        return 8 * ops.reduce_sum(ops.cast(ops.operation("StringLength", leaf), tf.int64))
    return ops.size(leaf, tf.int64) * type_.dtype.bits

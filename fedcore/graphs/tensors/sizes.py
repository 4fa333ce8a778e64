"""Sizes in bits of values whose types do not determine them: strings, codes, sequences and unknown dimensions.

A client's value is measured in the graph that folds it: repeated calls count once, dropped clients not at all.
"""

from typing import Any

import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.tensors.values import Nested, flatten
from fedcore.types import SequenceType, TensorType, Type, leaves, tensor_leaves


def unsized_leaves(type_: Type) -> list[int]:
    """The positions of the leaves whose types determine no size."""
    return [i for i, (_, leaf) in enumerate(leaves(type_)) if getattr(leaf, "size_bits", None) is None]


def measured_bits(value: Nested, type_: Type) -> list[tf.Tensor]:
    """The sizes in bits of the leaves without a static size: int64 scalars, also inside a graph."""
    parts, types = flatten(value), leaves(type_)
    return [bits_of(parts[i], types[i][1]) for i in unsized_leaves(type_)]


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
        says, room = (
            ops.cast(ops.operation("Bitcast", leaf[..., :4], type=tf.int32), tf.int64),
            8 * (int(leaf.shape[-1]) - 4),
        )
        return ops.minimum(ops.maximum(says, 0), room)  # a code that was altered in transit may say anything
    if not isinstance(type_, TensorType) or type_.dtype.bits is None:
        return 8 * ops.reduce_sum(ops.cast(ops.operation("StringLength", leaf), tf.int64))
    return ops.size(leaf, tf.int64) * type_.dtype.bits

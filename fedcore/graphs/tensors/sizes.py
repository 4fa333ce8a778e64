"""Sizes in bits of values whose types do not determine them: strings, sequences and unknown dimensions."""

import tensorflow as tf

from fedcore.graphs.tensors.values import flatten
from fedcore.types import SequenceType, TensorType, Type, leaves, tensor_leaves


def unsized(type_: Type) -> list[int]:
    """The positions of the leaves whose types determine no size."""
    return [i for i, (_, leaf) in enumerate(leaves(type_)) if getattr(leaf, "size_bits", None) is None]


def measured_bits(value, type_: Type) -> list[tf.Tensor]:
    """The sizes in bits of the `unsized` leaves: int64 scalars, also inside a graph."""
    found, types = flatten(value), leaves(type_)
    return [_bits(found[i], types[i][1]) for i in unsized(type_)]


def _bits(leaf, type_: Type) -> tf.Tensor:
    if isinstance(type_, SequenceType):
        types = tensor_leaves(type_.element)

        def add(total, element):
            return total + tf.add_n([_bits(t, leaf_type) for t, leaf_type in zip(flatten(element), types, strict=True)])

        return leaf.reduce(tf.constant(0, tf.int64), add, TensorType("int64"))
    if not isinstance(type_, TensorType) or type_.dtype.bits is None:
        return 8 * tf.reduce_sum(tf.cast(tf.strings.length(leaf), tf.int64))
    return tf.size(leaf, tf.int64) * type_.dtype.bits

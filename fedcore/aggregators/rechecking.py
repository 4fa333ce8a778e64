"""Bounds that hold for a client that lies: the server applies them once more to what arrives.

A client's stage bounds a value, marks it as what crosses (`message`), and bounds it once more after that. So over a
network of sites the first bound is the site's and the second the server's. In one process both run, and the second
changes nothing. Nothing is marked where sums are secure, since the server then sees no value, nor where an encoder
marks its codes.

Decision 0305.
"""

from collections.abc import Callable

import tensorflow as tf

from fedcore.computation import Computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_map, message
from fedcore.ir.values import Value

SLACK = 1.01
"""The factor by which the norm of a value may exceed its bound: an honest one exceeds it by rounding only."""

MAX_WEIGHT = 1e30
"""The largest weight of a client: products with it, and sums of these, stay finite."""


def recheck(value: Value, bound: Callable[..., TensorStructure] | Computation, *shared: Value) -> Value:
    """A client value as it crosses, bounded once more.

    Args:
        bound: function (value, shared…) -> the value in its bounds; honest values stay as they are, to the bit.
        shared: broadcast values.
    """
    sent = federated_map(lambda part: message(part), value)
    return federated_map(bound, (sent, *shared) if shared else sent)


def bounded_if_exceeding(
    value: TensorStructure, bounded: TensorStructure, norm: tf.Tensor, limit: tf.Tensor
) -> TensorStructure:
    """The bounded value if the norm exceeds the limit by more than rounding does, as a lying client's; else the value.

    Args:
        bounded: the value with a norm of at most `limit`.
        norm: of the value.
    """
    exceeds = norm > SLACK * tf.cast(limit, norm.dtype)
    return tf.nest.map_structure(lambda part, sent: tf.where(exceeds, part, sent), bounded, value)


def adds_in_the_clear(next_fn: Computation) -> bool:
    """Whether an aggregation adds client values as they are: no secure sums, and no messages of its own."""
    kinds = {op.kind for function in next_fn.module.functions for op in function.operations}
    return "message" not in kinds and not any(kind.startswith("federated_secure") for kind in kinds)


@tf_computation
def zero_or_one(bit: tf.Tensor) -> tf.Tensor:
    """The number, at least 0 and at most 1."""
    return tf.clip_by_value(bit, tf.cast(0, bit.dtype), tf.cast(1, bit.dtype))


@tf_computation
def weight_in_bounds(weight: tf.Tensor) -> tf.Tensor:
    """The weight, at least 0; a float is at most `MAX_WEIGHT`, or the largest of its dtype if that is less."""
    positive = tf.maximum(weight, tf.cast(0, weight.dtype))
    if not weight.dtype.is_floating:
        return positive
    return tf.minimum(positive, tf.cast(min(MAX_WEIGHT, float(weight.dtype.max)), weight.dtype))

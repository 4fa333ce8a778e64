"""Sums of client values that are bounded and made integers, as secure sums need them."""

import math

import numpy as np
import tensorflow as tf

from fedcore.aggregators.factory import client_member
from fedcore.computation import tf_computation
from fedcore.errors import InvalidValue, TypeMismatch
from fedcore.intrinsics import (
    federated_broadcast,
    federated_map,
    federated_secure_sum,
    federated_value,
    federated_zip,
    generic_zero,
)
from fedcore.ir.values import Value
from fedcore.scalars import real_number
from fedcore.types import (
    SERVER,
    FederatedType,
    TensorType,
    Type,
    map_tensors,
    member_of,
    strip_containers,
    tensor_leaves,
)

_LEVELS = 2**32 - 1
_EXACT = 2**53  # integers up to here are exact in the float64 that bounds are in


def quantized(leaf: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """int64 codes from 0 of a tensor clipped into [low, high], two float64; floats get 2^32 levels. NaN is `low`."""
    x = tf.cast(leaf, tf.float64)
    x = tf.clip_by_value(tf.where(tf.math.is_nan(x), low, x), low, high)
    if leaf.dtype.is_integer:
        scaled = x - tf.math.ceil(low)
    else:
        scaled = tf.math.divide_no_nan(x - low, high - low) * _LEVELS
    return tf.cast(tf.round(scaled), tf.int64)


def dequantized(code: tf.Tensor, count: tf.Tensor, leaf: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """The sum of `count` tensors like `leaf`, of which `code` is the sum of the codes."""
    x, n = tf.cast(code, tf.float64), tf.cast(count, tf.float64)
    x = x + n * tf.math.ceil(low) if leaf.dtype.is_integer else x / _LEVELS * (high - low) + n * low
    return tf.cast(x, leaf.dtype)


def largest_code(type_: Type, bounds: tuple[float, float] | None) -> int:
    """The greatest code of any leaf; bounds that are not known before the program runs are None."""
    if not any(t.dtype.is_integer for t in tensor_leaves(type_)):
        return _LEVELS
    if bounds is None:
        return _EXACT
    return max(_LEVELS, math.floor(bounds[1]) - math.ceil(bounds[0]))


def secure_quantized_sum(client_value, lower_bound, upper_bound) -> Value:
    """The secure sum of a client value, of which every element is clipped into [lower, upper] first.

    Types, for numeric real V, with B a real scalar or a struct as V with a scalar for each leaf:
        ({V}@CLIENTS, B@SERVER, B@SERVER) -> V@SERVER

    Floats are rounded to one of 2^32 levels between the bounds. Integers are exact up to 2^53 (TFF rounds those of
    ranges above 2^32). A NaN counts as the lower bound. No clients give zeros.

    Args:
        client_value: inside a federated computation.
        lower_bound: Python numbers, or a server value; NaN and infinity are no bounds.
        upper_bound: of the structure of `lower_bound`, and at least as large. Equal bounds give n times the bound.
    Raises:
        TypeMismatch: the value is not at the clients or not real, a bound has another structure, or one bound is a
            server value and the other is not.
        FedcoreError: a lower bound is greater than its upper bound.
    Source: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", section 4.
    Example:
        >>> @fc.federated_computation(fc.FederatedType('float32', fc.CLIENTS))
        ... def total(values):
        ...     return fc.aggregators.secure_quantized_sum(values, -8.0, 8.0)
        >>> round(float(total([1.5, 100.0])), 5)
        9.5
    """
    who = "secure_quantized_sum"
    type_ = client_member(client_value, who)
    if not all(t.dtype.is_real for t in tensor_leaves(type_)):
        raise TypeMismatch(f"{who} adds real values, not {type_}")
    fixed = None
    if isinstance(lower_bound, Value) != isinstance(upper_bound, Value):
        raise TypeMismatch(f"{who}: both bounds are server values, or both are Python numbers")
    if not isinstance(lower_bound, Value):
        lower_bound, upper_bound = _numbers("lower_bound", lower_bound), _numbers("upper_bound", upper_bound)
        lows, highs = tf.nest.flatten(lower_bound), tf.nest.flatten(upper_bound)
        if len(lows) == len(highs) and any(low > high for low, high in zip(lows, highs, strict=True)):
            raise InvalidValue(f"{who}: lower_bound is at most upper_bound, not {lower_bound} and {upper_bound}")
        fixed = (min(lows), max(highs))
        lower_bound, upper_bound = federated_value(lower_bound, SERVER), federated_value(upper_bound, SERVER)
    for name, bound in (("lower_bound", lower_bound), ("upper_bound", upper_bound)):
        _check_bound(name, bound.type, type_)

    @tf_computation(type_, lower_bound.type.member, upper_bound.type.member)
    def encode(value, low, high):
        return _leafwise(quantized, value, low, high), tf.constant(1, tf.int64)

    @tf_computation(
        encode.type_signature.result[0],
        TensorType("int64"),
        type_,
        lower_bound.type.member,
        upper_bound.type.member,
    )
    def decode(codes, count, like, low, high):
        like_code = iter(tf.nest.flatten(codes))
        return _leafwise(lambda leaf, *b: dequantized(next(like_code), count, leaf, *b), like, low, high)

    bounds = federated_zip((lower_bound, upper_bound))
    sent = federated_map(lambda v, b: encode(v, b[0], b[1]), (client_value, federated_broadcast(bounds)))
    codes, counts = federated_secure_sum(sent[0], largest_code(type_, fixed)), federated_secure_sum(sent[1], 1)
    return federated_map(lambda c, n, b: decode(c, n, generic_zero(type_), b[0], b[1]), (codes, counts, bounds))


def _check_bound(name: str, bound: Type, value: Type) -> None:
    """Refuses bounds that are no real scalar at the server, and no struct of these as the value is."""
    scalars = all(t.dtype.is_real and t.shape == () for t in tensor_leaves(bound))
    at_server = isinstance(bound, FederatedType) and bound.placement == SERVER
    one = isinstance(member_of(bound), TensorType)
    if not scalars or not at_server or not (one or _structure(member_of(bound)) == _structure(value)):
        raise TypeMismatch(
            f"secure_quantized_sum: {name} is a number at the server, or a struct of numbers as the value {value}, not "
            f"{bound}"
        )


def _structure(type_: Type) -> Type:
    return strip_containers(map_tensors(lambda t: TensorType("float64"), type_))


def _leafwise(fn, value, low, high):
    """`fn(leaf, low, high)` for each leaf, the bounds in float64."""
    leaves = tf.nest.flatten(value)
    lows, highs = (_for_each(leaves, bound) for bound in (low, high))
    return tf.nest.pack_sequence_as(value, [fn(x, a, b) for x, a, b in zip(leaves, lows, highs, strict=True)])


def _for_each(leaves: list, bound) -> list:
    found = [tf.cast(b, tf.float64) for b in tf.nest.flatten(bound)]
    return found if tf.nest.is_nested(bound) else found * len(leaves)


def _numbers(name: str, bound):
    return tf.nest.map_structure(lambda b: np.float64(real_number(name, b)), bound)

"""Sums of client values that are bounded and made integers, as secure sums need them."""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from fedcore.aggregators.factory import client_member, require
from fedcore.computation import tf_computation
from fedcore.errors import InvalidValue, TypeMismatch
from fedcore.graphs.tensors.structures import TensorStructure
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
    DType,
    FederatedType,
    TensorType,
    Type,
    as_dtype,
    map_tensors,
    member_of,
    strip_containers,
    tensor_leaves,
)

_STEPS = 2**32 - 2  # between the levels of floats; even, so that -b, 0 and b are levels of the bounds -b and b
_LARGEST_WHOLE = 2**53  # integers up to here are exact in the float64 that bounds are in
_LARGEST_FLOAT = float(np.finfo(np.float32).max)  # bounds are measured in float32


def largest_bound(dtype: DType) -> float:
    """The greatest magnitude of a bound for elements of a dtype."""
    return float(_LARGEST_WHOLE) if dtype.is_integer else _LARGEST_FLOAT


def check_fixed_bounds(dtype: DType, bounds: dict[str, float]) -> None:
    """Refuses bounds, by the names of the user's arguments, that the elements of a dtype cannot have.

    Raises:
        InvalidValue: a bound of integers is no whole number, or a bound is too large.
    """
    for name, bound in bounds.items():
        if dtype.is_integer and bound != math.floor(bound):
            raise InvalidValue(f"{name} is a whole number for elements of {dtype}, not {bound}")
        if abs(bound) > largest_bound(dtype):
            limit = "2^53" if dtype.is_integer else f"the largest float32, {_LARGEST_FLOAT:.6g},"
            raise InvalidValue(f"{name} is at most {limit} in magnitude for elements of {dtype}, not {bound}")


def _ordered_bounds(dtype: DType, low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """(low, high), float64, clipped to `largest_bound` in magnitude; high is at least low.

    Bounds of integers are rounded inwards.
    """
    limit = largest_bound(dtype)
    low, high = (tf.clip_by_value(bound, -limit, limit) for bound in (low, high))
    if dtype.is_integer:
        low, high = tf.math.ceil(low), tf.floor(high)
    return low, tf.maximum(low, high)


def _levels(low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The level nearest to 0, which is 0 itself if the bounds permit; its code, as float64; and the step.

    Zeros of any number of clients add to exactly 0, since 0 is a level.
    """
    zero, step = tf.clip_by_value(tf.zeros([], tf.float64), low, high), (high - low) / _STEPS
    return zero, tf.round(tf.math.divide_no_nan(zero - low, step)), step


def quantize(leaf: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """int64 codes, 0 for `low` and more above, of a tensor clipped into the float64 bounds; NaN counts as `low`."""
    dtype = as_dtype(leaf.dtype)
    low, high = _ordered_bounds(dtype, low, high)
    if dtype.is_integer:
        within = tf.minimum(leaf, _LARGEST_WHOLE) if dtype.name == "uint64" else leaf
        least, most = tf.cast(low, tf.int64), tf.cast(high, tf.int64)
        return tf.clip_by_value(tf.cast(within, tf.int64), least, most) - least
    x = tf.cast(leaf, tf.float64)
    x = tf.clip_by_value(tf.where(tf.math.is_nan(x), low, x), low, high)
    zero, code_of_zero, step = _levels(low, high)
    code = tf.round(tf.math.divide_no_nan(x - zero, step)) + code_of_zero
    return tf.cast(tf.clip_by_value(code, 0.0, _STEPS), tf.int64)


def dequantize(code: tf.Tensor, count: tf.Tensor, leaf: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """The sum of `count` tensors of the shape and dtype of `leaf`, from `code`, the int64 sum of their codes."""
    dtype = as_dtype(leaf.dtype)
    low, high = _ordered_bounds(dtype, low, high)
    if dtype.is_integer:  # a sum of codes that wraps is right again after this sum, which wraps back
        return tf.cast(code + count * tf.cast(low, tf.int64), leaf.dtype)
    zero, code_of_zero, step = _levels(low, high)
    steps = code - count * tf.cast(code_of_zero, tf.int64)
    return tf.cast(tf.cast(steps, tf.float64) * step + tf.cast(count, tf.float64) * zero, leaf.dtype)


def largest_code(type_: Type, bounds: tuple[float, float] | None) -> int:
    """The greatest code of any leaf.

    Args:
        bounds: (lower, upper), of several the widest; None if they are not known before the program runs.
    """
    if not any(t.dtype.is_integer for t in tensor_leaves(type_)):
        return _STEPS
    if bounds is None:
        return 2 * _LARGEST_WHOLE
    return max(_STEPS, math.floor(bounds[1]) - math.ceil(bounds[0]))


def secure_quantized_sum(
    client_value: Value, lower_bound: Value | TensorStructure, upper_bound: Value | TensorStructure
) -> Value:
    """The secure sum of a client value, of which every element is clipped into [lower, upper] first.

    Types, for numeric real V, with B a real scalar or a struct as V with a scalar for each leaf:
        ({V}@CLIENTS, B@SERVER, B@SERVER) -> V@SERVER

    Floats are rounded to one of 2^32 - 1 levels between the bounds; 0 is one of them where the bounds permit, so that
    zeros add to exactly 0. Integers are exact (TFF rounds those of ranges above 2^32), and their sum wraps as their
    dtype does. A NaN counts as the lower bound. No clients give zeros.

    Args:
        client_value: inside a federated computation.
        lower_bound: Python numbers, or a server value; NaN and infinity are no bounds. Bounds of integers are whole
            and at most 2^53 in magnitude, those of floats at most the largest float32. A server value that is not so
            counts as the nearest such number between the bounds.
        upper_bound: of the structure of `lower_bound`, and at least as large. Equal bounds give n times the bound.
    Raises:
        TypeMismatch: the value is not at the clients or not real, a bound has another structure, or one bound is a
            server value and the other is not.
        FedcoreError: a lower bound is greater than its upper bound, or a Python number is no such bound.
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
    require("real", type_, who)
    if isinstance(lower_bound, Value) != isinstance(upper_bound, Value):
        raise TypeMismatch(f"{who}: both bounds are server values, or both are Python numbers")
    fixed: list[tuple[float, float]] = []  # a pair for each leaf, or one for all; none if they are server values
    if not isinstance(lower_bound, Value):
        lower_bound, upper_bound = _numbers("lower_bound", lower_bound), _numbers("upper_bound", upper_bound)
        fixed = _fixed_bounds(lower_bound, upper_bound)
        lower_bound, upper_bound = federated_value(lower_bound, SERVER), federated_value(upper_bound, SERVER)
    for name, bound in (("lower_bound", lower_bound), ("upper_bound", upper_bound)):
        _check_bound(name, bound.type, type_)

    @tf_computation(type_, member_of(lower_bound.type), member_of(upper_bound.type))
    def encode(
        value: TensorStructure, low: TensorStructure, high: TensorStructure
    ) -> tuple[TensorStructure, tf.Tensor]:
        leaves = tf.nest.flatten(value)
        # While traced: fixed bounds are refused here, where the dtype of each leaf is known.
        for leaf, pair in zip(leaves, fixed if len(fixed) == len(leaves) else fixed * len(leaves), strict=False):
            names = (f"{who}: lower_bound", f"{who}: upper_bound")
            check_fixed_bounds(as_dtype(leaf.dtype), dict(zip(names, pair, strict=True)))
        return _leafwise(quantize, value, low, high), tf.constant(1, tf.int64)  # codes, and 1 to count the clients

    @tf_computation(
        encode.type_signature.result[0],  # type: ignore[index]
        TensorType("int64"),
        type_,
        member_of(lower_bound.type),
        member_of(upper_bound.type),
    )
    def decode(
        codes: TensorStructure, count: tf.Tensor, like: TensorStructure, low: TensorStructure, high: TensorStructure
    ) -> TensorStructure:
        remaining_codes = iter(tf.nest.flatten(codes))
        return _leafwise(lambda leaf, *b: dequantize(next(remaining_codes), count, leaf, *b), like, low, high)

    bounds = federated_zip((lower_bound, upper_bound))
    sent = federated_map(lambda v, b: encode(v, b[0], b[1]), (client_value, federated_broadcast(bounds)))
    widest = (min(low for low, _ in fixed), max(high for _, high in fixed)) if fixed else None
    codes, counts = federated_secure_sum(sent[0], largest_code(type_, widest)), federated_secure_sum(sent[1], 1)
    return federated_map(lambda c, n, b: decode(c, n, generic_zero(type_), b[0], b[1]), (codes, counts, bounds))


def _fixed_bounds(lower_bound: TensorStructure, upper_bound: TensorStructure) -> list[tuple[float, float]]:
    """The pairs (lower, upper) of two structures of numbers, leaf by leaf.

    Structures with different numbers of leaves are refused later, by `_check_bound`.

    Raises:
        InvalidValue: a lower bound is above its upper one.
    """
    lows, highs = tf.nest.flatten(lower_bound), tf.nest.flatten(upper_bound)
    if len(lows) == len(highs) and any(low > high for low, high in zip(lows, highs, strict=True)):
        raise InvalidValue(
            f"secure_quantized_sum: lower_bound is at most upper_bound, not {lower_bound} and {upper_bound}"
        )
    return [*zip(lows, highs, strict=False)]


def _check_bound(name: str, bound: Type, value: Type) -> None:
    """Refuses a bound that is neither a real scalar at the server nor a struct of such scalars like the value."""
    scalars = all(t.dtype.is_real and t.shape == () for t in tensor_leaves(bound))
    at_server = isinstance(bound, FederatedType) and bound.placement == SERVER
    is_tensor = isinstance(member_of(bound), TensorType)
    if not scalars or not at_server or not (is_tensor or _structure(member_of(bound)) == _structure(value)):
        raise TypeMismatch(
            f"secure_quantized_sum: {name} is a number at the server, or a struct of numbers as the value {value}, not "
            f"{bound}"
        )


def _structure(type_: Type) -> Type:
    """A type that is equal for equal structs, whatever the dtypes and shapes of their leaves and their containers."""
    return strip_containers(map_tensors(lambda t: TensorType("float64"), type_))


def _leafwise(
    fn: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    value: TensorStructure,
    low: TensorStructure,
    high: TensorStructure,
) -> TensorStructure:
    """`fn(leaf, low, high)` for each leaf, the bounds in float64."""
    leaves = tf.nest.flatten(value)
    lows, highs = (_bound_by_leaf(leaves, bound) for bound in (low, high))
    return tf.nest.pack_sequence_as(value, [fn(x, a, b) for x, a, b in zip(leaves, lows, highs, strict=True)])


def _bound_by_leaf(leaves: list, bound: TensorStructure) -> list:
    """One bound in float64 for each leaf; a single bound counts for all leaves."""
    bounds = [tf.cast(b, tf.float64) for b in tf.nest.flatten(bound)]
    return bounds if tf.nest.is_nested(bound) else bounds * len(leaves)


def _numbers(name: str, bound: TensorStructure) -> TensorStructure:
    """The user's argument `name` as float64 numbers; refuses what is no real number."""
    return tf.nest.map_structure(lambda b: np.float64(real_number(name, b)), bound)

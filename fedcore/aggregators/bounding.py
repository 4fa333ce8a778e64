"""Aggregators that bound the norm of a client's value: by scaling the value down, or by zeroing it."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.aggregators.factory import CreateInner, FactoryT, UnweightedAggregationFactory, require, wrapping_factory
from fedcore.aggregators.factory import aggregation_process as process_of
from fedcore.aggregators.rechecking import (
    adds_in_the_clear,
    bounded_if_exceeding,
    recheck,
    weight_in_bounds,
    zero_or_one,
)
from fedcore.aggregators.sum import sum_or_default
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_eval, federated_map, federated_value, federated_zip
from fedcore.ir.values import Value
from fedcore.scalars import python_scalar
from fedcore.templates import AggregationProcess, EstimationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, TensorType, Type, fits

_EXPONENTS = {tf.float32: (40, 80), tf.float64: (300, 600)}
"""Elements whose largest is beyond 2^±first are multiplied by 2^∓second: their squares stay finite and above 0."""


def _scaled_norm(value: TensorStructure, order: float) -> tuple[tf.Tensor, tf.Tensor]:
    """(norm of the scaled value, scale): powers of two scale values whose squares overflow or vanish, 1 all others.

    The dtype is float64 if a leaf has its precision, else float32. The norm is infinite where an element is not finite.
    """
    leaves = [_real_parts(x, order) if x.dtype.is_complex else x for x in tf.nest.flatten(value)]
    dtype = tf.float64 if any(x.dtype == tf.float64 for x in leaves) else tf.float32
    vector = tf.concat([tf.zeros([1], dtype), *(tf.reshape(tf.cast(x, dtype), [-1]) for x in leaves)], 0)
    largest, (exponent, shift) = tf.reduce_max(tf.abs(vector)), _EXPONENTS[dtype]
    if order == math.inf:
        # A maximum may pass over a NaN, so it is asked for by itself.
        return tf.where(tf.reduce_all(tf.math.is_finite(vector)), largest, math.inf), tf.ones([], dtype)
    smaller, one, greater = tf.unstack(tf.constant([2.0**-shift, 1.0, 2.0**shift], dtype))
    scale = tf.where(largest > 2.0**exponent, smaller, tf.where(largest < 2.0**-exponent, greater, one))
    scaled = vector * scale
    norm = tf.reduce_sum(tf.abs(scaled)) if order == 1 else tf.sqrt(tf.reduce_sum(tf.square(scaled)))
    return tf.where(tf.math.is_finite(norm), norm, math.inf), scale


def _real_parts(numbers: tf.Tensor, order: float) -> tf.Tensor:
    """Floats of the same norm as complex numbers: for the L2 norm their two parts, else their magnitudes."""
    return tf.stack([tf.math.real(numbers), tf.math.imag(numbers)]) if order == 2 else tf.abs(numbers)


def _unscaled(scaled_norm: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """The norm of a value, of what `_scaled_norm` returns. That of finite elements is at most the largest float."""
    norm = tf.minimum(scaled_norm / scale, scaled_norm.dtype.max)
    return tf.where(tf.math.is_finite(scaled_norm), norm, math.inf)


def norm_of(value: TensorStructure, order: float) -> tf.Tensor:
    """The norm of all leaves as one vector, float32 or float64; infinite where an element is not finite.

    A complex number counts with its magnitude.
    """
    return _unscaled(*_scaled_norm(value, order))


def clip_factors(value: TensorStructure, limit: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(factor, second factor, norm): multiplied by one and then by the other, the value's L2 norm is at most `limit`.

    Their product may be too small for a float. The dtype is that of `norm_of`.

    Decision 0296.
    """
    scaled_norm, scale = _scaled_norm(value, 2.0)
    norm, limit = _unscaled(scaled_norm, scale), tf.cast(limit, scaled_norm.dtype)
    ones = tf.ones([2], norm.dtype)
    factors = tf.where(norm > limit, tf.stack([scale, tf.math.divide_no_nan(limit, scaled_norm)]), ones)
    return factors[0], factors[1], norm


def clip_to_norm(value: TensorStructure, limit: tf.Tensor) -> tuple[TensorStructure, tf.Tensor]:
    """(the value scaled down to an L2 norm of at most `limit`, its norm); 0 or NaN where an element is not finite."""
    *factors, norm = clip_factors(value, limit)
    complex_dtype = tf.complex128 if norm.dtype == tf.float64 else tf.complex64

    def clip_leaf(leaf: tf.Tensor) -> tf.Tensor:
        wide = complex_dtype if leaf.dtype.is_complex else norm.dtype
        scale, ratio = (tf.cast(factor, wide) for factor in factors)
        return tf.cast(tf.cast(leaf, wide) * scale * ratio, leaf.dtype)

    return tf.nest.map_structure(clip_leaf, value), norm


def _bounding_factory(
    inner: FactoryT,
    norm: Any,
    bound: Callable[[TensorStructure, tf.Tensor], tuple[TensorStructure, tf.Tensor, tf.Tensor]],
    name: str,
    count: str,
    count_sum_factory: UnweightedAggregationFactory | None,
) -> FactoryT:
    """Bounds every client's value before `inner` aggregates it, and counts the clients whose value was changed.

    Where values cross in the clear, the server applies `bound` once more, to values whose norm exceeds the limit by
    more than rounding does, as those of a client that lies.

    Args:
        norm: the limit, or an `EstimationProcess` that adapts it to the norms of the clients' values.
        bound: (value, limit) -> (bounded value, whether it was changed, norm of the value), in a graph.
        name: `clipping` or `zeroing`, by which state and measurements name the parts.
        count: the name of the count in state and measurements, `clipped_count` or `zeroed_count`.
        count_sum_factory: adds the count. Default: `SumFactory`.
    """
    adaptive = isinstance(norm, EstimationProcess)
    norm = python_scalar(norm)
    if adaptive:
        _check_norm_process(f"{name}_norm", norm)
    elif not (isinstance(norm, int | float) and norm >= 0):
        raise FedcoreError(f"{name}_norm is a number of at least 0 or an estimation process, not {brief(norm)}")
    counts = sum_or_default(f"{count}_sum_factory", count_sum_factory).create(TensorType("int32"))

    def build(value_type: Type, weight_type: Type | None, create_inner: CreateInner) -> AggregationProcess:
        require("inexact", value_type, f"{name}_factory")
        process = create_inner(value_type)
        fixed = None if adaptive else tf_computation(lambda: tf.constant(norm, tf.float32))

        @tf_computation(value_type, TensorType("float32"))
        def apply_bound(value: TensorStructure, limit: tf.Tensor) -> dict[str, TensorStructure]:
            bounded, is_changed, norm = bound(value, limit)
            return {"bounded": bounded, count: tf.cast(is_changed, tf.int32), "norm": tf.cast(norm, tf.float32)}

        @tf_computation(value_type, TensorType("float32"))
        def apply_again(value: TensorStructure, limit: tf.Tensor) -> TensorStructure:
            bounded, _, norm = bound(value, limit)
            return bounded_if_exceeding(value, bounded, norm, limit)

        shared_type = FederatedType(TensorType("float32"), CLIENTS, True)

        # A call in the place of an `item`: noise behind it keeps its seed, which follows the operation's number.
        @federated_computation(FederatedType(apply_bound.type_signature.result, CLIENTS), shared_type)
        def recheck_value(bounded_values: Value, limit: Value) -> Value:
            return recheck(bounded_values.bounded, apply_again, limit)

        def states(norm_state: Value, inner_state: Value, count_state: Value) -> dict[str, Value]:
            return {f"{name}_norm": norm_state, "inner_agg": inner_state, f"{count}_agg": count_state}

        is_rechecked, is_count_rechecked = adds_in_the_clear(process.next), adds_in_the_clear(counts.next)

        @federated_computation
        def initialize() -> Value:
            inner_state, count_state = process.initialize(), counts.initialize()
            norm_state = norm.initialize() if adaptive else federated_value((), SERVER)
            return federated_zip(states(norm_state, inner_state, count_state))

        def body(state: Value, value: Value, weights: tuple[Value, ...]) -> MeasuredProcessOutput:
            """A round: bounds the values, aggregates them, and counts the values that were changed.

            Rechecks values and weights if the inner aggregation adds in the clear, and counts if their sum does.
            """
            norm_state = state[f"{name}_norm"]
            limit = norm.report(norm_state) if adaptive else federated_eval(fixed, SERVER)
            shared = federated_broadcast(limit)
            bounded_values = federated_map(apply_bound, (value, shared))
            inner_state = state.inner_agg
            bounded = recheck_value(bounded_values, shared) if is_rechecked else bounded_values.bounded
            if is_rechecked:
                weights = tuple(recheck(weight, weight_in_bounds) for weight in weights)
            aggregated = process.next(inner_state, bounded, *weights)
            bit = bounded_values[count]
            counted = counts.next(state[f"{count}_agg"], recheck(bit, zero_or_one) if is_count_rechecked else bit)
            next_norm = norm.next(norm_state, bounded_values.norm) if adaptive else norm_state
            next_state = federated_zip(states(next_norm, aggregated.state, counted.state))
            measurements = {name: aggregated.measurements, f"{name}_norm": limit, count: counted.result}
            return MeasuredProcessOutput(next_state, aggregated.result, federated_zip(measurements))

        return process_of(initialize, value_type, weight_type, body)

    return wrapping_factory(inner, build)


def _check_norm_process(argument: str, process: EstimationProcess) -> None:
    """Refuses an estimation process that does not make a limit of the clients' norms.

    Raises:
        TypeMismatch: `next` does not take a state and a float32 of each client, or returns more than a state; or
            `report` gives no float32 at the server.
    """
    norm, parameters = TensorType("float32"), process.next.module.main.parameters
    if len(parameters) != 2 or not fits(FederatedType(norm, CLIENTS), parameters[1].type):
        raise TypeMismatch(
            f"{argument}: next of the process takes a state and {{float32}}@CLIENTS, but has the type "
            f"{process.next.type_signature}"
        )
    if not fits(process.next.type_signature.result, parameters[0].type):
        raise TypeMismatch(
            f"{argument}: next of the process returns the state alone, but has the type {process.next.type_signature}"
        )
    if not fits(process.report.type_signature.result, FederatedType(norm, SERVER)):
        raise TypeMismatch(
            f"{argument}: report of the process gives float32@SERVER, but has the type {process.report.type_signature}"
        )


def clipping_factory(
    clipping_norm: float | EstimationProcess,
    inner_agg_factory: FactoryT,
    clipped_count_sum_factory: UnweightedAggregationFactory | None = None,
) -> FactoryT:
    """Scales every client's value down to an L2 norm of at most `clipping_norm`, over all of its leaves.

    A value that is not finite stays so: put a `zeroing_factory` around this one.

    Types: those of the inner process, with state <clipping_norm=…,inner_agg=…,clipped_count_agg=…> and measurements
    <clipping=those of the inner process,clipping_norm=float32,clipped_count=int32>.

    Args:
        clipping_norm: a number, or a `PrivateQuantileEstimationProcess`, whose estimate at the start of a round is
            the bound and which is then given the norms of the round.
        inner_agg_factory: aggregates the clipped values; the result is weighted if it is.
        clipped_count_sum_factory: counts the clients that were clipped. Default: `SumFactory`.
    Raises:
        FedcoreError: the norm is negative.
        TypeMismatch: the value is not inexact, or the process estimates no norm.
    Source: McMahan et al. 2018, "Learning differentially private recurrent language models", arXiv:1710.06963, flat
        clipping; by an estimated norm, Andrew et al. 2021, arXiv:1905.03871, Algorithm 1. Both without noise.
    Example:
        >>> factory = fc.aggregators.clipping_factory(1.0, fc.aggregators.SumFactory())
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [0.5, 7.0]).result
        np.float32(1.5)
    """

    def clip(value: TensorStructure, limit: tf.Tensor) -> tuple[TensorStructure, tf.Tensor, tf.Tensor]:
        clipped, norm = clip_to_norm(value, limit)
        return clipped, norm > tf.cast(limit, norm.dtype), norm

    return _bounding_factory(
        inner_agg_factory, clipping_norm, clip, "clipping", "clipped_count", clipped_count_sum_factory
    )


def zeroing_factory(
    zeroing_norm: float | EstimationProcess,
    inner_agg_factory: FactoryT,
    norm_order: float = math.inf,
    zeroed_count_sum_factory: UnweightedAggregationFactory | None = None,
) -> FactoryT:
    """Replaces every client's value whose norm is greater than `zeroing_norm`, or not finite, by zeros.

    Its weight still counts: zeroing guards against values that are corrupt, and those are few.

    Types: those of the inner process, with state <zeroing_norm=…,inner_agg=…,zeroed_count_agg=…> and measurements
    <zeroing=those of the inner process,zeroing_norm=float32,zeroed_count=int32>.

    Args:
        zeroing_norm: a number, or a `PrivateQuantileEstimationProcess`; `.map(lambda q: 2.0 * q + 1.0)` leaves room.
        inner_agg_factory: aggregates what is left; the result is weighted if it is.
        norm_order: 1, 2 or infinity, over all leaves as one vector.
        zeroed_count_sum_factory: counts the clients that were zeroed. Default: `SumFactory`.
    Raises:
        FedcoreError: the norm is negative, or of another order.
        TypeMismatch: the value is not inexact, or the process estimates no norm.
    Example:
        >>> factory = fc.aggregators.zeroing_factory(10.0, fc.aggregators.SumFactory())
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [0.5, np.nan]).result
        np.float32(0.5)
    """
    norm_order = python_scalar(norm_order)
    if not isinstance(norm_order, int | float) or norm_order not in (1, 2, math.inf):
        raise FedcoreError(f"norm_order is 1, 2 or math.inf, not {brief(norm_order)}")

    def zero(value: TensorStructure, limit: tf.Tensor) -> tuple[TensorStructure, tf.Tensor, tf.Tensor]:
        norm = norm_of(value, float(norm_order))
        is_zeroed = (norm > tf.cast(limit, norm.dtype)) | ~tf.math.is_finite(norm)
        return tf.nest.map_structure(lambda v: tf.where(is_zeroed, tf.zeros_like(v), v), value), is_zeroed, norm

    return _bounding_factory(inner_agg_factory, zeroing_norm, zero, "zeroing", "zeroed_count", zeroed_count_sum_factory)

"""Aggregators that bound the norm of a client's value: by scaling the value down, or by zeroing it."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.aggregators.factory import CreateInner, FactoryT, UnweightedAggregationFactory, require, wrapping_factory
from fedcore.aggregators.factory import aggregation_process as process_of
from fedcore.aggregators.rechecking import SLACK, adds_in_the_clear, recheck, weight_in_bounds, zero_or_one
from fedcore.aggregators.sum import sum_or_default
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import FedcoreError, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_eval, federated_map, federated_value, federated_zip
from fedcore.ir.values import Value
from fedcore.scalars import python_scalar
from fedcore.templates import AggregationProcess, EstimationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, TensorType, Type


def norm_of(value: TensorStructure, order: float = 2.0) -> tf.Tensor:
    """The norm of all leaves as one vector, in float32; infinite where an element is not finite."""
    vector = tf.concat([[0.0], *(tf.reshape(tf.cast(x, tf.float32), [-1]) for x in tf.nest.flatten(value))], 0)
    size = {
        1.0: lambda: tf.reduce_sum(tf.abs(vector)),
        2.0: lambda: tf.sqrt(tf.reduce_sum(tf.square(vector))),
        math.inf: lambda: tf.reduce_max(tf.abs(vector)),
    }[order]()
    # A maximum may pass over a NaN, so it is asked for by itself.
    return tf.where(tf.reduce_all(tf.math.is_finite(vector)), size, math.inf)


def _bounding_factory(
    inner: FactoryT,
    norm: Any,
    order: float,
    change: Callable[[TensorStructure, tf.Tensor, tf.Tensor], tuple[TensorStructure, tf.Tensor]],
    name: str,
    count: str,
    count_sum_factory: UnweightedAggregationFactory | None,
) -> FactoryT:
    """Applies `change(value, norm of the value, bound) -> (value, whether it was changed)` to every client's value.

    Where values cross in the clear, the server applies it once more, to values whose norm exceeds the bound by more
    than rounding does, as those of a client that lies.
    """
    adaptive = hasattr(norm, "report")
    norm = python_scalar(norm)
    if not adaptive and not (isinstance(norm, int | float) and norm >= 0):
        raise FedcoreError(f"{name}_norm is a number of at least 0 or an estimation process, not {brief(norm)}")
    counts = sum_or_default(f"{count}_sum_factory", count_sum_factory).create(TensorType("int32"))

    def build(value_type: Type, weight_type: Type | None, create_inner: CreateInner) -> AggregationProcess:
        require("inexact", value_type, f"{name}_factory")
        process = create_inner(value_type)
        fixed = None if adaptive else tf_computation(lambda: tf.constant(norm, tf.float32))

        @tf_computation(value_type, TensorType("float32"))
        def apply_bound(value: TensorStructure, limit: tf.Tensor) -> dict[str, TensorStructure]:
            size = norm_of(value, order)
            changed, hit = change(value, size, limit)
            return {"bounded": changed, count: tf.cast(hit, tf.int32), "norm": size}

        @tf_computation(value_type, TensorType("float32"))
        def apply_again(value: TensorStructure, limit: tf.Tensor) -> TensorStructure:
            size = norm_of(value, order)
            return change(value, tf.where(size > SLACK * limit, size, 0.0), limit)[0]

        shared_type = FederatedType(TensorType("float32"), CLIENTS, True)

        # A call in the place of an `item`: noise behind it keeps its seed, which follows the operation's number.
        @federated_computation(FederatedType(apply_bound.type_signature.result, CLIENTS), shared_type)
        def recheck_value(bounded_values: Value, limit: Value) -> Value:
            return recheck(bounded_values.bounded, apply_again, limit)

        is_rechecked, is_counted = adds_in_the_clear(process.next), adds_in_the_clear(counts.next)

        @federated_computation
        def initialize() -> Value:
            state = {"inner_agg": process.initialize(), f"{count}_agg": counts.initialize()}
            state[f"{name}_norm"] = norm.initialize() if adaptive else federated_value((), SERVER)
            return federated_zip(state)

        def body(state: Value, value: Value, weights: tuple[Value, ...]) -> MeasuredProcessOutput:
            norm_state = state[f"{name}_norm"]
            limit = norm.report(norm_state) if adaptive else federated_eval(fixed, SERVER)
            shared = federated_broadcast(limit)
            bounded_values = federated_map(apply_bound, (value, shared))
            inner_state = state.inner_agg
            bounded = recheck_value(bounded_values, shared) if is_rechecked else bounded_values.bounded
            if is_rechecked:
                weights = tuple(recheck(weight, weight_in_bounds) for weight in weights)
            aggregated = process.next(inner_state, bounded, *weights)
            hit = bounded_values[count]
            counted = counts.next(state[f"{count}_agg"], recheck(hit, zero_or_one) if is_counted else hit)
            next_state = {"inner_agg": aggregated.state, f"{count}_agg": counted.state}
            next_state[f"{name}_norm"] = norm.next(norm_state, bounded_values.norm) if adaptive else norm_state
            measurements = {name: aggregated.measurements, f"{name}_norm": limit, count: counted.result}
            return MeasuredProcessOutput(federated_zip(next_state), aggregated.result, federated_zip(measurements))

        return process_of(initialize, value_type, weight_type, body)

    return wrapping_factory(inner, build)


def clipping_factory(
    clipping_norm: float | EstimationProcess,
    inner_agg_factory: FactoryT,
    clipped_count_sum_factory: UnweightedAggregationFactory | None = None,
) -> FactoryT:
    """Scales every client's value down to an L2 norm of at most `clipping_norm`, over all of its leaves.

    A value that is not finite stays so: put a `zeroing_factory` around this one.

    Types: those of the inner process, with state <inner_agg=…,clipped_count_agg=…,clipping_norm=…> and measurements
    <clipping=those of the inner process,clipping_norm=float32,clipped_count=int32>.

    Args:
        clipping_norm: a number, or a `PrivateQuantileEstimationProcess`, whose estimate at the start of a round is
            the bound and which is then given the norms of the round.
        inner_agg_factory: aggregates the clipped values; the result is weighted if it is.
        clipped_count_sum_factory: counts the clients that were clipped. Default: `SumFactory`.
    Raises:
        FedcoreError: the norm is negative.
        TypeMismatch: the value is not inexact.
    Source: McMahan et al. 2018, "Learning differentially private recurrent language models", arXiv:1710.06963, flat
        clipping; by an estimated norm, Andrew et al. 2021, arXiv:1905.03871, Algorithm 1. Both without noise.
    Example:
        >>> factory = fc.aggregators.clipping_factory(1.0, fc.aggregators.SumFactory())
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [0.5, 7.0]).result
        np.float32(1.5)
    """

    def clip(value: TensorStructure, size: tf.Tensor, limit: tf.Tensor) -> tuple[TensorStructure, tf.Tensor]:
        scale = tf.where(size > limit, tf.math.divide_no_nan(limit, size), 1.0)
        return tf.nest.map_structure(lambda v: v * tf.cast(scale, v.dtype), value), size > limit

    return _bounding_factory(
        inner_agg_factory, clipping_norm, 2.0, clip, "clipping", "clipped_count", clipped_count_sum_factory
    )


def zeroing_factory(
    zeroing_norm: float | EstimationProcess,
    inner_agg_factory: FactoryT,
    norm_order: float = math.inf,
    zeroed_count_sum_factory: UnweightedAggregationFactory | None = None,
) -> FactoryT:
    """Replaces every client's value whose norm is greater than `zeroing_norm`, or not finite, by zeros.

    Its weight still counts: zeroing guards against values that are corrupt, and those are few.

    Types: those of the inner process, with state <inner_agg=…,zeroed_count_agg=…,zeroing_norm=…> and measurements
    <zeroing=those of the inner process,zeroing_norm=float32,zeroed_count=int32>.

    Args:
        zeroing_norm: a number, or a `PrivateQuantileEstimationProcess`; `.map(lambda q: 2.0 * q + 1.0)` leaves room.
        inner_agg_factory: aggregates what is left; the result is weighted if it is.
        norm_order: 1, 2 or infinity, over all leaves as one vector.
        zeroed_count_sum_factory: counts the clients that were zeroed. Default: `SumFactory`.
    Raises:
        FedcoreError: the norm is negative, or of another order.
        TypeMismatch: the value is not inexact.
    Example:
        >>> factory = fc.aggregators.zeroing_factory(10.0, fc.aggregators.SumFactory())
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [0.5, np.nan]).result
        np.float32(0.5)
    """
    norm_order = python_scalar(norm_order)
    if not isinstance(norm_order, int | float) or norm_order not in (1, 2, math.inf):
        raise FedcoreError(f"norm_order is 1, 2 or math.inf, not {brief(norm_order)}")

    def zero(value: TensorStructure, size: tf.Tensor, limit: tf.Tensor) -> tuple[TensorStructure, tf.Tensor]:
        hit = (size > limit) | ~tf.math.is_finite(size)
        return tf.nest.map_structure(lambda v: tf.where(hit, tf.zeros_like(v), v), value), hit

    return _bounding_factory(
        inner_agg_factory, zeroing_norm, float(norm_order), zero, "zeroing", "zeroed_count", zeroed_count_sum_factory
    )

"""Secure sums of real values: clipped into bounds, made integers, added in int64, and made real values again.

`secure_quantized_sum` has the arithmetic. This module has the factory: fixed bounds, or bounds that estimation
processes report before each round and update from the clients' extreme elements.
"""

from typing import Any

import tensorflow as tf

from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, require
from fedcore.aggregators.secure_quantized_sum import check_fixed_bounds, dequantize, largest_code, quantize
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import FedcoreError
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_secure_sum,
    federated_value,
    federated_zip,
    generic_zero,
)
from fedcore.ir.values import Value
from fedcore.scalars import real_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, TensorType, Type, tensor_leaves


class SecureSumFactory(UnweightedAggregationFactory):
    """The sum of values that are bounded and made integers first, as a secure sum needs them.

    Every element is clipped into [lower, upper]; floats are rounded to one of 2^32 - 1 levels of that range, of which 0
    is one where the range permits, so that zeros add to exactly 0. The integers are then added in int64 by
    `fc.federated_secure_sum`, which hides them if the runtime has a protocol for it
    (`fc.runtime.local(secure_aggregation='masked')`).

    Types, for numeric real V:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=V@SERVER,measurements=M@SERVER>)
        M is <secure_upper_clipped_count=int32,secure_lower_clipped_count=int32,secure_upper_threshold=T,
        secure_lower_threshold=T>, where T is the dtype of the tensors of V, or float32 where they have several;
        S is that of the estimation process, or of both as <upper,lower>, or <>.

    A NaN counts as the lower bound. No clients give zeros.

    Args:
        upper_bound_threshold: a number, or an estimation process as `PrivateQuantileEstimationProcess`, which is then
            given the largest absolute element of every client's value.
        lower_bound_threshold: a number; or an estimation process where the upper bound is one, which are then given the
            smallest and the largest element. Default: minus the upper bound.
        Bounds of integers are whole and at most 2^53 in magnitude, those of floats at most the largest float32;
        estimated ones are rounded inwards for integers.
    Raises:
        FedcoreError: the bounds are not in order, or one is a number and the other is estimated; by `create`, they are
            no bounds of the dtypes of V.
        TypeMismatch: V is not numeric, or complex.
    Source: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", section 4.
    Example:
        >>> factory = fc.aggregators.SecureSumFactory(8.0)
        >>> process = factory.create(fc.to_type('int32'))
        >>> process.next(process.initialize(), [1, 100]).result
        np.int32(9)
    """

    def __init__(self, upper_bound_threshold: Any, lower_bound_threshold: Any = None) -> None:
        upper, lower = upper_bound_threshold, lower_bound_threshold
        adaptive = hasattr(upper, "report")
        if lower is not None and hasattr(lower, "report") != adaptive:
            raise FedcoreError("both bounds are numbers, or both are estimation processes")
        if not adaptive:
            upper = real_number("upper_bound_threshold, if no estimation process,", upper)
            lower = None if lower is None else real_number("lower_bound_threshold", lower)
            if lower is None and not upper > 0:
                raise FedcoreError(f"upper_bound_threshold is above 0 where it stands alone, not {upper}")
            if lower is not None and not upper > lower:
                raise FedcoreError(f"upper_bound_threshold ({upper}) is above lower_bound_threshold ({lower})")
        self._upper: Any = upper
        self._lower: Any = lower
        self._adaptive = adaptive

    @property
    def shrinks(self) -> bool:
        """Whether no element's magnitude grows: the bounds are fixed, and 0 is between them."""
        bounds = self._fixed_bounds
        return bounds is not None and bounds[0] <= 0 <= bounds[1]

    def create(self, value_type: Type) -> AggregationProcess:
        require("real", value_type, "SecureSumFactory")
        for leaf in tensor_leaves(value_type) if not self._adaptive else ():
            bounds = {"upper_bound_threshold": self._upper, "lower_bound_threshold": self._lower}
            check_fixed_bounds(leaf.dtype, {name: bound for name, bound in bounds.items() if bound is not None})
        number = TensorType("float64")

        @tf_computation(value_type, number, number)
        def encode(
            value: TensorStructure, low: tf.Tensor, high: tf.Tensor
        ) -> tuple[TensorStructure, dict[str, tf.Tensor], list[tf.Tensor]]:
            """(codes, what is counted, the element that each estimation process is given: upper, then lower)."""
            leaves = tf.nest.flatten(value)
            wide = [tf.cast(x, tf.float64) for x in leaves]
            codes = [quantize(leaf, low, high) for leaf in leaves]
            over = tf.cast(tf.reduce_any([tf.reduce_any(x > high) for x in wide]), tf.int32)
            under = tf.cast(tf.reduce_any([tf.reduce_any(x < low) for x in wide]), tf.int32)
            if self._lower is None:
                observed: tuple = (tf.reduce_max([tf.reduce_max(tf.abs(x)) for x in wide]),)
            else:
                observed = (
                    tf.reduce_max([tf.reduce_max(x) for x in wide]),
                    tf.reduce_min([tf.reduce_min(x) for x in wide]),
                )
            counts = {"over": over, "under": under, "clients": tf.constant(1, tf.int64)}
            return tf.nest.pack_sequence_as(value, codes), counts, [tf.cast(x, tf.float32) for x in observed]

        codes_type = encode.type_signature.result[0]  # type: ignore[index]

        @tf_computation(codes_type, TensorType("int64"), value_type, number, number)
        def decode(
            codes: TensorStructure, count: tf.Tensor, like: TensorStructure, low: tf.Tensor, high: tf.Tensor
        ) -> TensorStructure:
            return tf.nest.map_structure(lambda c, leaf: dequantize(c, count, leaf, low, high), codes, like)

        dtypes = {leaf.dtype.name for leaf in tensor_leaves(value_type)}
        threshold_dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
        threshold = tf_computation(number)(lambda x: tf.saturate_cast(x, threshold_dtype))

        @federated_computation
        def initialize() -> Value:
            return self._initial_state()

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            bounds = self._bounds(state)
            encoded = federated_map(
                lambda v, b: encode(v, b[0], b[1]), federated_zip((value, federated_broadcast(bounds)))
            )
            codes = federated_secure_sum(encoded[0], largest_code(value_type, self._fixed_bounds))
            counts = federated_secure_sum(encoded[1], 1)
            result = federated_map(
                lambda c, n, b: decode(c, n.clients, generic_zero(value_type), b[0], b[1]), (codes, counts, bounds)
            )
            measurements = {
                "secure_upper_clipped_count": counts.over,
                "secure_lower_clipped_count": counts.under,
                "secure_upper_threshold": federated_map(threshold, bounds[1]),
                "secure_lower_threshold": federated_map(threshold, bounds[0]),
            }
            return MeasuredProcessOutput(self._next_state(state, encoded[2]), result, federated_zip(measurements))

        return aggregation_process(initialize, value_type, None, body)

    def _initial_state(self) -> Value:
        """The state at the server: that of the estimation process, of both as <upper,lower>, or <>."""
        if not self._adaptive:
            return federated_value((), SERVER)
        if self._lower is None:
            return self._upper.initialize()
        return federated_zip((self._upper.initialize(), self._lower.initialize()))

    def _bounds(self, state: Value) -> Value:
        """(lower, upper) of a round as float64 at the server, from the state before it."""
        if not self._adaptive:

            def fixed_bounds() -> tuple[tf.Tensor, tf.Tensor]:
                lower = -self._upper if self._lower is None else self._lower
                return tf.constant(lower, tf.float64), tf.constant(self._upper, tf.float64)

            return federated_eval(tf_computation(fixed_bounds), SERVER)
        if self._lower is None:
            symmetric_bounds = tf_computation(TensorType("float32"))(
                lambda top: (tf.cast(-top, tf.float64), tf.cast(top, tf.float64))
            )
            return federated_map(symmetric_bounds, self._upper.report(state))
        wide_bounds = tf_computation(lambda low, high: (tf.cast(low, tf.float64), tf.cast(high, tf.float64)))
        return federated_map(wide_bounds, (self._lower.report(state[1]), self._upper.report(state[0])))

    def _next_state(self, state: Value, observed: Value) -> Value:
        """The state after a round in which clients observed the elements that `encode` returns."""
        if not self._adaptive:
            return state
        if self._lower is None:
            return self._upper.next(state, observed[0])
        return federated_zip((self._upper.next(state[0], observed[0]), self._lower.next(state[1], observed[1])))

    @property
    def _fixed_bounds(self) -> tuple[float, float] | None:
        """(lower, upper); None for estimated ones."""
        if self._adaptive:
            return None
        return -self._upper if self._lower is None else self._lower, self._upper

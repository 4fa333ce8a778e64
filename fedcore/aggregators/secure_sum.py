import math

import tensorflow as tf

from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, require
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_secure_sum,
    federated_value,
    federated_zip,
    generic_zero,
)
from fedcore.scalars import real_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, TensorType, Type, tensor_leaves

_LEVELS = 2**32 - 1
_EXACT = 2**53  # integers up to here are exact in the float64 that bounds are in


class SecureSumFactory(UnweightedAggregationFactory):
    """The sum of values that are bounded and made integers first, as a secure sum needs them.

    Every element is clipped into [lower, upper]; floats are rounded to one of 2^32 levels of that range. The integers
    are then added in int64 by `fc.federated_secure_sum`, which hides them if the runtime has a protocol for it
    (`fc.runtime.local(secure_aggregation='masked')`).

    Types, for numeric real V:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=V@SERVER,measurements=M@SERVER>)
        M is <secure_upper_clipped_count=int32,secure_lower_clipped_count=int32,secure_upper_threshold=float32,
        secure_lower_threshold=float32>; S is that of the estimation process, or <>.

    A NaN counts as the lower bound. No clients give zeros.

    Args:
        upper_bound_threshold: a number, or a `PrivateQuantileEstimationProcess`, which is then given the largest
            absolute element of every client's value.
        lower_bound_threshold: a number. Default: minus the upper bound.
    Raises:
        FedcoreError: the bounds are not in order.
        TypeMismatch: V is not numeric, or complex.
    Source: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", section 4.
    Example:
        >>> factory = fc.aggregators.SecureSumFactory(8.0)
        >>> process = factory.create(fc.to_type('int32'))
        >>> process.next(process.initialize(), [1, 100]).result
        np.int32(9)
    """

    def __init__(self, upper_bound_threshold, lower_bound_threshold: float | None = None):
        upper, lower = upper_bound_threshold, lower_bound_threshold
        adaptive = hasattr(upper, "report")
        if not adaptive:
            upper = real_number("upper_bound_threshold, if no estimation process,", upper)
        if lower is not None:
            lower = real_number("lower_bound_threshold", lower)
        if not adaptive and not upper > (-upper if lower is None else lower):
            raise FedcoreError(f"upper_bound_threshold ({upper}) is greater than the lower bound")
        if adaptive and lower is not None:
            raise FedcoreError("lower_bound_threshold goes with a fixed upper bound; an estimated one is symmetric")
        self._upper, self._lower, self._adaptive = upper, lower, adaptive

    @property
    def shrinks(self) -> bool:
        """Whether no element's magnitude grows: the bounds are fixed, and 0 is between them."""
        return not self._adaptive and self._upper >= 0 and (self._lower is None or self._lower <= 0)

    def create(self, value_type: Type) -> AggregationProcess:
        require("numeric", value_type, "SecureSumFactory")
        if any(t.dtype.name.startswith("complex") for t in tensor_leaves(value_type)):
            raise TypeMismatch(f"SecureSumFactory adds real values, not {value_type}")
        number = TensorType("float64")
        lower, upper, adaptive = self._lower, self._upper, self._adaptive
        bounds_of = tf_computation(TensorType("float32"))(
            lambda top: (tf.cast(-top, tf.float64), tf.cast(top, tf.float64))
        )

        def fixed():
            return tf.constant(-upper if lower is None else lower, tf.float64), tf.constant(upper, tf.float64)

        @tf_computation(value_type, number, number)
        def encode(value, low, high):
            leaves = tf.nest.flatten(value)
            wide = [tf.cast(x, tf.float64) for x in leaves]

            def code(leaf, x):
                x = tf.clip_by_value(tf.where(tf.math.is_nan(x), low, x), low, high)
                scaled = x - tf.math.ceil(low) if leaf.dtype.is_integer else (x - low) / (high - low) * _LEVELS
                return tf.cast(tf.round(scaled), tf.int64)

            codes = [code(leaf, x) for leaf, x in zip(leaves, wide, strict=True)]
            over = tf.cast(tf.reduce_any([tf.reduce_any(x > high) for x in wide]), tf.int32)
            under = tf.cast(tf.reduce_any([tf.reduce_any(x < low) for x in wide]), tf.int32)
            largest = tf.reduce_max([tf.reduce_max(tf.abs(x)) for x in wide])
            counts = {"over": over, "under": under, "clients": tf.constant(1, tf.int64)}
            return tf.nest.pack_sequence_as(value, codes), counts, tf.cast(largest, tf.float32)

        codes_type = encode.type_signature.result[0]

        @tf_computation(codes_type, TensorType("int64"), value_type, number, number)
        def decode(codes, count, like, low, high):
            n = tf.cast(count, tf.float64)

            def value(code, leaf):
                x = tf.cast(code, tf.float64)
                x = x + n * tf.math.ceil(low) if leaf.dtype.is_integer else x / _LEVELS * (high - low) + n * low
                return tf.cast(x, leaf.dtype)

            return tf.nest.map_structure(value, codes, like)

        narrow = tf_computation(number)(lambda x: tf.cast(x, tf.float32))

        @federated_computation
        def initialize():
            return upper.initialize() if adaptive else federated_value((), SERVER)

        def body(state, value, _):
            bounds = (
                federated_map(bounds_of, upper.report(state))
                if adaptive
                else federated_eval(tf_computation(fixed), SERVER)
            )
            encoded = federated_map(
                lambda v, b: encode(v, b[0], b[1]), federated_zip((value, federated_broadcast(bounds)))
            )
            codes = federated_secure_sum(encoded[0], self._largest_code(value_type))
            counts = federated_secure_sum(encoded[1], 1)
            result = federated_map(
                lambda c, n, b: decode(c, n.clients, generic_zero(value_type), b[0], b[1]), (codes, counts, bounds)
            )
            measurements = {
                "secure_upper_clipped_count": counts.over,
                "secure_lower_clipped_count": counts.under,
                "secure_upper_threshold": federated_map(narrow, bounds[1]),
                "secure_lower_threshold": federated_map(narrow, bounds[0]),
            }
            after = upper.next(state, encoded[2]) if adaptive else state
            return MeasuredProcessOutput(after, result, federated_zip(measurements))

        return aggregation_process(initialize, value_type, None, body)

    def _largest_code(self, value_type: Type) -> int:
        """What no element's code is greater than, whatever its leaf."""
        if not any(t.dtype.is_integer for t in tensor_leaves(value_type)):
            return _LEVELS
        if self._adaptive:
            return _EXACT
        lower = -self._upper if self._lower is None else self._lower
        return max(_LEVELS, math.floor(self._upper) - math.ceil(lower))

"""Means of client values, weighted or not.

Decision 0217.
"""

import tensorflow as tf

from fedcore.aggregators.factory import (
    UnweightedAggregationFactory,
    WeightedAggregationFactory,
    aggregation_process,
    refuse_weights,
    require,
    require_scalar_weight,
)
from fedcore.aggregators.sum import SumFactory, sum_or_default
from fedcore.computation import PolymorphicComputation, federated_computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_eval, federated_map, federated_zip, generic_multiply
from fedcore.intrinsics.cast import cast_leaves
from fedcore.intrinsics.numerics import sum_type, weight_sum_type
from fedcore.ir.values import Value
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, TensorType, Type, member_of


def _quotient(zero_by_zero: bool) -> PolymorphicComputation:
    """The computation that divides each leaf of a struct by a number; a division by 0 gives 0, or else NaN."""

    def divide(total: TensorStructure, count: tf.Tensor) -> TensorStructure:
        divide_leaf = tf.math.divide_no_nan if zero_by_zero else tf.divide
        return tf.nest.map_structure(lambda t: divide_leaf(t, tf.cast(count, t.dtype)), total)

    return tf_computation(divide)


def cast_placed(value: Value, type_: Type) -> Value:
    """A placed value with its leaves in the dtypes of `type_`; the value itself if they are."""
    return value if member_of(value.type) == type_ else federated_map(lambda v: cast_leaves(v, type_), value)


def _weight_sum_type(weight_type: Type, value_type: Type, factory: UnweightedAggregationFactory) -> Type:
    """The dtype in which a factory adds weights: integers in float64 where it is a `SumFactory`, else in int64.

    Other factories, such as a secure sum, may add integers exactly and round floats.
    """
    assert isinstance(weight_type, TensorType)
    if weight_type.dtype.is_integer and not isinstance(factory, SumFactory):
        return TensorType(weight_type.dtype if weight_type.dtype.name == "uint64" else "int64")
    return weight_sum_type(weight_type, value_type)


class MeanFactory(WeightedAggregationFactory):
    """The weighted mean of the clients' values: the sum of value · weight over the sum of the weights.

    Types, for inexact V and a real scalar W:
        next  (<state=S@SERVER,value={V}@CLIENTS,weight={W}@CLIENTS> ->
               <state=S@SERVER,result=V@SERVER,measurements=<mean_value=M,mean_weight=N>@SERVER>)
        S is <value_sum_process=…,weight_sum_process=…>.

    Floats of 16 bits are multiplied and added in float32. Weights of values that have float64's accuracy are added in
    float64. A weight of 0, infinity or NaN is a factor as any other: 0 · infinity is NaN.

    Args:
        value_sum_factory: adds the weighted values. Default: `SumFactory`.
        weight_sum_factory: adds the weights; integers as int64. Default: `SumFactory`, integers as float64, whose sum
            does not overflow.
        no_nan_division: weights that add to zero (and no clients) give zeros. Default: they give NaN.
    Raises:
        TypeMismatch: V is not inexact, W is no real scalar, a sum changes its type, or it is a private one.
    Example:
        >>> factory = fc.aggregators.MeanFactory(no_nan_division=True)
        >>> process = factory.create(fc.to_type('float32'), fc.to_type('float32'))
        >>> process.next(process.initialize(), [4.0, 8.0], [0.0, 0.0]).result
        np.float32(0.0)
    """

    def __init__(
        self,
        value_sum_factory: UnweightedAggregationFactory | None = None,
        weight_sum_factory: UnweightedAggregationFactory | None = None,
        no_nan_division: bool = False,
    ) -> None:
        self._value_sum = sum_or_default("value_sum_factory", value_sum_factory)
        refuse_weights(self._value_sum, "the weighted sum of MeanFactory")
        self._weight_sum = sum_or_default("weight_sum_factory", weight_sum_factory)
        self._no_nan_division = no_nan_division

    def create(self, value_type: Type, weight_type: Type) -> AggregationProcess:
        require("inexact", value_type, "MeanFactory")
        require_scalar_weight(weight_type, "MeanFactory")
        wide, wide_weight = sum_type(value_type), _weight_sum_type(weight_type, value_type, self._weight_sum)
        values, weights = self._value_sum.create(wide), self._weight_sum.create(wide_weight)
        quotient = _quotient(self._no_nan_division)

        @federated_computation
        def initialize() -> Value:
            return federated_zip({"value_sum_process": values.initialize(), "weight_sum_process": weights.initialize()})

        def body(state: Value, value: Value, client_weights: tuple[Value]) -> MeasuredProcessOutput:
            weight = cast_placed(client_weights[0], wide_weight)
            weighted = federated_map(lambda v, w: generic_multiply(v, w), (cast_placed(value, wide), weight))
            total = values.next(state.value_sum_process, weighted)
            count = weights.next(state.weight_sum_process, weight)
            return MeasuredProcessOutput(
                federated_zip({"value_sum_process": total.state, "weight_sum_process": count.state}),
                cast_placed(federated_map(quotient, (total.result, count.result)), value_type),
                federated_zip({"mean_value": total.measurements, "mean_weight": count.measurements}),
            )

        return aggregation_process(initialize, value_type, weight_type, body)


class UnweightedMeanFactory(UnweightedAggregationFactory):
    """The mean of the clients' values, each counted once; no clients give NaN. Floats of 16 bits are added in float32.

    Types, for inexact V:
        next  (<state=S@SERVER,value={V}@CLIENTS> ->
               <state=S@SERVER,result=V@SERVER,measurements=<mean_value=M,mean_count=N>@SERVER>)
        S is <that of the sum of the values,that of the sum of the counts>.

    Args:
        value_sum_factory: adds the values. Default: `SumFactory`.
        count_sum_factory: adds a float32 of 1 for each client. Default: `SumFactory`.
    Raises:
        TypeMismatch: V is not inexact, or the sum is a private one.
    Example:
        >>> factory = fc.aggregators.UnweightedMeanFactory()
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [4.0, 8.0]).result
        np.float32(6.0)
    """

    def __init__(
        self,
        value_sum_factory: UnweightedAggregationFactory | None = None,
        count_sum_factory: UnweightedAggregationFactory | None = None,
    ) -> None:
        self._value_sum = sum_or_default("value_sum_factory", value_sum_factory)
        refuse_weights(self._value_sum, "the sum of UnweightedMeanFactory, which a count divides,")
        self._count_sum = sum_or_default("count_sum_factory", count_sum_factory)

    def create(self, value_type: Type) -> AggregationProcess:
        require("inexact", value_type, "UnweightedMeanFactory")
        wide = sum_type(value_type)
        values, counts = self._value_sum.create(wide), self._count_sum.create(TensorType("float32"))
        quotient, count_client = _quotient(False), tf_computation(lambda: tf.constant(1.0))

        @federated_computation
        def initialize() -> Value:
            return federated_zip((values.initialize(), counts.initialize()))

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            total = values.next(state[0], cast_placed(value, wide))
            count = counts.next(state[1], federated_eval(count_client, CLIENTS))
            return MeasuredProcessOutput(
                federated_zip((total.state, count.state)),
                cast_placed(federated_map(quotient, (total.result, count.result)), value_type),
                federated_zip({"mean_value": total.measurements, "mean_count": count.measurements}),
            )

        return aggregation_process(initialize, value_type, None, body)

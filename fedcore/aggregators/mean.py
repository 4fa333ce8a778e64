import tensorflow as tf

from fedcore.aggregators.factory import (
    UnweightedAggregationFactory,
    WeightedAggregationFactory,
    aggregation_process,
    refuse_weights,
    require,
    require_scalar_weight,
)
from fedcore.aggregators.sum import sum_or_default
from fedcore.computation import federated_computation, tf_computation
from fedcore.intrinsics import federated_eval, federated_map, federated_zip, generic_multiply
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, TensorType, Type


def _quotient(no_nan: bool):
    def divide(total, count):
        over = tf.math.divide_no_nan if no_nan else tf.divide
        return tf.nest.map_structure(lambda t: over(t, tf.cast(count, t.dtype)), total)

    return tf_computation(divide)


class MeanFactory(WeightedAggregationFactory):
    """The weighted mean of the clients' values: the sum of value · weight over the sum of the weights.

    Types, for inexact V and a numeric scalar W:
        next  (<state=S@SERVER,value={V}@CLIENTS,weight={W}@CLIENTS> ->
               <state=S@SERVER,result=V@SERVER,measurements=<mean_value=M,mean_weight=N>@SERVER>)
        S is <value_sum_process=…,weight_sum_process=…>.

    Args:
        value_sum_factory: adds the weighted values. Default: `SumFactory`.
        weight_sum_factory: adds the weights. Default: `SumFactory`.
        no_nan_division: weights that add to zero (and no clients) give zeros. Default: they give NaN.
    Raises:
        TypeMismatch: V is not inexact, W is no numeric scalar, a sum changes its type, or it is a private one.
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
    ):
        self._value_sum = sum_or_default("value_sum_factory", value_sum_factory)
        refuse_weights(self._value_sum, "the weighted sum of MeanFactory")
        self._weight_sum = sum_or_default("weight_sum_factory", weight_sum_factory)
        self._no_nan_division = no_nan_division

    def create(self, value_type: Type, weight_type: Type) -> AggregationProcess:
        require("inexact", value_type, "MeanFactory")
        require_scalar_weight(weight_type, "MeanFactory")
        values, weights = self._value_sum.create(value_type), self._weight_sum.create(weight_type)
        quotient = _quotient(self._no_nan_division)

        @federated_computation
        def initialize():
            return federated_zip({"value_sum_process": values.initialize(), "weight_sum_process": weights.initialize()})

        def body(state, value, given):
            (weight,) = given
            weighted = federated_map(lambda v, w: generic_multiply(v, w), (value, weight))
            total = values.next(state.value_sum_process, weighted)
            count = weights.next(state.weight_sum_process, weight)
            return MeasuredProcessOutput(
                federated_zip({"value_sum_process": total.state, "weight_sum_process": count.state}),
                federated_map(quotient, (total.result, count.result)),
                federated_zip({"mean_value": total.measurements, "mean_weight": count.measurements}),
            )

        return aggregation_process(initialize, value_type, weight_type, body)


class UnweightedMeanFactory(UnweightedAggregationFactory):
    """The mean of the clients' values, each counted once; no clients give NaN.

    Types, for inexact V:
        next  (<state=S@SERVER,value={V}@CLIENTS> ->
               <state=S@SERVER,result=V@SERVER,measurements=<mean_value=M,mean_count=N>@SERVER>)
        S is <value_sum_process=…,count_sum_process=…>.

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
    ):
        self._value_sum = sum_or_default("value_sum_factory", value_sum_factory)
        refuse_weights(self._value_sum, "the sum of UnweightedMeanFactory, which a count divides,")
        self._count_sum = sum_or_default("count_sum_factory", count_sum_factory)

    def create(self, value_type: Type) -> AggregationProcess:
        require("inexact", value_type, "UnweightedMeanFactory")
        values, counts = self._value_sum.create(value_type), self._count_sum.create(TensorType("float32"))
        quotient, one = _quotient(False), tf_computation(lambda: tf.constant(1.0))

        @federated_computation
        def initialize():
            return federated_zip({"value_sum_process": values.initialize(), "count_sum_process": counts.initialize()})

        def body(state, value, _):
            total = values.next(state.value_sum_process, value)
            count = counts.next(state.count_sum_process, federated_eval(one, CLIENTS))
            return MeasuredProcessOutput(
                federated_zip({"value_sum_process": total.state, "count_sum_process": count.state}),
                federated_map(quotient, (total.result, count.result)),
                federated_zip({"mean_value": total.measurements, "mean_count": count.measurements}),
            )

        return aggregation_process(initialize, value_type, None, body)

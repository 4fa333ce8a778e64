from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from numpy.typing import ArrayLike

from fedcore.aggregators import UnweightedAggregationFactory, aggregation_process
from fedcore.aggregators.sum import sum_or_default
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_map, federated_value, federated_zip, generic_plus, generic_zero
from fedcore.ir import Value
from fedcore.learning.metrics.finalizers import check_finalizers, finalizer
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, Type


class SumThenFinalizeFactory(UnweightedAggregationFactory):
    """Adds the clients' metric states, and computes the metrics of the round and of all rounds so far.

    Types, for states V with metrics M and a sum with state S and measurements N:
        next  (<state=<S,V>@SERVER,value={V}@CLIENTS> -> <state=<S,V>@SERVER,result=<M,M>@SERVER,measurements=N@SERVER>)
        The result is <those of the round, those of all rounds>.

    Args:
        metric_finalizers: functions by the names of metrics, as `model.metric_finalizers()`; or one function of all
            states, or a model.
        initial_unfinalized_metrics: states to which the rounds are added, in the structure of V. Default: zeros.
        inner_summation_factory: adds the states, such as `fc.learning.metrics.SecureSumFactory`. Default: `SumFactory`.
    Raises:
        TypeMismatch: the finalizers are none, or the sum is weighted; by `create`, V is no struct with names, or the
            initial states have another structure.
        FedcoreError: by `create`, finalizers and states have other names.
    Example:
        >>> factory = fc.learning.metrics.SumThenFinalizeFactory({'mean': lambda state: state[0] / state[1]})
        >>> process = factory.create(fc.to_type({'mean': ['float32', 'float32']}))
        >>> output = process.next(process.initialize(), [{'mean': [6.0, 2.0]}])
        >>> process.next(output.state, [{'mean': [1.0, 1.0]}, {'mean': [3.0, 1.0]}]).result
        ({'mean': np.float32(2.0)}, {'mean': np.float32(2.5)})
    """

    def __init__(
        self,
        metric_finalizers: Any,
        initial_unfinalized_metrics: Mapping | None = None,
        inner_summation_factory: UnweightedAggregationFactory | None = None,
    ) -> None:
        check_finalizers(metric_finalizers)
        inner = sum_or_default("inner_summation_factory", inner_summation_factory)
        self._finalizers, self._initial, self._inner = metric_finalizers, initial_unfinalized_metrics, inner

    def create(self, local_unfinalized_metrics_type: Type) -> AggregationProcess:
        value_type = local_unfinalized_metrics_type
        finalize = finalizer(self._finalizers, value_type)
        sums = self._inner.create(value_type)
        initial = self._initial

        @tf_computation(value_type)
        def start(zeros: TensorStructure) -> TensorStructure:
            """The total before the first round: the user's initial value in the types of the zeros, or the zeros."""
            try:
                return zeros if initial is None else tf.nest.map_structure(_cast_like, zeros, initial)
            except (TypeError, ValueError) as error:
                raise TypeMismatch(
                    f"initial_unfinalized_metrics {brief(initial)} has another structure than {value_type}"
                ) from error

        @federated_computation
        def initialize() -> Value:
            return federated_zip((sums.initialize(), federated_value(start(generic_zero(value_type)), SERVER)))

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            added = sums.next(state[0], value)
            total = federated_map(lambda a, b: generic_plus(a, b), (state[1], added.result))
            metrics = federated_zip((federated_map(finalize, added.result), federated_map(finalize, total)))
            return MeasuredProcessOutput(federated_zip((added.state, total)), metrics, added.measurements)

        return aggregation_process(initialize, value_type, None, body, "unfinalized_metrics")


def _cast_like(zero: tf.Tensor, value: ArrayLike) -> tf.Tensor:
    return tf.ensure_shape(tf.cast(value, zero.dtype), zero.shape)

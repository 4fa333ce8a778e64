"""The aggregator of a model's changes that leaves weights without gradients at the server.

It is no default: a model that is trained from scratch would be evaluated with its first averages.
"""

from typing import Any

import attrs

from fedcore.aggregators.factory import CreateInner, FactoryT, aggregation_process, wrapping_factory
from fedcore.computation import federated_computation
from fedcore.errors import TypeMismatch
from fedcore.intrinsics import federated_eval, federated_map, federated_zip, generic_zero
from fedcore.ir import Value
from fedcore.learning.models import ModelWeights
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, StructType, Type


@attrs.frozen
class TrainableWeightsState:
    """The state of the aggregation of the trainable weights."""

    inner_agg: Any


def trainable_weights_aggregator(inner_agg_factory: FactoryT) -> FactoryT:
    """Aggregates the changes of trainable weights only; for `model_aggregator=`.

    The server keeps the other weights as they are. So the averages of a BatchNormalization are neither in the clip
    norm of a private aggregation nor do they get noise; evaluations use the averages that the training started from.

    Types, for changes <trainable=T,non_trainable=N>, of which clients send T: those of the inner process for T, with
    state <inner_agg=that of the inner process> and result <trainable=that of the inner process,non_trainable=N>.

    Args:
        inner_agg_factory: aggregates the changes of the trainable weights.
    Returns:
        A factory, weighted if the given one is. The result for N is zeros.
    Raises:
        TypeMismatch: it is no factory; by `create`, the value is no change of a model's weights.
    Example:
        >>> process = fc.learning.algorithms.build_unweighted_fed_avg(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1),
        ...     model_aggregator=fc.learning.trainable_weights_aggregator(fc.learning.dp_aggregator(1.0, 100)))
    """

    def build(value_type: Type, weight_type: Type | None, create_inner: CreateInner) -> AggregationProcess:
        if not isinstance(value_type, StructType) or value_type.names != ("trainable", "non_trainable"):
            raise TypeMismatch(
                "trainable_weights_aggregator aggregates changes of a ModelWeights, <trainable=…,non_trainable=…>, not "
                f"{value_type}"
            )
        process = create_inner(value_type["trainable"])

        @federated_computation
        def no_change() -> Value:
            return generic_zero(value_type["non_trainable"])

        @federated_computation
        def initialize() -> Value:
            return federated_zip(TrainableWeightsState(process.initialize()))

        def body(state: Value, value: Value, weights: tuple[Value, ...]) -> MeasuredProcessOutput:
            trainable = federated_map(lambda change: change.trainable, value)
            aggregated = process.next(state.inner_agg, trainable, *weights)
            result = ModelWeights(aggregated.result, federated_eval(no_change, SERVER))
            new_state = federated_zip(TrainableWeightsState(aggregated.state))
            return MeasuredProcessOutput(new_state, federated_zip(result), aggregated.measurements)

        return aggregation_process(initialize, value_type, weight_type, body)

    return wrapping_factory(inner_agg_factory, build)

from fedcore.aggregators.factory import WeightedAggregationFactory
from fedcore.computation import federated_computation
from fedcore.intrinsics import federated_mean, federated_value
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, StructType, Type


class MeanFactory(WeightedAggregationFactory):
    """The weighted mean of the clients' values; weights that add to zero give NaN. Measures nothing.

    Example:
        >>> process = fc.aggregators.MeanFactory().create(fc.to_type('float32'), fc.to_type('float32'))
    """

    def create(self, value_type: Type, weight_type: Type) -> AggregationProcess:
        @federated_computation
        def initialize():
            return federated_value((), SERVER)

        @federated_computation(
            FederatedType(StructType([]), SERVER),
            FederatedType(value_type, CLIENTS),
            FederatedType(weight_type, CLIENTS),
        )
        def next_fn(state, value, weight):
            return MeasuredProcessOutput(state, federated_mean(value, weight), federated_value((), SERVER))

        return AggregationProcess(initialize, next_fn)

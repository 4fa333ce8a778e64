from fedcore.aggregators.factory import UnweightedAggregationFactory
from fedcore.computation import federated_computation
from fedcore.intrinsics import federated_sum, federated_value
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, StructType, Type


class SumFactory(UnweightedAggregationFactory):
    """The sum of the clients' values; no clients give zeros. Measures nothing.

    Example:
        >>> process = fc.aggregators.SumFactory().create(fc.to_type(('float32', [3])))
    """

    def create(self, value_type: Type) -> AggregationProcess:
        @federated_computation
        def initialize():
            return federated_value((), SERVER)

        @federated_computation(FederatedType(StructType([]), SERVER), FederatedType(value_type, CLIENTS))
        def next_fn(state, value):
            return MeasuredProcessOutput(state, federated_sum(value), federated_value((), SERVER))

        return AggregationProcess(initialize, next_fn)

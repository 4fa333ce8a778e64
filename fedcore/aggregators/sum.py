"""The sum of the clients' values."""

from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, check_factory, require
from fedcore.computation import federated_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.intrinsics import federated_sum, federated_value
from fedcore.ir.values import Value
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, Type


class SumFactory(UnweightedAggregationFactory):
    """The sum of the clients' values; no clients give zeros. Measures nothing.

    Types, for numeric V:
        next  (<state=<>@SERVER,value={V}@CLIENTS> -> <state=<>@SERVER,result=V@SERVER,measurements=<>@SERVER>)

    Raises:
        TypeMismatch: V is not numeric.
    Example:
        >>> process = fc.aggregators.SumFactory().create(fc.to_type(('float32', [2])))
        >>> process.next(process.initialize(), [[1.0, 2.0], [3.0, 4.0]]).result
        array([4., 6.], dtype=float32)
    """

    def create(self, value_type: Type) -> AggregationProcess:
        require("numeric", value_type, "SumFactory")

        @federated_computation
        def initialize() -> Value:
            return federated_value((), SERVER)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            return MeasuredProcessOutput(state, federated_sum(value), federated_value((), SERVER))

        return aggregation_process(initialize, value_type, None, body)


def sum_or_default(argument: str, factory: UnweightedAggregationFactory | None) -> UnweightedAggregationFactory:
    """The factory that an argument gives; `SumFactory` if it is None.

    Raises:
        TypeMismatch: it is no factory without weights, or one that needs each client's value.
    """
    if factory is None:
        return SumFactory()
    check_factory(argument, factory, without_weights=True)
    if factory.why_no_sum:
        raise TypeMismatch(
            f"{argument} adds the clients' values, so it is no {brief(factory)}: {factory.why_no_sum}; it is a whole "
            "aggregator, such as model_aggregator of an unweighted algorithm"
        )
    return factory

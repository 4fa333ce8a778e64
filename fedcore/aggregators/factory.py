"""What an aggregator is: a factory of aggregation processes for a type of value."""

import abc

from fedcore.templates import AggregationProcess
from fedcore.types import Type


class UnweightedAggregationFactory(abc.ABC):
    """Builds aggregations of values that all count the same."""

    @abc.abstractmethod
    def create(self, value_type: Type) -> AggregationProcess:
        """The process for client values of `value_type`."""


class WeightedAggregationFactory(abc.ABC):
    """Builds aggregations of values that come with a weight."""

    @abc.abstractmethod
    def create(self, value_type: Type, weight_type: Type) -> AggregationProcess:
        """The process for client values of `value_type` with weights of `weight_type`."""

"""Aggregators: factories that build a process from client values of a type to a server value."""

from fedcore.aggregators.factory import UnweightedAggregationFactory, WeightedAggregationFactory
from fedcore.aggregators.mean import MeanFactory
from fedcore.aggregators.sum import SumFactory

__all__ = ["MeanFactory", "SumFactory", "UnweightedAggregationFactory", "WeightedAggregationFactory"]

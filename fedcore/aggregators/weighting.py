"""Unweighted aggregators in the place of weighted ones."""

from typing import Any

from fedcore.aggregators.factory import (
    AggregationFactory,
    WeightedAggregationFactory,
    aggregation_process,
    check_factory,
    require_scalar_weight,
)
from fedcore.templates import AggregationProcess
from fedcore.types import Type


class _IgnoringWeights(WeightedAggregationFactory):
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.leaves_out_non_finite = inner.leaves_out_non_finite

    def create(self, value_type: Type, weight_type: Type) -> AggregationProcess:
        require_scalar_weight(weight_type, "as_weighted_aggregator")
        inner = self._inner.create(value_type)
        return aggregation_process(
            inner.initialize, value_type, weight_type, lambda state, value, _: inner.next(state, value)
        )


def as_weighted_aggregator(unweighted_aggregator: AggregationFactory) -> WeightedAggregationFactory:
    """A weighted factory that ignores the weights; a weighted one comes back as it is.

    Since weights are ignored, a learning process counts a client of weight 0 (no examples, or a change that was not
    finite) as a value of zeros. From Krum, Bulyan, medians and the trimmed mean it leaves such a client out.

    Types: those of the factory, with a weight of any numeric scalar type.

    Raises:
        TypeMismatch: it is no factory of `fc.aggregators`.
    Example:
        >>> factory = fc.aggregators.as_weighted_aggregator(fc.aggregators.coordinate_median_factory())
        >>> process = factory.create(fc.to_type('float32'), fc.to_type('float32'))
        >>> process.next(process.initialize(), [1.0, 2.0, 9.0], [1.0, 1.0, 100.0]).result
        np.float32(2.0)
    """
    if isinstance(unweighted_aggregator, WeightedAggregationFactory):
        return unweighted_aggregator
    check_factory("unweighted_aggregator", unweighted_aggregator)
    return _IgnoringWeights(unweighted_aggregator)

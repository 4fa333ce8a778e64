"""The aggregator of a model's changes that bounds them by estimated quantiles of their sizes."""

import math
from collections.abc import Callable

from fedcore.aggregators import (
    AggregationFactory,
    MeanFactory,
    PrivateQuantileEstimationProcess,
    SecureSumFactory,
    UnweightedMeanFactory,
    WeightedAggregationFactory,
    clipping_factory,
    zeroing_factory,
)
from fedcore.aggregators.factory import FactoryT
from fedcore.errors import TypeMismatch, brief


def robust_aggregator(
    *,
    zeroing: bool = True,
    clipping: bool = True,
    weighted: bool = True,
    debug_measurements_fn: Callable[[AggregationFactory], AggregationFactory] | None = None,
) -> AggregationFactory:
    """A mean of changes, with adaptive zeroing and clipping; for `model_aggregator=`.

    Types: those of `zeroing_factory` around `clipping_factory` around a mean.

    Args:
        zeroing: changes whose largest element is above twice the 0.98 quantile plus 1 become zeros.
        clipping: changes are scaled down to the 0.8 quantile of the L2 norms.
        weighted: the mean is a `MeanFactory`; else an `UnweightedMeanFactory`.
        debug_measurements_fn: makes of the mean an aggregator that also measures what is left after zeroing and
            clipping, as `fc.learning.add_debug_measurements`. Default: measures nothing more.
    Returns:
        A factory, weighted if the mean is.
    Raises:
        TypeMismatch: `debug_measurements_fn` returns no factory with weights where the mean has them; by `create`, the
            value is not inexact.
    Source: the quantiles are estimated as in Andrew et al. 2021, arXiv:1905.03871, without noise, from 10 (zeroing)
        and 1 (clipping); these settings are those of TFF's function of the same name.
    Example:
        >>> factory = fc.learning.robust_aggregator(weighted=False)
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [0.5, 1.5, 100.0]).measurements['zeroed_count']
        np.int32(1)
    """
    mean = with_measurements(MeanFactory() if weighted else UnweightedMeanFactory(), debug_measurements_fn)
    return zero_and_clip(mean, zeroing, clipping)


def with_measurements(
    mean: AggregationFactory, debug_measurements_fn: Callable[[AggregationFactory], AggregationFactory] | None
) -> AggregationFactory:
    """The mean with the measurements that the function adds.

    Raises:
        TypeMismatch: it returns no factory with weights where the mean has them.
    """
    if debug_measurements_fn is None:
        return mean
    factory = debug_measurements_fn(mean)
    is_weighted = isinstance(mean, WeightedAggregationFactory)
    if not isinstance(factory, AggregationFactory) or isinstance(factory, WeightedAggregationFactory) != is_weighted:
        raise TypeMismatch(
            f"debug_measurements_fn returns a factory {'with' if is_weighted else 'without'} weights, as it is given, "
            f"not {brief(factory)}"
        )
    return factory


def zero_and_clip(inner: FactoryT, zeroing: bool, clipping: bool, *, secure: bool = False) -> FactoryT:
    """Adaptive zeroing around adaptive clipping around an aggregator.

    Args:
        secure: the quantiles are estimated, and the clients that are changed counted, in secure sums.
    """
    quantile = PrivateQuantileEstimationProcess.no_noise
    count = SecureSumFactory(1, 0) if secure else None
    if clipping:
        norm = quantile(1.0, 0.8, learning_rate=0.2, secure_estimation=secure)
        inner = clipping_factory(norm, inner, clipped_count_sum_factory=count)
    if zeroing:
        largest = quantile(
            10.0, 0.98, learning_rate=math.log(10.0), multiplier=2.0, increment=1.0, secure_estimation=secure
        )
        inner = zeroing_factory(largest, inner, zeroed_count_sum_factory=count)
    return inner

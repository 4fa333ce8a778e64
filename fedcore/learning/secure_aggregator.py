"""The aggregator of a model's changes by secure sums."""

from fedcore.aggregators import (
    AggregationFactory,
    MeanFactory,
    PrivateQuantileEstimationProcess,
    SecureSumFactory,
    UnweightedMeanFactory,
)
from fedcore.learning.robust_aggregator import zero_and_clip


def secure_aggregator(*, zeroing: bool = True, clipping: bool = True, weighted: bool = True) -> AggregationFactory:
    """A mean of changes by secure sums, with adaptive zeroing and clipping; for `model_aggregator=`.

    Changes, weights, counts of clients and the bits of the estimated quantiles cross in secure sums only. They are
    hidden where the runtime has a protocol, `fc.runtime.local(secure_aggregation='masked')`.

    Types: those of `zeroing_factory` around `clipping_factory` around a mean of `SecureSumFactory`s.

    Args:
        zeroing: changes whose largest element is above twice the 0.98 quantile plus 1 become zeros.
        clipping: changes are scaled down to the 0.8 quantile of the L2 norms, before each element is bounded.
        weighted: the mean is a `MeanFactory` with weights of 0 to 2^20 - 1; else an `UnweightedMeanFactory`.
    Returns:
        A factory, weighted if the mean is. Elements of changes (times their weights) are bounded by twice the 0.95
        quantile of their largest, estimated from 50, and rounded to one of 2^32 - 1 levels.
    Raises:
        TypeMismatch: by `create`, the value is not inexact and real.
    Source: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning"; quantiles as
        in `fc.learning.robust_aggregator`. The settings are those of TFF's function of the same name.
    Example:
        >>> factory = fc.learning.secure_aggregator(zeroing=False, clipping=False)
        >>> process = factory.create(fc.to_type('float32'), fc.to_type('float32'))
        >>> round(float(process.next(process.initialize(), [1.0, 4.0], [2.0, 1.0]).result), 4)
        2.0
    """
    bound = PrivateQuantileEstimationProcess.no_noise(
        50.0, 0.95, learning_rate=1.0, multiplier=2.0, secure_estimation=True
    )
    values = SecureSumFactory(bound)
    mean: AggregationFactory
    if weighted:
        mean = MeanFactory(values, SecureSumFactory(2.0**20 - 1, 0.0))
    else:
        mean = UnweightedMeanFactory(values, SecureSumFactory(1, 0))
    return zero_and_clip(mean, zeroing, clipping, secure=True)

"""The aggregator of a model's changes that compresses them."""

import math

from fedcore.aggregators import (
    EncodedSumFactory,
    MeanFactory,
    PrivateQuantileEstimationProcess,
    UnweightedMeanFactory,
    clipping_factory,
    zeroing_factory,
)
from fedcore.aggregators.factory import AggregationFactory


def compression_aggregator(
    *, zeroing: bool = True, clipping: bool = True, weighted: bool = True, encoder_fn=None
) -> AggregationFactory:
    """A mean of encoded changes, with adaptive zeroing and clipping; for `model_aggregator=`.

    Types: those of `zeroing_factory` around `clipping_factory` around a mean.

    Args:
        zeroing: changes whose largest element is above twice the 0.98 quantile plus 1 become zeros.
        clipping: changes are scaled down to the 0.8 quantile of the L2 norms.
        weighted: the mean is a `MeanFactory`; else an `UnweightedMeanFactory`.
        encoder_fn: as for `EncodedSumFactory`. Default: 8 bits for each element of the float tensors of more than
            20,000 elements.
    Returns:
        A factory, weighted if the mean is.
    Raises:
        TypeMismatch: by `create`, the value is not inexact, or the function returns no encoder.
    Source: the quantiles are estimated as in Andrew et al. 2021, arXiv:1905.03871, without noise, from 10 (zeroing)
        and 1 (clipping); these settings are those of TFF's function of the same name.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=fc.learning.compression_aggregator())
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['aggregator']['zeroed_count']
        np.int32(0)
    """
    sums = EncodedSumFactory.quantize_above_threshold() if encoder_fn is None else EncodedSumFactory(encoder_fn)
    factory: AggregationFactory = MeanFactory(sums) if weighted else UnweightedMeanFactory(sums)
    if clipping:
        norm = PrivateQuantileEstimationProcess.no_noise(1.0, 0.8, learning_rate=0.2)
        factory = clipping_factory(norm, factory)
    if zeroing:
        largest = PrivateQuantileEstimationProcess.no_noise(10.0, 0.98, learning_rate=math.log(10.0))
        factory = zeroing_factory(largest.map(lambda estimate: 2.0 * estimate + 1.0), factory)
    return factory

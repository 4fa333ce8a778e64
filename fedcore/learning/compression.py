"""The aggregator of a model's changes that compresses them."""

from collections.abc import Callable

from fedcore.aggregators import AggregationFactory, EncodedSumFactory, MeanFactory, UnweightedMeanFactory
from fedcore.aggregators.encoders.encoded_values import EncoderFn
from fedcore.learning.robust_aggregator import with_measurements, zero_and_clip


def compression_aggregator(
    *,
    zeroing: bool = True,
    clipping: bool = True,
    weighted: bool = True,
    debug_measurements_fn: Callable[[AggregationFactory], AggregationFactory] | None = None,
    encoder_fn: EncoderFn | None = None,
) -> AggregationFactory:
    """A mean of encoded changes, with adaptive zeroing and clipping; for `model_aggregator=`.

    Types: those of `zeroing_factory` around `clipping_factory` around a mean.

    Args:
        zeroing: changes whose largest element is above twice the 0.98 quantile plus 1 become zeros.
        clipping: changes are scaled down to the 0.8 quantile of the L2 norms.
        weighted: the mean is a `MeanFactory`; else an `UnweightedMeanFactory`.
        debug_measurements_fn: as for `fc.learning.robust_aggregator`.
        encoder_fn: as for `EncodedSumFactory`. Default: 8 bits for each element of the float tensors of more than
            20,000 elements.
    Returns:
        A factory, weighted if the mean is.
    Raises:
        TypeMismatch: by `create`, the value is not inexact, or `encoder_fn` returns no encoder; or
            `debug_measurements_fn` returns another kind of factory.
    Source: that of `fc.learning.robust_aggregator`; these settings are those of TFF's function of the same name.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=fc.learning.compression_aggregator())
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['aggregator']['zeroed_count']
        np.int32(0)
    """
    sums = EncodedSumFactory.quantize_above_threshold() if encoder_fn is None else EncodedSumFactory(encoder_fn)
    mean = with_measurements(MeanFactory(sums) if weighted else UnweightedMeanFactory(sums), debug_measurements_fn)
    return zero_and_clip(mean, zeroing, clipping)

"""Aggregators of a model's changes: a mean with bounds, encoded, in secure sums, or with differential privacy."""

import math
from collections.abc import Callable
from typing import Any

from fedcore.aggregators import (
    AggregationFactory,
    DifferentiallyPrivateFactory,
    DistributedDiscreteGaussianFactory,
    EncodedSumFactory,
    MeanFactory,
    PrivateQuantileEstimationProcess,
    SecureSumFactory,
    UnweightedAggregationFactory,
    UnweightedMeanFactory,
    WeightedAggregationFactory,
    clipping_factory,
    zeroing_factory,
)
from fedcore.aggregators.encoders.encoded_values import EncoderFn
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
        >>> four_bits = fc.aggregators.encoders.uniform_quantization(bits=4)
        >>> compressed = fc.learning.compression_aggregator(encoder_fn=lambda spec: four_bits)
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=compressed)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['aggregator']['zeroed_count']
        np.int32(0)
    """
    sums = EncodedSumFactory.quantize_above_threshold() if encoder_fn is None else EncodedSumFactory(encoder_fn)
    mean = with_measurements(MeanFactory(sums) if weighted else UnweightedMeanFactory(sums), debug_measurements_fn)
    return zero_and_clip(mean, zeroing, clipping)


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


def dp_aggregator(
    noise_multiplier: float, clients_per_round: float, zeroing: bool = False, **options: Any
) -> UnweightedAggregationFactory:
    """The model aggregator of differentially private federated averaging, with an adaptive clip.

    Types: those of `fc.aggregators.DifferentiallyPrivateFactory`, in a `zeroing_factory` if `zeroing`.

    Args:
        noise_multiplier: of each round; `fc.privacy.calibrate` finds it.
        clients_per_round: how many clients are expected, more than 10 times the noise multiplier.
        zeroing: changes whose largest element is above twice the 0.98 quantile plus 1 become zeros. The quantile is
            estimated without noise, which reveals clients' values: `fc.privacy.Ledger` refuses such a process. That
            is why it is off here, while TFF's function of this name zeroes by default. A change that is not finite
            counts as zeros either way.
        options: of `DifferentiallyPrivateFactory.gaussian_adaptive`.
    Returns:
        An aggregator for the unweighted algorithms. Averages of a BatchNormalization are clipped and get noise too, see
        `fc.learning.trainable_weights_aggregator`.
    Raises:
        FedcoreError: a number is outside its range.
    Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", arXiv:1905.03871, section 3:
        the median, and the learning rate 0.2.
    Example:
        >>> process = fc.learning.algorithms.build_unweighted_fed_avg(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=fc.learning.dp_aggregator(1.0, 100))
    """
    inner: UnweightedAggregationFactory = DifferentiallyPrivateFactory.gaussian_adaptive(
        noise_multiplier, clients_per_round, **options
    )
    return zero_and_clip(inner, zeroing, clipping=False)


def ddp_secure_aggregator(
    noise_multiplier: float, clients_per_round: int, clip: float, bits: int = 20
) -> DistributedDiscreteGaussianFactory:
    """The model aggregator of federated averaging in which clients add noise before a secure sum.

    Types: those of `fc.aggregators.DistributedDiscreteGaussianFactory`.

    TFF's function of this name has an adaptive clip, by a count that has noise of its own; here the clip is fixed.

    Args:
        noise_multiplier, clients_per_round, clip, bits: as for `DistributedDiscreteGaussianFactory`.
    Returns:
        An aggregator for the unweighted algorithms.
    Raises:
        FedcoreError: a number is outside its range.
    Source: Kairouz, Liu, Steinke 2021, arXiv:2102.06387.
    Example:
        >>> process = fc.learning.algorithms.build_unweighted_fed_avg(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1),
        ...     model_aggregator=fc.learning.ddp_secure_aggregator(1.0, 100, clip=0.5))
    """
    return DistributedDiscreteGaussianFactory(noise_multiplier, clients_per_round, clip, bits)

"""The aggregator of a model's changes with differential privacy."""

from typing import Any

from fedcore.aggregators import DifferentiallyPrivateFactory, UnweightedAggregationFactory
from fedcore.learning.robust_aggregator import zero_and_clip


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

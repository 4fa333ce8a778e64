from fedcore.aggregators import DistributedDiscreteGaussianFactory


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

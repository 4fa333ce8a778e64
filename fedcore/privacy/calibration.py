"""Calibration: the least noise for a wanted epsilon."""

from collections.abc import Callable
from typing import Any

from fedcore.aggregators import DifferentiallyPrivateFactory
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.privacy.events import Accounted, Round, account, epsilon_of
from fedcore.privacy.ledger import participation_of, valid_delta
from fedcore.privacy.mechanism import mechanism_of_factory
from fedcore.scalars import real_number, whole_number
from fedcore.simulation.participation import FixedSizeParticipation


def calibrate(
    target_epsilon: float,
    delta: float,
    rounds: int,
    sampler: Any,
    *,
    clients_per_round: int | None = None,
    factory: Callable[[float], DifferentiallyPrivateFactory] | None = None,
    accountant: str = "rdp",
    first_round: int = 0,
) -> float:
    """The least noise multiplier with which so many rounds have at most the wanted epsilon.

    Args:
        target_epsilon: above 0.
        delta: below 1 over the number of clients.
        rounds: at least 1.
        sampler: one of `fc.simulation`, or a description of `fc.simulation.participation`.
        clients_per_round: of a sampler that is given the number of clients. Default: it draws by itself.
        factory: noise multiplier -> the aggregator, whose kind of noise is meant. Default: independent noise.
        accountant: 'rdp' or 'pld', as for `Ledger.epsilon`.
        first_round: number of the round with which the sampler begins, as for `Ledger`.
    Raises:
        InvalidValue: a number is outside its range; no noise multiplier up to 10^6 is enough.
        TypeMismatch: the sampler does not say how it draws, or needs `clients_per_round`.
    Source: the accounting of `Ledger`, and bisection.
    Example:
        >>> round(fc.privacy.calibrate(2.0, 1e-5, 100, sampler), 2)
        0.97
    """
    target = float(real_number("target_epsilon", target_epsilon, above=0))
    count, first = whole_number("rounds", rounds, at_least=1), whole_number("first_round", first_round, at_least=0)
    participation = participation_of(sampler)
    delta = valid_delta(delta, participation.population)
    if clients_per_round is None and isinstance(participation, FixedSizeParticipation):
        raise TypeMismatch("calibrate needs clients_per_round, which this sampler is given in every round")
    # With other samplers, the accounting does not depend on the cohort.
    cohort = whole_number("clients_per_round", 1 if clients_per_round is None else clients_per_round, at_least=1)
    build = factory or (lambda z: DifferentiallyPrivateFactory.gaussian_fixed(z, cohort, 1.0))

    def account_with(z: float) -> Accounted:
        aggregator = build(z)
        if not isinstance(aggregator, DifferentiallyPrivateFactory):
            raise TypeMismatch(f"factory makes a DifferentiallyPrivateFactory, not {brief(aggregator)}")
        return account([Round(mechanism_of_factory(aggregator), cohort)] * count, participation, first)

    def excess(z: float) -> float:
        return epsilon_of(account_with(z), delta, accountant) - target

    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 1e6:
            raise InvalidValue(f"no noise multiplier up to 10^6 gives epsilon {target:g} at delta {delta:g}")
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high

"""Privacy events of dp-accounting for the rounds of a training, from mechanisms and participation.

A client's values in several rounds of correlated noise are one value of a Gaussian mechanism: its sensitivity is the
norm of the sum of their columns in the mechanism's matrix. So such rounds, and those of clients that come by a
schedule, are one `GaussianDpEvent` whose noise multiplier is divided by that sensitivity.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.errors import FedcoreError, InvalidValue
from fedcore.privacy.mechanism import Mechanism
from fedcore.simulation.participation import (
    FixedSizeParticipation,
    Participation,
    PassParticipation,
    PoissonParticipation,
    every_round,
)


def dp_accounting() -> Any:
    """The package dp_accounting with its accountants.

    Raises:
        FedcoreError: it is not installed.
    """
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError:
        raise FedcoreError("privacy accounting needs dp-accounting: pip install 'fedcore[dp]'") from None
    return dp_accounting


@attrs.frozen
class Round:
    """The mechanism and the clients of one round.

    Args:
        mechanism: its noise.
        cohort: number of clients that were drawn.
        releases: how many results the round had, each with noise of its own; the training goes on from the last one.
    """

    mechanism: Mechanism
    cohort: int
    releases: int = 1

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the one Gaussian mechanism that is as private as all results together."""
        return self.mechanism.noise_multiplier / math.sqrt(self.releases)


@attrs.frozen
class Accounted:
    """The privacy event of some rounds.

    Args:
        parts: events of dp-accounting, each with how often it happened.
        relation: the name of dp-accounting's relation between the two worlds that nobody can tell apart.
        sampling: which accounting this is, in a few words.
    """

    parts: tuple[tuple[Any, int], ...]
    relation: str
    sampling: str

    @property
    def event(self) -> Any:
        """All parts as one event."""
        dp = dp_accounting()
        return dp.ComposedDpEvent([dp.SelfComposedDpEvent(event, count) for event, count in self.parts])

    @property
    def worlds(self) -> str:
        """The difference between the two worlds."""
        return {
            "ADD_OR_REMOVE_ONE": "a client is there or not",
            "REPLACE_ONE": "a client has one set of data or another",
            "REPLACE_SPECIAL": "a client sends its values or zeros",
        }[self.relation]


def account(rounds: Sequence[Round], participation: Participation, first_round: int = 0) -> Accounted:
    """Accounts for the rounds by the strongest theorem that covers mechanism and participation.

    Args:
        first_round: the number of the first one for the sampler, whose passes begin with round 0.
    Raises:
        InvalidValue: the noise is correlated, and its parameters changed between rounds or a round has several results.
    """
    if any(r.mechanism.is_correlated for r in rounds):
        return _account_correlated(rounds, participation, first_round)
    if any(r.mechanism.is_discrete for r in rounds):
        return _account_discrete(rounds, participation, first_round)
    if isinstance(participation, PoissonParticipation):
        return _account_poisson(rounds, participation)
    if isinstance(participation, FixedSizeParticipation) and not participation.replace:
        return _account_without_replacement(rounds, participation.population)
    if isinstance(participation, FixedSizeParticipation):
        # In the worst case all draws of a round are one client, which moves the sum by `cohort` clips.
        worst = [(r.noise_multiplier, r.cohort**2) for r in rounds]
        return _schedule(worst, "with replacement: a client may be all draws of a round")
    return _schedule([(z, 1) for z in _least_multipliers(rounds, participation, first_round)], "at most once a pass")


def _least_multipliers(rounds: Sequence[Round], participation: PassParticipation, first_round: int) -> list[float]:
    """The least noise multiplier in each of the ranges of rounds (`windows`) that a client takes part in at most once.

    Args:
        first_round: the number of the first one for the participation.
    """
    windows = participation.windows(first_round, first_round + len(rounds))
    return [min(rounds[number - first_round].noise_multiplier for number in window) for window in windows]


def _account_poisson(rounds: Sequence[Round], participation: PoissonParticipation) -> Accounted:
    """Rounds of Poisson sampling; with a period p, p groups of clients take turns.

    A client may be drawn in at most one of p consecutive rounds. So each window of p rounds counts as one Gaussian
    mechanism over a Poisson sample, with the least noise multiplier of the window. The first window begins with the
    first round, though any other division into windows would do.
    """
    multipliers = _least_multipliers(rounds, _without_chance(participation), 0)
    parts = tuple((poisson_sampled(z, participation.rate), count) for z, count in _run_lengths(multipliers))
    # With several groups, a client that joins or leaves may move others to other groups. So it stays, and sends zeros.
    relation = "ADD_OR_REMOVE_ONE" if participation.period == 1 else "REPLACE_SPECIAL"
    return Accounted(parts, relation, "Poisson sampling")


def _account_without_replacement(rounds: Sequence[Round], population: int) -> Accounted:
    """Rounds whose clients are a sample of fixed size; a client is replaced, so that the size stays."""
    dp = dp_accounting()
    parts = []
    for (z, cohort), count in _run_lengths([(r.noise_multiplier, r.cohort) for r in rounds]):
        # Another value in place of a client's moves the sum by up to twice the clip.
        event = dp.SampledWithoutReplacementDpEvent(population, min(cohort, population), gaussian(z / 2))
        parts.append((event if z else gaussian(z), count))
    return Accounted(tuple(parts), "REPLACE_ONE", "fixed-size sampling without replacement")


def _account_correlated(rounds: Sequence[Round], participation: Participation, first_round: int) -> Accounted:
    """Rounds of one correlated mechanism: amplified by cyclic Poisson sampling if its bands permit, else not amplified.

    Raises:
        InvalidValue: the parameters changed between rounds, or a round has several results.
    """
    mechanism = rounds[0].mechanism
    for number, round_ in enumerate(rounds, 1):
        if round_.releases != 1:
            raise InvalidValue(
                f"round {number} of correlated noise has {round_.releases} results, which nothing covers"
            )
        if round_.mechanism != mechanism:
            raise InvalidValue(
                f"correlated noise has the same parameters in all rounds, but those of round {number} are "
                f"{round_.mechanism} and those of round 1 {mechanism}"
            )
    bands = len(mechanism.coefficients or ())
    z, copies = mechanism.noise_multiplier, 1  # copies of one client in a round, at most
    if isinstance(participation, PoissonParticipation):
        if mechanism.coefficients is not None and bands <= participation.period:
            count = math.ceil(len(rounds) / participation.period)
            parts = ((poisson_sampled(z, participation.rate), count),)
            return Accounted(parts, "REPLACE_SPECIAL", "cyclic Poisson sampling of a banded mechanism")
    elif isinstance(participation, FixedSizeParticipation) and participation.replace:
        copies = max(r.cohort for r in rounds)
    squared = copies**2 * squared_sensitivity(mechanism, _without_chance(participation), len(rounds), first_round)
    return _schedule([(z, squared)], "the worst schedule of a client, without amplification")


def _account_discrete(rounds: Sequence[Round], participation: Participation, first_round: int) -> Accounted:
    """Rounds with discrete noise: by concentrated differential privacy, which sampling is not known to amplify."""
    replace = isinstance(participation, FixedSizeParticipation) and participation.replace
    schedule = _without_chance(participation)
    copies = max((r.cohort for r in rounds), default=1) if replace else 1  # of one client in a round, at most
    parts = [
        (dp_accounting().ZCDpEvent((copies / z) ** 2 / 2) if z else gaussian(z), count)
        for z, count in _run_lengths(_least_multipliers(rounds, schedule, first_round))
    ]
    return Accounted(tuple(parts), "REPLACE_SPECIAL", "discrete noise, without amplification")


def _without_chance(participation: Participation) -> PassParticipation:
    """A participation in which a client may take part in each round for which the given one may draw it."""
    if isinstance(participation, PoissonParticipation):
        return PassParticipation(participation.population, participation.period, participation.period)
    if isinstance(participation, FixedSizeParticipation):
        return every_round(participation.population)
    return participation


def squared_sensitivity(
    mechanism: Mechanism, participation: PassParticipation, rounds: int, first_round: int = 0
) -> float:
    """The most that a client moves what the noise is added to, squared, over the square of the clip.

    Args:
        first_round: the number of the first round for the sampler; the mechanism's begin with 0.
        mechanism: a tree or a banded one. Each released number is a node or a row of a matrix C with entries of at
            least 0, so a client's worst values are parallel, and pairs of its rounds i, j add (CᵀC)_ij.
    """
    if mechanism.restart_every is not None:
        return sum(
            _squared_in_tree(
                first_round + first, first_round + min(first + mechanism.restart_every, rounds), participation
            )
            for first in range(0, rounds, mechanism.restart_every)
        )
    assert mechanism.coefficients is not None
    c = np.asarray(mechanism.coefficients)
    products = np.correlate(c, c, "full")[len(c) - 1 :]  # (CᵀC)_ij by |i - j|; it does not increase
    most = participation.most(first_round, first_round + rounds)
    # The pairs of one round of the client with itself, and with the rounds before and after it at the least distances.
    products_of_round = float(products[0])
    for number in range(1, most):
        distance = participation.least_distance(number)
        if distance >= len(c):
            break
        products_of_round += 2 * float(products[distance])
    return most * products_of_round


def _squared_in_tree(first: int, stop: int, participation: PassParticipation) -> float:
    """The squared sensitivity of the tree over the rounds `first` to `stop` - 1.

    It is the sum over the nodes of the square of how many rounds of a client are below, level by level: at most
    Σ counts · the largest count.
    """
    most, rounds = participation.most(first, stop), stop - first
    return sum(most * min(most, participation.most_within(1 << level)) for level in range(rounds.bit_length()))


def _schedule(parts: Sequence[tuple[float, float]], sampling: str) -> Accounted:
    """Gaussian mechanisms that no sampling amplifies; a run of n equal ones is one with √n times the sensitivity.

    Args:
        parts: the noise multiplier and the squared sensitivity of each; one of sensitivity 0 is left out.
        sampling: as of `Accounted`.
    """
    events = [gaussian(z / math.sqrt(squared * count)) for (z, squared), count in _run_lengths(parts) if squared]
    return Accounted(tuple((event, 1) for event in events), "REPLACE_SPECIAL", sampling)


def poisson_sampled(z: float, rate: float) -> Any:
    """The event of a Gaussian mechanism over a Poisson sample."""
    return dp_accounting().PoissonSampledDpEvent(rate, gaussian(z)) if z else gaussian(z)


def gaussian(noise_multiplier: float) -> Any:
    """The event of a Gaussian mechanism; one without noise is not private."""
    dp = dp_accounting()
    return dp.GaussianDpEvent(noise_multiplier) if noise_multiplier > 0 else dp.NonPrivateDpEvent()


def _run_lengths(values: Sequence) -> list[tuple[Any, int]]:
    """Each run of equal values: the value and the length of the run."""
    return [(value, len(list(group))) for value, group in itertools.groupby(values)]


def epsilon_of(accounted: Accounted, delta: float, accountant: str = "rdp") -> float:
    """Epsilon of the rounds for a delta.

    Args:
        accountant: 'rdp' (Rényi) or 'pld' (privacy loss distributions: tighter, slower, not for sampling without
            replacement).
    Raises:
        InvalidValue: the accountant does not cover the event.
    """
    if accountant not in ("rdp", "pld"):
        raise InvalidValue(f"accountant is 'rdp' or 'pld', not {accountant!r}")
    dp = dp_accounting()
    if accountant == "rdp":
        orders = dp.rdp.RdpAccountant().orders
        spent = sum(
            (count * _renyi(event, accounted.relation) for event, count in accounted.parts), np.zeros(len(orders))
        )
        return float(dp.rdp.compute_epsilon(orders, spent, delta)[0])
    pld = dp.pld.PLDAccountant(neighboring_relation=dp.NeighboringRelation[accounted.relation])
    if not pld.supports(accounted.event):
        raise InvalidValue(f"dp-accounting's accountant 'pld' does not cover {accounted.sampling}: use 'rdp'")
    return float(pld.compose(accounted.event).get_epsilon(delta))


@functools.lru_cache(256)
def _renyi(event: Any, relation: str) -> np.ndarray:
    """The Rényi divergences of an event at the accountant's orders; infinite at orders that it cannot compute."""
    dp = dp_accounting()

    def divergences_at(orders: np.ndarray) -> np.ndarray:
        accountant = dp.rdp.RdpAccountant(orders, neighboring_relation=dp.NeighboringRelation[relation])
        return accountant.compose(event).rdp

    orders = dp.rdp.RdpAccountant().orders
    if not isinstance(event, dp.PoissonSampledDpEvent) or event.sampling_probability == 1:
        return divergences_at(orders)
    divergences = np.full(len(orders), np.inf)
    ends = _series_ends(event.sampling_probability, event.event.noise_multiplier, orders)
    divergences[ends] = divergences_at(orders[ends])
    return divergences


def _series_ends(q: float, sigma: float, orders: np.ndarray) -> np.ndarray:
    """bool for each order: whether dp-accounting computes the divergence of a Poisson-sampled Gaussian mechanism.

    At a fractional order it sums a series up to terms below e^-30 of the sum, and at most 1000: where they decrease
    more slowly, it warns after all 1000, and leaves the order out.

    Args:
        q, sigma: sampling probability and noise multiplier.
    Source: Mironov et al. 2019, arXiv:1908.10530, section 3.3.
    """
    from scipy.special import gammaln, log_ndtr, logsumexp

    ends = orders % 1 == 0
    fractional = orders[~ends]
    i = np.arange(1000.0)[:, None]
    j, z = fractional - i, sigma**2 * math.log(1 / q - 1) + 0.5
    binomial = gammaln(fractional + 1) - gammaln(i + 1) - gammaln(j + 1)
    first = i * math.log(q) + j * math.log1p(-q) + (i * i - i) / (2 * sigma**2) + log_ndtr((z - i) / sigma)
    second = j * math.log(q) + i * math.log1p(-q) + (j * j - j) / (2 * sigma**2) + log_ndtr((j - z) / sigma)
    terms = binomial + np.maximum(first, second)
    ends[~ends] = terms[-1] < logsumexp(binomial + np.logaddexp(first, second), axis=0) - 30
    return ends

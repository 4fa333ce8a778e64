"""Samples the clients of a round.

A sampler is a function (round number, at least 0; number of clients) -> identifiers. A sample depends on the sampler's
seed and the round number only, so a training that is resumed samples equal clients. `sampler.participation` describes
what is drawn, for `fc.privacy.Ledger`; `fc.simulation.participation` has the kinds.

Decision 0132.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from fedcore.errors import InvalidValue
from fedcore.scalars import random_generator, real_number, seed_or_drawn, whole_number
from fedcore.simulation.participation import (
    FixedSizeParticipation,
    Participation,
    PassParticipation,
    PoissonParticipation,
)

Id = TypeVar("Id", bound=Hashable)


@attrs.frozen
class Sampler:
    """Samples the clients of a round.

    Args:
        ids: the identifiers to sample from.
        participation: describes how.
        choose: (round number, number of clients or None) -> int array of positions in `ids`.
        takes_size: whether it is told the number of clients in every round.
    """

    ids: tuple
    participation: Participation
    choose: Callable[[int, int | None], NDArray] = attrs.field(repr=False)
    takes_size: bool = False

    def __call__(self, round_num: int, size: int | None = None) -> list:
        """The identifiers of a round.

        Args:
            size: number of clients; None where the sampler knows it.
        Raises:
            ValueError: the sampler needs a size, or draws another one.
        """
        round_number = whole_number("round_num", round_num, at_least=0)
        count = None if size is None else whole_number("size", size, at_least=0)
        return [self.ids[i] for i in self.choose(round_number, count)]


def build_uniform_sampling_fn(
    sample_range: Sequence[Id], replace: bool = False, random_seed: int | None = None, *, seed: int | None = None
) -> Sampler:
    """Builds a sampler that draws a given number of clients uniformly in each round.

    A sample of n clients takes time in proportion to n, however many clients there are.

    Args:
        sample_range: the identifiers to sample from.
        replace: whether a client may be sampled twice in a round.
        random_seed: a whole number. Default: drawn when the function is built.
        seed: another name of `random_seed`.
    Returns:
        A sampler, which needs the number of clients.
    Raises:
        ValueError: both names of the seed are given; or the function is asked for more clients than there are, and
            `replace` is False.
    Example:
        >>> sample = build_uniform_sampling_fn(["a", "b", "c", "d"], random_seed=1)
        >>> sample(7, 2) == sample(7, 2)
        True
        >>> len(set(sample(8, 4)))
        4
    """
    if random_seed is not None and seed is not None:
        raise InvalidValue("build_uniform_sampling_fn: random_seed and seed are one argument; give one of them")
    ids = tuple(sample_range)
    entropy = seed_or_drawn("random_seed", random_seed if seed is None else seed)

    def choose(round_number: int, size: int | None) -> NDArray:
        size = _require_size(size)
        if size > len(ids) and not replace:
            raise InvalidValue(f"cannot draw {size} of {len(ids)} clients without replacement")
        return random_generator(entropy, round_number).choice(len(ids), size=size, replace=replace)

    return Sampler(ids, FixedSizeParticipation(len(ids), bool(replace)), choose, takes_size=True)


def build_poisson_sampling_fn(client_ids: Sequence[Id], rate: float, seed: int | None = None) -> Sampler:
    """Builds a sampler that draws each client with probability `rate` in each round, independently.

    A round has any number of clients, also none. Privacy is amplified by this sampling most simply.

    Args:
        client_ids: the identifiers to sample from.
        rate: above 0 and at most 1; the expected number of clients over all.
        seed: a whole number. Default: drawn when the function is built.
    Returns:
        A sampler. Where a number of clients is given, it has to be the expected one.
    Raises:
        ValueError: the rate is outside its range; the sampler is asked for another number than is expected.
    Example:
        >>> sample = build_poisson_sampling_fn(range(1000), rate=0.05, seed=1)
        >>> len(sample(0)), len(sample(1))
        (47, 60)
    """
    ids, entropy, rate = tuple(client_ids), seed_or_drawn("seed", seed), _probability(rate)

    def choose(round_number: int, size: int | None) -> NDArray:
        _check_expected(size, rate * len(ids))
        return np.flatnonzero(random_generator(entropy, round_number).random(len(ids)) < rate)

    return Sampler(ids, PoissonParticipation(len(ids), rate), choose)


def build_min_separation_sampling_fn(
    client_ids: Sequence[Id], separation: int, rate: float | None = None, seed: int | None = None
) -> Sampler:
    """Builds a sampler after whose rounds a client rests for at least `separation` - 1 rounds.

    The clients are divided at random into `separation` groups, whose sizes differ by at most one; round r draws from
    group r modulo `separation`.

    Args:
        client_ids: the identifiers to sample from.
        separation: rounds from one possible participation of a client to the next, at least 1.
        rate: probability with which each client of the group is drawn, independently, which amplifies the privacy of
            banded noise. Default: the number of clients that the sampler is given is drawn uniformly.
        seed: a whole number. Default: drawn when the function is built.
    Returns:
        A sampler; with a rate, a number of clients that is given has to be the expected one.
    Raises:
        ValueError: there are fewer clients than groups; the sampler is asked for more clients than the group has.
    Source: Choquette-Choo et al. 2023, arXiv:2306.08153, section 4 (b-min-sep participation; Algorithm 2 for `rate`).
    Example:
        >>> sample = build_min_separation_sampling_fn(range(8), separation=4, seed=1)
        >>> sorted(sample(0, 2) + sample(1, 2) + sample(2, 2) + sample(3, 2))
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    ids, entropy = tuple(client_ids), seed_or_drawn("seed", seed)
    separation = whole_number("separation", separation, at_least=1)
    if separation > len(ids):
        raise InvalidValue(f"cannot divide {len(ids)} clients into {separation} groups")
    # Not the entropy alone, nor with zeros after it: numpy seeds these as it seeds round 0.
    groups = np.array_split(random_generator(entropy, 0, 1).permutation(len(ids)), separation)
    if rate is None:

        def choose(round_number: int, size: int | None) -> NDArray:
            group, size = groups[round_number % separation], _require_size(size)
            if size > len(group):
                raise InvalidValue(f"cannot draw {size} of the {len(group)} clients of a group")
            return random_generator(entropy, round_number).choice(group, size=size, replace=False)

        return Sampler(ids, PassParticipation(len(ids), separation, separation), choose, takes_size=True)

    probability = _probability(rate)

    def choose_by_rate(round_number: int, size: int | None) -> NDArray:
        group = groups[round_number % separation]
        _check_expected(size, probability * len(group))
        return group[random_generator(entropy, round_number).random(len(group)) < probability]

    return Sampler(ids, PoissonParticipation(len(ids), probability, separation), choose_by_rate)


def build_random_permutation_sampling_fn(
    client_ids: Sequence[Id], clients_per_round: int, reshuffle: bool = True, seed: int | None = None
) -> Sampler:
    """Builds a sampler that passes over the shuffled clients, `clients_per_round` in a round.

    A pass has floor(clients / clients_per_round) rounds; the clients that are left over sit it out.

    Args:
        client_ids: the identifiers to sample from.
        clients_per_round: at least 1.
        reshuffle: whether each pass has an order of its own. If not, all passes have the order of the first one, so
            that a client takes part at most once in as many rounds in a row as a pass has.
        seed: a whole number. Default: drawn when the function is built.
    Returns:
        A sampler; a number of clients that is given has to be `clients_per_round`.
    Raises:
        ValueError: there are fewer clients than a round needs, or the sampler is asked for another number.
    Example:
        >>> sample = build_random_permutation_sampling_fn(range(6), clients_per_round=2, seed=1)
        >>> sorted(sample(0) + sample(1) + sample(2))
        [0, 1, 2, 3, 4, 5]
    """
    ids, entropy = tuple(client_ids), seed_or_drawn("seed", seed)
    count = whole_number("clients_per_round", clients_per_round, at_least=1)
    if count > len(ids):
        raise InvalidValue(f"cannot draw {count} of {len(ids)} clients without replacement")
    rounds = len(ids) // count

    def choose(round_number: int, size: int | None) -> NDArray:
        _check_expected(size, count)
        pass_number, place = divmod(round_number, rounds)
        order = random_generator(entropy, pass_number if reshuffle else 0).permutation(len(ids))
        return order[place * count : (place + 1) * count]

    return Sampler(ids, PassParticipation(len(ids), rounds, 1 if reshuffle else rounds), choose)


def _probability(rate: float) -> float:
    number = float(real_number("rate", rate, above=0))
    if number > 1:
        raise InvalidValue(f"rate is a probability, at most 1, not {number}")
    return number


def _require_size(size: int | None) -> int:
    if size is None:
        raise InvalidValue("this sampler needs the number of clients: sample(round_num, size)")
    return size


def _check_expected(size: int | None, expected: float) -> None:
    """Refuses a number of clients that is not the one that the sampler draws, or expects to draw, to within 1."""
    if size is not None and abs(size - expected) > 1:
        raise InvalidValue(f"this sampler draws {expected:g} clients a round, not {size}, and needs no size")

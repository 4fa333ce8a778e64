"""`Ledger`: follows a process round by round, and tells what its rounds reveal about a client.

Decision 0136.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.privacy.events import Accounted, Round, account, epsilon_of
from fedcore.privacy.mechanism import (
    Mechanism,
    at_path,
    draws_from_own_key,
    mechanism_of_state,
    noise_cohort_size,
    part,
    private_state_path,
)
from fedcore.privacy.noiseless_results import noiseless_results, releases
from fedcore.privacy.release_journal import Release, round_of_plain
from fedcore.scalars import real_number, whole_number
from fedcore.simulation.participation import (
    FixedSizeParticipation,
    Participation,
    PassParticipation,
    PoissonParticipation,
)
from fedcore.templates import IterativeProcess

_IMPROBABLE = 8.0
"""Standard deviations from the expected number of clients that no sampler reaches."""


class Ledger:
    """Tells epsilon of a process's rounds from what they did: their noise, which the state holds, and their clients.

    Args:
        process: a `LearningProcess` or an `AggregationProcess` with one private aggregation.
        sampler: draws the clients of every round: one of `fc.simulation`, or any callable with a `participation`. For
            a process whose noise has a `noise_cohort_size`: a description of the sampling that is meant, of
            `fc.simulation.participation`; which clients are simulated is not compared.
        delta: the probability with which epsilon need not hold; less than 1 over the number of clients.
        first_round: number of the round with which the sampler begins. Passes begin with round 0, so from inside one a
            client may take part in what is left of it and in the next. Default: 0.
    Raises:
        TypeMismatch: the process adds no noise, or clients' values reach its state without noise; the sampler does
            not say how it draws.
        FedcoreError: delta is outside its range; dp-accounting is not installed.
    Source: each kind of noise and participation by the theorem that docs/privacy.md names.
    Example:
        >>> ledger, state = fc.privacy.Ledger(process, sampler, delta=1e-5), process.initialize()
        >>> for r in range(2):
        ...     cohort = sampler(r)
        ...     state = process.next(state, [1.0 for _ in cohort]).state
        ...     record = ledger.record(state, cohort)
        >>> record['round'], round(record['epsilon'], 2)
        (2, 1.2)
    """

    def __init__(self, process: IterativeProcess, sampler: Any, *, delta: float, first_round: int = 0) -> None:
        if not isinstance(process, IterativeProcess):
            raise TypeMismatch(f"a ledger follows a LearningProcess or an AggregationProcess, not {brief(process)}")
        self._process, self._path = process, private_state_path(process)
        self.without_noise: tuple[str, ...] = results_without_noise(process)
        """Results of a round that clients' values reach without noise, such as metrics: epsilon leaves them out."""
        self._sampler = sampler
        self.participation = participation_of(sampler)
        self.delta = valid_delta(delta, self.participation.population)
        self._first = whole_number("first_round", first_round, at_least=0)
        self._rounds: list[Round] = []
        self._states: list[int] = []  # the process's own count after each round

    def record(self, state: Any, cohort: Sequence | int) -> dict[str, Any]:
        """Adds a round that has been run.

        Args:
            state: the process's state after the round.
            cohort: the identifiers of the clients that the sampler drew, also of those that failed; or their number,
                by which less can be checked.
        Returns:
            `{'round': number of rounds, 'epsilon': of all so far, 'delta': …, 'noise_multiplier': of this round}`.
        Raises:
            InvalidValue: a round was left out, or recorded twice; the sampler does not draw these clients, or not so
                many; a parameter of the state is none that a factory makes, or one of correlated noise has changed.
        Example:
            >>> ledger = fc.privacy.Ledger(process, sampler, delta=1e-5)
            >>> after = process.next(process.initialize(), [1.0 for _ in sampler(0)]).state
            >>> ledger.record(after, sampler(0))['noise_multiplier']
            1.0
        """
        private, count = at_path(state, self._path), self.rounds_of_noise(state)
        if self._states and count != self._states[-1] + 1:
            raise InvalidValue(
                f"the state has done {count} rounds of noise, and {self._states[-1]} when a round was last recorded: "
                "record every round once, in order"
            )
        if count < 1 or (not self._states and count != 1):
            raise InvalidValue(
                f"the state has done {count} rounds of noise, but none is recorded: record each round, or restore "
                "the ledger with `set_state` when a training goes on"
            )
        mechanism = mechanism_of_state(private)
        size = self._round_size(private, cohort, self._first + len(self._rounds))
        added = [*self._rounds, Round(mechanism, size)]
        accounted = account(added, self.participation, self._first)  # raises if it does not cover the new round
        self._rounds, self._states = added, [*self._states, count]
        return self._as_row(mechanism, accounted)

    def _as_row(self, mechanism: Mechanism, accounted: Accounted) -> dict[str, Any]:
        """The result of `record`, for a round with this mechanism, and all recorded rounds."""
        return {
            "round": len(self._rounds),
            "epsilon": epsilon_of(accounted, self.delta),
            "delta": self.delta,
            "noise_multiplier": mechanism.noise_multiplier,
        }

    def record_again(self, state: Any, cohort: Sequence | int) -> dict[str, Any]:
        """Adds a further result of a recorded round, with noise of its own.

        A result that is thrown away is spent too: record all results of a round, the first by `record`, before anyone
        looks at them.

        Args:
            state: the process's state after that result.
            cohort: as for `record`.
        Returns:
            As `record`.
        Raises:
            InvalidValue: no result of the round is recorded; both results have the same noise, since it is drawn from
                the seed of the call and not by `secure_noise=True`, so that their difference tells of the clients
                without noise; the noise is correlated with that of other rounds; or as for `record`.
        Example:
            >>> factory = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 20, 1.0, secure_noise=True)
            >>> process = factory.create(fc.to_type('float32'))
            >>> ledger, state = fc.privacy.Ledger(process, sampler, delta=1e-5), process.initialize()
            >>> thrown_away, kept = (process.next(state, [1.0 for _ in sampler(0)]).state for _ in range(2))
            >>> record = ledger.record(thrown_away, sampler(0))
            >>> ledger.record_again(kept, sampler(0))['epsilon'] > record['epsilon']
            True
        """
        private, count = at_path(state, self._path), self.rounds_of_noise(state)
        if not 1 <= count <= len(self._rounds):
            raise InvalidValue(f"the state has done {count} rounds of noise, of which no result is recorded")
        earlier, mechanism = self._rounds[count - 1], mechanism_of_state(private)
        if mechanism.is_correlated or not draws_from_own_key(private):
            why = "both have the same noise: their difference tells of the clients without noise"
            if mechanism.is_correlated:
                why = "its noise is correlated with that of other rounds"
            raise InvalidValue(f"round {count} of noise has another result, and {why}")
        size = self._round_size(private, cohort, self._first + count - 1)
        # A `Round` has one mechanism for all its results: that of the least noise, and the largest cohort.
        if mechanism.noise_multiplier > earlier.mechanism.noise_multiplier:
            mechanism = earlier.mechanism
        added = attrs.evolve(
            earlier, mechanism=mechanism, cohort=max(size, earlier.cohort), releases=earlier.releases + 1
        )
        self._rounds = [*self._rounds[: count - 1], added, *self._rounds[count:]]
        return self._as_row(mechanism, self._account())

    def rounds_of_noise(self, state: Any) -> int:
        """How many rounds of noise a state has done."""
        return int(np.asarray(part(at_path(state, self._path), "round")))

    def check_follows(self, process: IterativeProcess) -> None:
        """Refuses to account for the rounds of another process, where it finds out.

        Raises:
            TypeMismatch: the process keeps its noise elsewhere, or clients' values reach its state without noise.
        """
        if process is self._process:
            return
        if private_state_path(process) != self._path:
            raise TypeMismatch("the ledger follows another process, which keeps its noise elsewhere in its state")
        results_without_noise(process)

    def epsilon(self, delta: float | None = None, *, rounds: int | None = None, accountant: str = "rdp") -> float:
        """Epsilon after the recorded rounds: infinite where one had no noise.

        Args:
            delta: Default: that of the ledger.
            rounds: the first so many of them. Default: all.
            accountant: 'rdp' (Rényi) or 'pld' (privacy loss distributions: tighter, slower, not for sampling without
                replacement).
        Raises:
            InvalidValue: delta is outside its range, fewer rounds are recorded, or the accountant does not cover them.
        Example:
            >>> fc.privacy.Ledger(process, sampler, delta=1e-5).epsilon()
            0.0
        """
        recorded = self._first_rounds(rounds)
        if not recorded:
            return 0.0
        target_delta = self.delta if delta is None else valid_delta(delta, self.participation.population)
        return epsilon_of(account(recorded, self.participation, self._first), target_delta, accountant)

    def event(self, rounds: int | None = None) -> Any:
        """The rounds as an event of dp-accounting.

        Example:
            >>> type(fc.privacy.Ledger(process, sampler, delta=1e-5).event()).__name__
            'ComposedDpEvent'
        """
        return self._account(rounds).event

    def _account(self, rounds: int | None = None) -> Accounted:
        return account(self._first_rounds(rounds), self.participation, self._first)

    def _first_rounds(self, rounds: int | None) -> list[Round]:
        """The first so many recorded rounds; all for None.

        Raises:
            InvalidValue: fewer are recorded.
        """
        count = len(self._rounds) if rounds is None else whole_number("rounds", rounds, at_least=0)
        if count > len(self._rounds):
            raise InvalidValue(f"only {len(self._rounds)} rounds are recorded, not {count}")
        return self._rounds[:count]

    def get_state(self) -> dict[str, Any]:
        """The recorded rounds as numbers and lists, for a checkpoint."""
        rounds = [attrs.asdict(r) for r in self._rounds]
        return {"rounds": rounds, "states": list(self._states), "first_round": self._first}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes the rounds that `get_state` gave.

        Raises:
            InvalidValue: they begin with another round of the sampler.
        """
        first = int(state.get("first_round", self._first))
        if first != self._first:
            raise InvalidValue(
                f"the recorded rounds begin with first_round={first}, and this ledger with {self._first}"
            )
        self._rounds, self._states = list(map(round_of_plain, state["rounds"])), [int(n) for n in state["states"]]

    def last_release(self, state: Any, digest: str) -> Release:
        """The result that was recorded last, as an entry of a journal.

        Args:
            state: the process's state after that result.
            digest: of the model's weights in it.
        """
        count = self.rounds_of_noise(state)
        return Release(count, digest, attrs.evolve(self._rounds[count - 1], releases=1))

    def add_releases(self, releases: Sequence[Release]) -> None:
        """Adds the releases of a journal that are not recorded: those of rounds that a crash took back.

        Raises:
            InvalidValue: the journal leaves out a round.
        """
        rounds = list(self._rounds)  # rounds[i] has done i + 1 rounds of noise: `Release.count`
        for count, group in itertools.groupby(sorted(releases, key=lambda r: r.count), lambda r: r.count):
            results = list(group)
            if count > len(rounds) + 1:
                raise InvalidValue(f"the journal of releases leaves out round {len(rounds) + 1} of noise")
            if count == len(rounds) + 1:
                rounds.append(results[0].round)
            num_releases = max(len(results), rounds[count - 1].releases)
            rounds[count - 1] = attrs.evolve(rounds[count - 1], releases=num_releases)
        self._rounds, self._states = rounds, list(range(1, len(rounds) + 1))

    def __repr__(self) -> str:
        if not self._rounds:
            return f"<Ledger of no round, {self.participation}>"
        accounted = self._account()
        epsilon = epsilon_of(accounted, self.delta)
        return (
            f"<Ledger of {len(self._rounds)} rounds: epsilon {epsilon:.4g} at delta {self.delta:g}, "
            f"{accounted.sampling}; the worlds differ in whether {accounted.worlds}>"
        )

    def _round_size(self, private: Any, cohort: Sequence | int, number: int) -> int:
        """The number of clients of a round, or of the larger one that it stands for.

        Raises:
            InvalidValue: the sampler cannot have drawn them for round `number`, or does not draw so many.
        """
        stands_for = noise_cohort_size(private)
        if stands_for is None:
            return self._cohort_size(cohort, number)
        participation = self.participation
        population, name = participation.population, type(participation).__name__
        expected: float = population
        if isinstance(participation, PoissonParticipation):
            expected = population / participation.period * participation.rate
        elif isinstance(participation, PassParticipation):
            expected = math.ceil(population / participation.rounds)
        is_other_rate = isinstance(participation, PoissonParticipation) and abs(expected - stands_for) > 0.5
        if is_other_rate or stands_for > expected + 0.5:
            most = "" if isinstance(participation, PoissonParticipation) else "at most "
            raise InvalidValue(
                f"the noise is that of rounds of {stands_for:g} clients (noise_cohort_size), but the ledger's sampler "
                f"draws {most}{expected:g} of {population}; give Ledger the sampling that the noise is meant for, a "
                f"{name} of fc.simulation.participation"
            )
        return round(stands_for)

    def _cohort_size(self, cohort: Sequence | int, number: int) -> int:
        """The number of clients of a round, if the sampler can have drawn them for round `number`.

        Raises:
            InvalidValue: it cannot.
        """
        if isinstance(cohort, Sequence) and not isinstance(cohort, str | bytes):
            self._check_identifiers(list(cohort), number)
            return len(cohort)
        size = whole_number("cohort, if no list of identifiers,", cohort, at_least=0)
        population, participation = self.participation.population, self.participation
        if isinstance(participation, PoissonParticipation):
            expected = population / participation.period * participation.rate
            spread = math.sqrt(expected * (1 - participation.rate))  # the standard deviation
            if abs(size - expected) > _IMPROBABLE * spread + 1:
                raise InvalidValue(
                    f"Poisson sampling draws {expected:g} clients a round, give or take {spread:.3g}, not {size}: the "
                    "rate of the sampler is not that of the training"
                )
        elif size > population and not (isinstance(participation, FixedSizeParticipation) and participation.replace):
            raise InvalidValue(f"a round has at most the {population} clients of the population, not {size}")
        elif isinstance(participation, PassParticipation) and size > math.ceil(population / participation.rounds):
            most = math.ceil(population / participation.rounds)
            raise InvalidValue(
                f"a pass of {participation.rounds} rounds has at most {most} clients in each, not {size}"
            )
        return size

    def _check_identifiers(self, cohort: list, number: int) -> None:
        """Raises InvalidValue if the sampler, called again for round `number`, draws other clients."""
        if not callable(self._sampler):
            return
        drawn = list(self._sampler(number, len(cohort) if getattr(self._sampler, "takes_size", True) else None))
        if sorted(map(str, drawn)) != sorted(map(str, cohort)):
            others = len(set(map(str, cohort)) - set(map(str, drawn)))
            raise InvalidValue(
                f"the sampler draws {len(drawn)} clients in round {number}, but {len(cohort)} took part, {others} of "
                "them others: epsilon would be about another training"
            )


def results_without_noise(process: IterativeProcess) -> tuple[str, ...]:
    """Results of a round that clients' values reach without noise, such as metrics.

    Raises:
        TypeMismatch: one is a part of the state, or the result.
    """
    lowered = process.next.to_module("lowered")
    paths = noiseless_results(lowered)
    reached = [path for path in paths if path.split(".")[0] in ("state", "result")]
    if reached or not releases(lowered):
        where = ", ".join(reached[:3]) or "the result"
        raise TypeMismatch(
            f"clients' values reach {where} of the process without noise"
            "\n  each aggregation that changes the state has to go by a DifferentiallyPrivateFactory"
        )
    return tuple(paths)


def participation_of(sampler: Any) -> Participation:
    """The participation of a sampler, or the description itself.

    Raises:
        TypeMismatch: the sampler has none.
    """
    participation = getattr(sampler, "participation", sampler)
    if isinstance(participation, PoissonParticipation | FixedSizeParticipation | PassParticipation):
        return participation
    raise TypeMismatch(
        f"the sampler does not say how it draws ({brief(sampler)}): use one of fc.simulation, or give a description of "
        "fc.simulation.participation; every_round(population) assumes nothing"
    )


def valid_delta(delta: float, population: int) -> float:
    """Returns delta as a float.

    Raises:
        InvalidValue: it is not above 0 and below 1/population.
    """
    number = float(real_number("delta", delta, above=0))
    if number >= 1 / population:
        raise InvalidValue(
            f"delta is below 1/{population}, one over the number of clients, not {number:g}: "
            "a larger one allows to publish a client's data"
        )
    return number

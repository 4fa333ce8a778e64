"""`Ledger`: follows a process round by round, and tells what its rounds reveal about a client."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.privacy.events import Accounted, Round, account, epsilon_of
from fedcore.privacy.mechanism import Mechanism, at_path, mechanism_of_state, part, private_state_path
from fedcore.privacy.noiseless_results import noiseless_results, releases
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
        sampler: draws the clients of every round: one of `fc.simulation`, or any callable with a `participation`.
        delta: the probability with which epsilon need not hold; less than 1 over the number of clients.
        first_round: number of the round with which the sampler begins. Default: 0.
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

    def __init__(self, process: IterativeProcess, sampler: Any, *, delta: float, first_round: int = 0):
        if not isinstance(process, IterativeProcess):
            raise TypeMismatch(f"a ledger follows a LearningProcess or an AggregationProcess, not {brief(process)}")
        self._path = private_state_path(process)
        lowered = process.next.to_module("lowered")
        found = noiseless_results(lowered)
        reached = [path for path in found if path.split(".")[0] in ("state", "result")]
        if reached or not releases(lowered):
            where = ", ".join(reached[:3]) or "the result"
            raise TypeMismatch(
                f"clients' values reach {where} of the process without noise"
                "\n  each aggregation that changes the state has to go by a DifferentiallyPrivateFactory"
            )
        self.without_noise: tuple[str, ...] = tuple(found)
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
        private = at_path(state, self._path)
        count = int(np.asarray(part(private, "round")))
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
        added = [*self._rounds, Round(mechanism, self._checked(cohort))]
        account(added, self.participation)
        self._rounds, self._states = added, [*self._states, count]
        return {
            "round": len(added),
            "epsilon": self.epsilon(),
            "delta": self.delta,
            "noise_multiplier": mechanism.noise_multiplier,
        }

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
        known = self._of_first(rounds)
        if not known:
            return 0.0
        wanted = self.delta if delta is None else valid_delta(delta, self.participation.population)
        return epsilon_of(account(known, self.participation), wanted, accountant)

    def event(self, rounds: int | None = None) -> Any:
        """The rounds as an event of dp-accounting.

        Example:
            >>> type(fc.privacy.Ledger(process, sampler, delta=1e-5).event()).__name__
            'ComposedDpEvent'
        """
        return self._accounted(rounds).event

    def _accounted(self, rounds: int | None = None) -> Accounted:
        return account(self._of_first(rounds), self.participation)

    def _of_first(self, rounds: int | None) -> list[Round]:
        count = len(self._rounds) if rounds is None else whole_number("rounds", rounds, at_least=0)
        if count > len(self._rounds):
            raise InvalidValue(f"only {len(self._rounds)} rounds are recorded, not {count}")
        return self._rounds[:count]

    def get_state(self) -> dict[str, Any]:
        """The recorded rounds as numbers and lists, for a checkpoint."""
        return {"rounds": [attrs.asdict(r) for r in self._rounds], "states": list(self._states)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes the rounds that `get_state` gave."""
        rounds = []
        for one in state["rounds"]:
            given = dict(one["mechanism"])
            given["coefficients"] = None if given["coefficients"] is None else tuple(map(float, given["coefficients"]))
            rounds.append(Round(Mechanism(**given), int(one["cohort"])))
        self._rounds, self._states = rounds, [int(n) for n in state["states"]]

    def __repr__(self) -> str:
        if not self._rounds:
            return f"<Ledger of no round, {self.participation}>"
        accounted = self._accounted()
        return (
            f"<Ledger of {len(self._rounds)} rounds: epsilon {self.epsilon():.4g} at delta {self.delta:g}, "
            f"{accounted.sampling}; the worlds differ in whether {accounted.worlds}>"
        )

    def _checked(self, cohort: Sequence | int) -> int:
        """The number of clients of the next round, if the sampler can have drawn them.

        Raises:
            InvalidValue: it cannot.
        """
        number = self._first + len(self._rounds)
        if isinstance(cohort, Sequence) and not isinstance(cohort, str | bytes):
            self._check_identifiers(list(cohort), number)
            return len(cohort)
        size = whole_number("cohort, if no list of identifiers,", cohort, at_least=0)
        population, given = self.participation.population, self.participation
        if isinstance(given, PoissonParticipation):
            groups = population / given.period
            expected, spread = groups * given.rate, math.sqrt(groups * given.rate * (1 - given.rate))
            if abs(size - expected) > _IMPROBABLE * spread + 1:
                raise InvalidValue(
                    f"Poisson sampling draws {expected:g} clients a round, give or take {spread:.3g}, not {size}: the "
                    "rate of the sampler is not that of the training"
                )
        elif size > population and not (isinstance(given, FixedSizeParticipation) and given.replace):
            raise InvalidValue(f"a round has at most the {population} clients of the population, not {size}")
        elif isinstance(given, PassParticipation) and size > math.ceil(population / given.rounds):
            most = math.ceil(population / given.rounds)
            raise InvalidValue(f"a pass of {given.rounds} rounds has at most {most} clients in each, not {size}")
        return size

    def _check_identifiers(self, cohort: list, number: int) -> None:
        if not callable(self._sampler):
            return
        drawn = list(self._sampler(number, len(cohort) if getattr(self._sampler, "takes_size", True) else None))
        if sorted(map(str, drawn)) != sorted(map(str, cohort)):
            others = len(set(map(str, cohort)) - set(map(str, drawn)))
            raise InvalidValue(
                f"the sampler draws {len(drawn)} clients in round {number}, but {len(cohort)} took part, {others} of "
                "them others: epsilon would be about another training"
            )


def participation_of(sampler: Any) -> Participation:
    found = getattr(sampler, "participation", sampler)
    if isinstance(found, PoissonParticipation | FixedSizeParticipation | PassParticipation):
        return found
    raise TypeMismatch(
        f"the sampler does not say how it draws ({brief(sampler)}): use one of fc.simulation, or give a description of "
        "fc.simulation.participation; every_round(population) assumes nothing"
    )


def valid_delta(delta: float, population: int) -> float:
    number = float(real_number("delta", delta, above=0))
    if number >= 1 / population:
        raise InvalidValue(
            f"delta is below 1/{population}, one over the number of clients, not {number:g}: "
            "a larger one allows to publish a client's data"
        )
    return number

"""Virtual clocks: which clients' work a round gets, and when it ends, by the times of their devices.

Nothing waits: a clock computes times. What clients compute does not change them, so a clock knows all rounds.
"""

import heapq
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.scalars import random_generator, real_number, seed_or_drawn, whole_number
from fedcore.simulation.devices import DAY_S, Attempt, Devices

_CHECK_S = 60.0
"""How often a server that waits for devices looks who is there."""
_GUESSES = 16
"""Clients that are drawn, in the hope that one is available and free, before all are looked at."""
_LONGEST_ROUND_S = 365 * DAY_S
"""A round that has not ended by then never ends."""


@attrs.frozen
class ClockRound:
    """A round of a clock.

    Args:
        client_ids: the clients whose work counts, in the order in which it arrived; in a buffered round
            one may be there twice.
        versions: for each of them the number of the model that it began from; model r is that after r rounds.
        begins_s, ends_s: seconds from the beginning of the training.
        selected: how many clients began work in the round.
        in_flight: the versions that clients are at work on when the round ends; they count in later rounds.
    """

    client_ids: tuple[Hashable, ...]
    versions: tuple[int, ...]
    begins_s: float
    ends_s: float
    selected: int
    in_flight: frozenset[int] = frozenset()


class VirtualClock(ABC):
    """Decides by the times of devices which clients' work each round gets, and when it ends.

    Guarantees:
      - Rounds depend on the devices and the seed only, so equal clocks have equal rounds, and a training that is
        resumed has those of an unbroken one.

    A clock of one's own derives from this class and has a method `simulate`.

    Args:
        devices: the devices of the clients.
        seed: decides which of the available clients are selected. Default: drawn.
    Raises:
        TypeMismatch: `devices` are none.
    """

    is_buffered = False
    """Whether work counts that began in an earlier round: `train` then needs an `AsynchronousProcess`."""

    def __init__(self, devices: Devices, seed: int | None = None) -> None:
        if not isinstance(devices, Devices):
            raise TypeMismatch(f"devices are a fc.simulation.Devices, not {brief(devices)}")
        self.devices = devices
        self.seed = seed_or_drawn("seed", seed)
        self._rounds: list[ClockRound] = []
        self._simulation: Iterator[ClockRound] | None = None

    @abstractmethod
    def simulate(self) -> Iterator[ClockRound]:
        """The rounds from the first one on, without an end; equal ones in each call."""

    def round(self, number: int) -> ClockRound:
        """The round after `number` rounds.

        Raises:
            InvalidValue: never as many devices are available as the clock needs.
        """
        number = whole_number("number", number, at_least=0)
        if self._simulation is None:
            self._simulation = self.simulate()
        while len(self._rounds) <= number:
            self._rounds.append(next(self._simulation))
        return self._rounds[number]


class _Selection:
    """Selects clients, by their place in `devices.client_ids`, and counts the attempts of each."""

    def __init__(self, devices: Devices, seed: int) -> None:
        self._devices = devices
        self._random = random_generator(seed)
        self._attempts: Counter[int] = Counter()

    def wait_for(self, number: int, time_s: float) -> float:
        """The first time from `time_s` on, in steps of a minute, at which so many devices are available.

        Raises:
            InvalidValue: so many are at no time of the day.
        """
        most_available, first_s = 0, time_s
        while time_s <= first_s + DAY_S:
            available = int(self._devices.is_available(time_s).sum())
            if available >= number:
                return time_s
            most_available, time_s = max(most_available, available), time_s + _CHECK_S
        raise InvalidValue(
            f"{number} devices are never available at the same time: "
            f"at most {most_available} of {len(self._devices)} are\n"
            "  fix: fewer clients in a round, or devices with longer open_hours"
        )

    def select(self, number: int, time_s: float) -> list[tuple[int, Attempt]]:
        """At most so many of the available clients, drawn uniformly: the place and the attempt of each."""
        available = np.flatnonzero(self._devices.is_available(time_s))
        places = self._random.choice(available, min(number, len(available)), replace=False)
        return [self._attempt(int(place), time_s) for place in places]

    def select_one(self, time_s: float, busy: NDArray) -> tuple[int, Attempt] | None:
        """One of the available clients that are not busy, drawn uniformly: its place and attempt; None without any.

        Args:
            busy: bool [clients].
        """
        for place in self._random.integers(len(busy), size=_GUESSES):  # all of 100,000 devices need not be looked at
            if not busy[place] and self._devices.is_available(time_s, place):
                return self._attempt(int(place), time_s)
        free = np.flatnonzero(self._devices.is_available(time_s) & ~busy)
        return self._attempt(int(self._random.choice(free)), time_s) if len(free) else None

    def _attempt(self, place: int, time_s: float) -> tuple[int, Attempt]:
        """The place, and the next attempt of this client."""
        attempt = self._devices.attempt(self._devices.client_ids[place], self._attempts[place], time_s)
        self._attempts[place] += 1
        return place, attempt


class SynchronousClock(VirtualClock):
    """Rounds whose clients begin together and whose server waits for them.

    A round selects `over_selection` times as many clients as it needs, uniformly of those that are available, and ends
    with the first `clients_per_round` results; or, with fewer, when no selected client is at work any more, or at the
    deadline. Work that is not done by then counts for nothing.

    Args:
        devices, seed: as for `VirtualClock`.
        clients_per_round: how many results end a round, at least 1.
        over_selection: at least 1; clients selected for each that is needed, rounded up. Default: 1, plain rounds.
        deadline_s: seconds after which a round ends with the results that there are, maybe with none. Default: never.
    Raises:
        InvalidValue: a round selects more clients than there are; a number is outside its range.
    Source:
        Bonawitz et al. 2019, "Towards federated learning at scale", arXiv:1902.01046, section 2.2 (goal count and
        time limit of a round); its server selects 1.3 times as many devices as it needs.
    Example:
        >>> devices = fc.simulation.Devices("abcd", work_s=[10, 20, 30, 600], seed=0)
        >>> clock = fc.simulation.SynchronousClock(devices, 3, over_selection=1.3, seed=0)
        >>> clock.round(0).client_ids, clock.round(0).ends_s, clock.round(1).ends_s
        (('a', 'b', 'c'), 30.0, 60.0)
    """

    def __init__(
        self,
        devices: Devices,
        clients_per_round: int,
        *,
        over_selection: float = 1.0,
        deadline_s: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(devices, seed)
        self.clients_per_round = whole_number("clients_per_round", clients_per_round, at_least=1)
        self.over_selection = real_number("over_selection", over_selection, at_least=1)
        self.deadline_s = math.inf if deadline_s is None else float(real_number("deadline_s", deadline_s, above=0))
        # 10 * 1.1 is 11.000000000000002 in floats
        self._selected = math.ceil(self.clients_per_round * self.over_selection - 1e-9)
        if self._selected > len(devices):
            raise InvalidValue(f"a round cannot select {self._selected} of {len(devices)} clients")

    def simulate(self) -> Iterator[ClockRound]:
        selection, ends_s, number = _Selection(self.devices, self.seed), 0.0, 0
        while True:
            begins_s = selection.wait_for(self._selected, ends_s)
            attempts = selection.select(self._selected, begins_s)
            reports = sorted((a.seconds, place) for place, a in attempts if a.reports and a.seconds <= self.deadline_s)
            results = reports[: self.clients_per_round]
            longest_s = max(a.seconds for _, a in attempts)
            goal_is_met = len(results) == self.clients_per_round
            ends_s = begins_s + (results[-1][0] if goal_is_met else min(longest_s, self.deadline_s))
            client_ids = tuple(self.devices.client_ids[place] for _, place in results)
            yield ClockRound(client_ids, (number,) * len(results), begins_s, ends_s, len(attempts))
            number += 1


class _Work(NamedTuple):
    """A client's work, ordered by its end, and at equal ends by `order`, the number of the attempt in the clock.

    `place` is the client's place in `devices.client_ids`, and `version` the number of the model that it began from.
    """

    ends_s: float
    order: int
    place: int
    version: int
    reports: bool


class BufferedClock(VirtualClock):
    """Rounds without waiting: clients begin one by one, and each `buffer_size` results are a round.

    `concurrency` clients are at work at any time, as far as so many are available; where one ends or drops out, another
    is selected, uniformly of those that are available and not at work, and begins from the newest model. So fast
    devices take part more often, and the work of a client may be for a model of an earlier round.

    Args:
        devices, seed: as for `VirtualClock`.
        buffer_size: K, results of a round, at least 1.
        concurrency: clients at work at a time, at least 1.
        max_staleness: work that began more than so many rounds ago counts for nothing. Default: all counts.
    Raises:
        InvalidValue: more clients would be at work than there are; a number is outside its range.
    Source:
        Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", arXiv:2106.06639,
        Algorithm 1.
    Example:
        >>> devices = fc.simulation.Devices("abc", work_s=[10, 12, 25], seed=0)
        >>> clock = fc.simulation.BufferedClock(devices, buffer_size=2, concurrency=3, seed=0)
        >>> [(r.client_ids, r.versions, r.ends_s) for r in map(clock.round, range(3))]
        [(('a', 'b'), (0, 0), 12.0), (('a', 'b'), (0, 1), 24.0), (('c', 'a'), (0, 1), 30.0)]
    """

    is_buffered = True

    def __init__(
        self,
        devices: Devices,
        buffer_size: int,
        *,
        concurrency: int,
        max_staleness: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(devices, seed)
        self.buffer_size = whole_number("buffer_size", buffer_size, at_least=1)
        self.concurrency = whole_number("concurrency", concurrency, at_least=1)
        self.max_staleness = (
            math.inf if max_staleness is None else whole_number("max_staleness", max_staleness, at_least=0)
        )
        if self.concurrency > len(devices):
            raise InvalidValue(f"{self.concurrency} of {len(devices)} clients cannot be at work at the same time")

    def simulate(self) -> Iterator[ClockRound]:
        selection, busy = _Selection(self.devices, self.seed), np.zeros(len(self.devices), bool)
        working: list[_Work] = []
        buffer: list[_Work] = []
        now_s, begins_s, version, started, selected = 0.0, 0.0, 0, 0, 0
        while True:
            while len(working) < self.concurrency and (start := selection.select_one(now_s, busy)):
                place, attempt = start
                busy[place] = True
                work = _Work(now_s + attempt.seconds, started, place, version, attempt.reports)
                heapq.heappush(working, work)
                started, selected = started + 1, selected + 1
            if now_s > begins_s + _LONGEST_ROUND_S:
                raise InvalidValue(
                    f"round {version} has {len(buffer)} of {self.buffer_size} results after a year: too many attempts "
                    "fail\n  fix: a lower dropout, longer open_hours, or a greater max_staleness"
                )
            check_s = now_s + _CHECK_S if len(working) < self.concurrency else math.inf
            if not working or working[0].ends_s > check_s:
                now_s = check_s  # looks for further devices
                if not working:
                    now_s = selection.wait_for(1, now_s)
                continue
            work = heapq.heappop(working)
            now_s, busy[work.place] = work.ends_s, False
            if work.reports and version - work.version <= self.max_staleness:
                buffer.append(work)
            if len(buffer) == self.buffer_size:
                yield ClockRound(
                    tuple(self.devices.client_ids[work.place] for work in buffer),
                    tuple(work.version for work in buffer),
                    begins_s,
                    now_s,
                    selected,
                    frozenset(work.version for work in working),
                )
                buffer, begins_s, version, selected = [], now_s, version + 1, 0

"""Devices of clients: how long their work takes, when they are there, how often they fail."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fedcore.errors import InvalidValue, NotFound, brief
from fedcore.scalars import random_generator, real_number, seed_or_drawn, whole_number

DAY_S = 86_400.0
HOUR_S = 3_600.0
_WORK, _SPEEDS, _OPENINGS = 1, 2, 3
"""Numbers that follow the seed of a random generator, so that each kind of draw has a generator of its own."""


@attrs.frozen
class Attempt:
    """The work of a device for one round.

    Args:
        seconds: from the download of the model until the result has arrived, or until the device drops out.
        reports: whether the result arrives.
    """

    seconds: float
    reports: bool


def _for_each_device(name: str, value: Any, count: int, above: float | None, at_most: float) -> NDArray:
    """float64 [count]: a setting of each device, which the user gives as one number or as an array.

    Args:
        name: of the setting, for messages.
        above: exclusive lower bound; None for numbers that are 0 or more.
        at_most: upper bound.
    """
    array = np.asarray(value, np.float64)
    if array.shape not in ((), (count,)):
        raise InvalidValue(f"{name} is a number, or one for each of the {count} clients, not of shape {array.shape}")
    is_enough = array > above if above is not None else array >= 0
    if not np.all(is_enough & (array <= at_most) & np.isfinite(array)):
        limit = f"above {above:g}" if above is not None else "0 or more"
        limit += f", at most {at_most:g}" if np.isfinite(at_most) else ""
        raise InvalidValue(f"{name} is {limit}, not {brief(value)}")
    return np.broadcast_to(array, (count,))


class Devices:
    """The devices of clients: how long their work takes, when they are available, how often they drop out.

    Guarantees:
      - The n-th attempt of a client takes as long, and drops out or not, in each clock: it depends on the seed, the
        client and n. So two clocks are compared on equal devices.

    Types: an array has a float64 for each client, in the order of `client_ids`; a number stands for all.

    Args:
        client_ids: the clients, each once.
        work_s: seconds that a client's work of a round takes, with download and upload; above 0.
        jitter: each time is multiplied by exp(jitter * z), with z from a standard normal distribution. Default: 0.
        opens_h: the hour of the day, 0 to 24, from which a device is available; a clock begins at hour 0. Default: 0.
        open_hours: for how many hours a day it is, above 0. A device drops out that is at work when they end.
            Default: 24, always.
        dropout: the probability of an attempt to fail, at a time that is uniform in its seconds. Default: 0.
        seed: a whole number. Default: drawn.
    Raises:
        InvalidValue: there are no clients, one is there twice, or a number is outside its range.
    Example:
        >>> devices = fc.simulation.Devices(["fast", "slow"], work_s=[10, 60], dropout=0.1, seed=0)
        >>> devices.attempt("slow", number=0, time_s=0.0)
        Attempt(seconds=60.0, reports=True)
    """

    def __init__(
        self,
        client_ids: Sequence[Hashable],
        work_s: float | Sequence[float] | NDArray,
        *,
        jitter: float = 0.0,
        opens_h: float | Sequence[float] | NDArray = 0.0,
        open_hours: float | Sequence[float] | NDArray = 24.0,
        dropout: float | Sequence[float] | NDArray = 0.0,
        seed: int | None = None,
    ) -> None:
        self.client_ids = tuple(client_ids)
        count = len(self.client_ids)
        self._places = {client_id: place for place, client_id in enumerate(self.client_ids)}
        if not count or len(self._places) < count:
            raise InvalidValue("devices have clients, each of them once" if count else "there are no clients")
        self.work_s = _for_each_device("work_s", work_s, count, 0, np.inf)
        self.jitter = float(real_number("jitter", jitter, at_least=0))
        self.opens_s = _for_each_device("opens_h", opens_h, count, None, 24) * HOUR_S
        self.open_s = _for_each_device("open_hours", open_hours, count, 0, 24) * HOUR_S
        self.dropout = _for_each_device("dropout", dropout, count, None, 1)
        self.seed = seed_or_drawn("seed", seed)

    def __len__(self) -> int:
        return len(self.client_ids)

    def __repr__(self) -> str:
        low, middle, high = np.quantile(self.work_s, [0.1, 0.5, 0.9])
        return f"<Devices of {len(self)} clients, work {low:.3g} to {high:.3g} s, median {middle:.3g} s>"

    def is_available(self, time_s: float, place: Any = ...) -> NDArray:
        """bool[clients]: the devices that are available at a time, in seconds from hour 0 of the first day.

        Args:
            place: the index of a client, or several. Default: all.
        """
        return (time_s - self.opens_s[place]) % DAY_S < self.open_s[place]

    def attempt(self, client_id: Hashable, number: int, time_s: float) -> Attempt:
        """The work of a client that begins at a time.

        Args:
            number: how many attempts of this client there were before.
        Raises:
            NotFound: there is no such client.
        """
        if client_id not in self._places:
            raise NotFound(f"there is no device of client {client_id!r}")
        place = self._places[client_id]
        random = random_generator(self.seed, _WORK, place, whole_number("number", number, at_least=0))
        seconds = float(self.work_s[place] * np.exp(self.jitter * random.standard_normal()))
        failure_draw, share_until_failure = random.random(2)
        seconds_left = np.inf  # until the device is no longer available
        if self.open_s[place] < DAY_S:
            seconds_left = self.open_s[place] - (time_s - self.opens_s[place]) % DAY_S
        if failure_draw < self.dropout[place]:
            return Attempt(float(min(share_until_failure * seconds, seconds_left)), False)
        return Attempt(float(min(seconds, seconds_left)), bool(seconds <= seconds_left))


def build_devices(
    client_ids: Sequence[Hashable],
    work_s: float,
    *,
    speed_spread: float = 1.0,
    examples: Mapping[Any, int] | None = None,
    jitter: float = 0.1,
    opens_h: float = 0.0,
    opens_spread_h: float = 2.0,
    open_hours: float = 24.0,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Devices:
    """Draws devices of log-normal speeds, which are available at a time of the day.

    Args:
        client_ids, jitter, open_hours, dropout: as for `Devices`.
        work_s: the seconds of a round's work, at the median of the devices.
        speed_spread: the standard deviation of the logarithm of the seconds over the devices; with 1, the slowest tenth
            takes 13 times as long as the fastest. 0: all are alike.
        examples: for each client its number of examples; its seconds are in proportion. Default: they do not count.
        opens_h: the mean hour at which devices become available.
        opens_spread_h: the standard deviation of this hour over the devices, by habits and time zones.
        seed: a whole number, for the devices and their attempts. Default: drawn.
    Returns:
        `Devices`. Traces of real ones make a `Devices` of their arrays.
    Raises:
        InvalidValue: as for `Devices`; or a client has no number of examples, or 0.
    Example:
        >>> phones = fc.simulation.build_devices(range(1000), 60, opens_h=22, open_hours=8, dropout=0.1, seed=0)
        >>> phones.is_available(2 * 3600.0).mean(), phones.is_available(12 * 3600.0).mean()
        (np.float64(0.956), np.float64(0.001))
    """
    ids, known_seed = tuple(client_ids), seed_or_drawn("seed", seed)
    spread, opens_spread = (
        real_number(name, value, at_least=0)
        for name, value in (("speed_spread", speed_spread), ("opens_spread_h", opens_spread_h))
    )
    seconds = real_number("work_s", work_s, above=0) * np.exp(
        spread * random_generator(known_seed, _SPEEDS).standard_normal(len(ids))
    )
    if examples is not None:
        missing = [i for i in ids if i not in examples]
        if missing:
            raise InvalidValue(f"examples has no number for client {missing[0]!r}")
        counts = np.array([examples[i] for i in ids], np.float64)
        seconds = seconds * counts / np.median(counts)
    mean_opens_h = real_number("opens_h", opens_h, at_least=0)
    device_opens_h = mean_opens_h + opens_spread * random_generator(known_seed, _OPENINGS).standard_normal(len(ids))
    return Devices(
        ids,
        seconds,
        jitter=jitter,
        opens_h=device_opens_h % 24,
        open_hours=open_hours,
        dropout=dropout,
        seed=known_seed,
    )

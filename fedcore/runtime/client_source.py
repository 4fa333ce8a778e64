"""The clients of a stage, drawn some at a time."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.data import ClientDataset, Cohort
from fedcore.errors import ClientError, brief
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_calls import ClientWork
from fedcore.runtime.reader import Reader, TooLate
from fedcore.runtime.stopping import Stop, stops_from_elsewhere


@attrs.frozen
class Drawn:
    """The clients of one call, as they were given.

    Args:
        index: of the call among those of its stage.
        first: the index of its first client.
        clients: a tuple of values for each.
    """

    index: int
    first: int
    clients: list[tuple]


@attrs.frozen
class _Raised:
    """In place of a value: what a cohort raised when it was asked for it."""

    error: Exception


_ENDED = object()


class ClientSource:
    """Draws the clients of a stage for one call after the other; those of all arguments side by side.

    Guarantees:
      - Clients are drawn in the thread that asks for a call. Only a generator or an `fc.Cohort` is read in a thread
        beside it, where the call has a deadline or may be stopped by another thread: it may block.
      - What a generator raises is raised. With `drops`, what an `fc.Cohort` raises for a client is that client's fault.
    """

    def __init__(self, work: ClientWork, size: int, *, drops: bool, timeout_s: float | None, stop: Stop):
        self.clients = 0
        self._work = work
        self._size = size
        self._drops = drops
        self._timeout_s = timeout_s
        self._stop = stop
        self._reader = Reader("fedcore-cohort")

    @property
    def is_at_hand(self) -> bool:
        """Whether all clients are there already, so that drawing some costs neither time nor memory."""
        return all(map(_is_at_hand, self._work.cohorts))

    def __enter__(self) -> Iterator[Drawn]:
        return self._calls()

    def __exit__(self, *error) -> None:
        self._reader.__exit__(*error)

    def _calls(self) -> Iterator[Drawn]:
        clients = self._side_by_side() if self._work.cohorts else (() for _ in _counted(self._work.counted))
        read = self._work.cohorts[0] if self._work.cohorts else self._work.counted
        name = read.path if read is not None else ""
        for index in itertools.count():
            drawn = Drawn(index, index * self._size, list(itertools.islice(clients, self._size)))
            if not drawn.clients:
                self._work.count.check_ended(name, self.clients)
                return
            self.clients += len(drawn.clients)
            self._work.count.check_reading(name, self.clients)
            yield drawn

    def _side_by_side(self) -> Iterator[tuple]:
        """One tuple a client."""
        cohorts = [c.given if _is_at_hand(c) else self._read(c) for c in self._work.cohorts]
        return zip(*cohorts, strict=True) if len(cohorts) == 1 else self._equally_many(cohorts)

    def _equally_many(self, cohorts: list[Iterable]) -> Iterator[tuple]:
        """One tuple a client; all end at once."""
        for index, client in enumerate(itertools.zip_longest(*cohorts, fillvalue=_ENDED)):
            ended = [c.path for c, value in zip(self._work.cohorts, client, strict=True) if value is _ENDED]
            if ended:
                self._work.count.check_ended(ended[0], index)
                longer = next(c.path for c in self._work.cohorts if c.path not in ended)
                self._work.count.check_reading(longer, index + 1)
            yield client

    def _read(self, values: ClientValues) -> Iterator:
        """What may block or raise. After an error a generator has no more clients, where an `fc.Cohort` has."""
        iterator = iter(values.given)
        beside = self._timeout_s is not None or stops_from_elsewhere()
        read = functools.partial(next, iterator, _ENDED)
        for index in itertools.count():
            try:
                value = self._reader.call(read, self._timeout_s, self._stop, [values.given]) if beside else read()
            except Exception as error:
                if isinstance(error, TooLate) and not self._goes_on(values):
                    raise ClientError(f"client {index} was not drawn from {brief(values.given)}: {error}") from None
                if not self._goes_on(values):
                    raise
                value = _Raised(error)
            if value is _ENDED:
                return
            yield value

    def _goes_on(self, values: ClientValues) -> bool:
        return self._drops and isinstance(values.given, Cohort)


def _is_at_hand(values: ClientValues) -> bool:
    return isinstance(values.given, Sequence | np.ndarray)


def converted(values: ClientValues, index: int, given: object) -> object:
    """A client's value as the runtime takes it."""
    if isinstance(given, _Raised):
        raise given.error
    return values.converted(index, given)


_AT_HAND = (int, float, complex, str, bytes, np.ndarray, np.generic, tf.Tensor, ClientDataset, type(None))


def may_block(values: Sequence) -> bool:
    """Whether code of the user's may run when clients' values are read: that of a dataset, of `__array__`."""
    if all(issubclass(kind, _AT_HAND) for kind in set(map(type, values))):
        return False
    return not all(isinstance(leaf, _AT_HAND) for leaf in tf.nest.flatten(values))


def is_read_once(client: tuple) -> bool:
    """Whether a second reading of a client's values would not find what the first did."""
    return any(isinstance(leaf, Iterator | _Raised) for leaf in tf.nest.flatten(client))


def _counted(values: ClientValues | None) -> Iterable:
    """As many things as there are clients."""
    if values is None:
        return ()
    return values.given if values.size is None else range(values.size)

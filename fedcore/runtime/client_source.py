"""Reads the cohorts of a client stage, slice by slice; the values are not converted here."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.data import ClientDataset, Cohort
from fedcore.errors import ClientError, brief
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.reader import Reader, TooLate
from fedcore.runtime.stopping import Stop, stops_from_elsewhere


@attrs.frozen
class UnreadSlice:
    """The clients of one slice, as the user gave them.

    Args:
        index: index of the slice in its stage.
        first: index of the slice's first client.
        clients: for each client a tuple with its value of each cohort.
    """

    index: int
    first: int
    clients: list[tuple]


@attrs.frozen
class _Raised:
    """Stands in for the value of a client for which the cohort raised an error."""

    error: Exception


_ENDED = object()


class ClientSource:
    """Cuts the cohorts of a stage into slices; a client has one value of each cohort.

    Guarantees:
      - Clients are read in the thread that asks for a slice. Exception: a generator or an `fc.Cohort` may block, so it
        is read in a second thread if the call has a deadline or may be stopped by another thread.
      - An error of a generator is raised. With `drops`, an error of an `fc.Cohort` is a fault of that client.

    Args:
        size: clients of a slice.
        drops: the fault policy leaves out clients that fail.
        timeout_s: seconds that reading a client may take; None is no deadline.
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
    def is_in_memory(self) -> bool:
        """Whether all clients are in memory already, so that reading them early costs nothing."""
        return all(map(_is_in_memory, self._work.cohorts))

    def __enter__(self) -> Iterator[UnreadSlice]:
        return self._slices()

    def __exit__(self, *error) -> None:
        self._reader.__exit__(*error)

    def _slices(self) -> Iterator[UnreadSlice]:
        clients = self._zipped() if self._work.cohorts else (() for _ in _counted(self._work.counted))
        first = self._work.cohorts[0] if self._work.cohorts else self._work.counted
        name = first.path if first is not None else ""
        for index in itertools.count():
            unread = UnreadSlice(index, index * self._size, list(itertools.islice(clients, self._size)))
            if not unread.clients:
                self._work.count.check_ended(name, self.clients)
                return
            self.clients += len(unread.clients)
            self._work.count.check_reading(name, self.clients)
            yield unread

    def _zipped(self) -> Iterator[tuple]:
        """For each client the tuple of its values."""
        cohorts = [c.given if _is_in_memory(c) else self._read(c) for c in self._work.cohorts]
        return zip(*cohorts, strict=True) if len(cohorts) == 1 else self._zipped_equal(cohorts)

    def _zipped_equal(self, cohorts: list[Iterable]) -> Iterator[tuple]:
        """For each client the tuple of its values. Cohorts of different lengths are refused."""
        for index, client in enumerate(itertools.zip_longest(*cohorts, fillvalue=_ENDED)):
            ended = [c.path for c, value in zip(self._work.cohorts, client, strict=True) if value is _ENDED]
            if ended:
                self._work.count.check_ended(ended[0], index)
                longer = next(c.path for c in self._work.cohorts if c.path not in ended)
                self._work.count.check_reading(longer, index + 1)
            yield client

    def _read(self, values: ClientValues) -> Iterator:
        """The values of a cohort that may block or raise. Only an `fc.Cohort` can go on after an error."""
        iterator = iter(values.given)
        in_thread = self._timeout_s is not None or stops_from_elsewhere()
        read = functools.partial(next, iterator, _ENDED)
        for index in itertools.count():
            try:
                value = self._reader.call(read, self._timeout_s, self._stop, [values.given]) if in_thread else read()
            except Exception as error:
                if isinstance(error, TooLate) and not self._survives_errors(values):
                    raise ClientError(f"client {index} was not read from {brief(values.given)}: {error}") from None
                if not self._survives_errors(values):
                    raise
                value = _Raised(error)
            if value is _ENDED:
                return
            yield value

    def _survives_errors(self, values: ClientValues) -> bool:
        return self._drops and isinstance(values.given, Cohort)


LONGEST_FIRST_OF = 8
"""Slices of which the longest is taken first. More would keep more partials waiting for their neighbours."""


def longest_first(slices: Iterator[UnreadSlice]) -> Iterator[UnreadSlice]:
    """The slices; of each few, those with the most examples first, so that the workers end at about the same time."""
    while several := list(itertools.islice(slices, LONGEST_FIRST_OF)):
        yield from sorted(several, key=_examples, reverse=True)


def _examples(unread: UnreadSlice) -> int:
    datasets = [v for client in unread.clients for v in client if isinstance(v, ClientDataset)]
    return sum(len(d.columns.arrays[0]) for d in datasets if d.columns.arrays)


def _is_in_memory(values: ClientValues) -> bool:
    return isinstance(values.given, Sequence | np.ndarray)


def converted(values: ClientValues, index: int, given: object) -> object:
    """A client's value in the runtime's form.

    Raises:
        Exception: the cohort raised this error for the client, or the conversion did.
    """
    if isinstance(given, _Raised):
        raise given.error
    return values.converted(index, given)


_VALUES = (int, float, complex, str, bytes, np.ndarray, np.generic, tf.Tensor, ClientDataset, type(None))


def may_block(values: Sequence) -> bool:
    """Whether reading the values may run user code, such as a dataset's function or an `__array__` method."""
    if all(issubclass(kind, _VALUES) for kind in set(map(type, values))):
        return False
    return not all(isinstance(leaf, _VALUES) for leaf in tf.nest.flatten(values))


def is_read_once(client: tuple) -> bool:
    """Whether a client's values can be read only once."""
    return any(isinstance(leaf, Iterator | _Raised) for leaf in tf.nest.flatten(client))


def _counted(values: ClientValues | None) -> Iterable:
    """An iterable with one element for each client; its elements are not used."""
    if values is None:
        return ()
    return values.given if values.size is None else range(values.size)

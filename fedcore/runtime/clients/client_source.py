"""Reads the cohorts of a client stage, run by run; the values are not converted here.

Decision 0040.
"""

import functools
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.data import ClientDataset, Cohort, client_name
from fedcore.errors import ClientError, brief
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.clients_being_read import ClientsBeingRead
from fedcore.runtime.clients.reader import Reader, TooLate
from fedcore.runtime.clients.run_lengths import RunLengths
from fedcore.runtime.stopping import Stop, stops_from_elsewhere

MAX_RUN_BYTES = 2**24
"""Bytes of clients' values, sent or returned, that a run may have, unless one slice has more."""


@attrs.frozen
class UnreadRun:
    """A run: the clients of consecutive slices, whose values are as the user gave them, not converted.

    Args:
        index: index of the first slice in its stage.
        slices: number of slices. The last slice of a stage may have fewer clients than the others.
        first: index of the first client.
        clients: for each client a tuple with its value of each cohort.
        losses: how many workers ended while they computed these clients.
    """

    index: int
    slices: int
    first: int
    clients: list[tuple]
    losses: int = 0

    @property
    def last(self) -> int:
        """Index of the last client."""
        return self.first + len(self.clients) - 1

    def cut(self, slices: int, size: int) -> "tuple[UnreadRun, UnreadRun]":
        """(the run of the first `slices` slices, the run of the others).

        Args:
            size: clients of a slice.
        """
        head_clients = slices * size
        head = attrs.evolve(self, slices=slices, clients=self.clients[:head_clients])
        tail = attrs.evolve(
            self,
            index=self.index + slices,
            slices=self.slices - slices,
            first=self.first + head_clients,
            clients=self.clients[head_clients:],
        )
        return head, tail


@attrs.frozen
class _Raised:
    """Stands in for the value of a client for which the cohort raised an error."""

    error: Exception


_ENDED = object()
"""Stands in for the next value of a cohort that has no more clients."""


class ClientSource:
    """Cuts the cohorts of a stage into runs of slices; a client has one value of each cohort.

    Guarantees:
      - Clients are read in the thread that asks for a run. Exception: a generator or an `fc.Cohort` may block, so it
        is read in a second thread if the call has a deadline or may be stopped by another thread.
      - A run has at most `MAX_RUN_BYTES` for each process that shares it (see `RunLengths.width`). It has one slice if
        a slice has more, or if the size of values is unknown before they are read.
      - A run that was put back comes next, in runs of the lengths that are left then. After the iterator has ended, a
        run may still be put back, and is then taken.
      - An error of a generator is raised. With `drops`, an error of an `fc.Cohort` is a fault of that client.

    Args:
        size: clients of a slice.
        lengths: chooses the number of slices of a run.
        drops: the fault policy leaves out clients that fail.
        timeout_s: seconds that reading a client may take; None is no deadline.
        longest_first: of cohorts in memory, order runs by `longest_first`.
    """

    def __init__(
        self,
        work: ClientWork,
        size: int,
        lengths: RunLengths,
        *,
        drops: bool,
        timeout_s: float | None,
        stop: Stop,
        being_read: ClientsBeingRead,
        longest_first: bool = False,
    ) -> None:
        self.clients = 0  # read so far
        self._longest_first = longest_first
        self._being_read = being_read
        self._work = work
        self._size = size
        self._lengths = lengths
        self._read_slices = 0  # read so far; those that were put back count once
        self._put_back: deque[UnreadRun] = deque()
        self._drops = drops
        self._timeout_s = timeout_s
        self._stop = stop
        self._reader = Reader("fedcore-cohort")

    @property
    def is_in_memory(self) -> bool:
        """Whether all clients are in memory already, so that reading them early costs nothing."""
        return all(map(_is_in_memory, self._work.cohorts))

    def __enter__(self) -> "ClientSource":
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.__exit__(*error)

    def __iter__(self) -> Iterator[UnreadRun]:
        return self

    def __next__(self) -> UnreadRun:
        return self._cut(self._put_back.popleft()) if self._put_back else next(self._runs)

    def put_back(self, unread: UnreadRun, *, singly: bool) -> None:
        """Hands out a run again whose worker has ended; any thread may call.

        Args:
            singly: hand out its slices one by one, so that a client that ends workers is found.
        """
        parts = [unread]
        while singly and parts[-1].slices > 1:
            parts[-1:] = parts[-1].cut(1, self._size)
        self._put_back.extend(parts)

    def _cut(self, unread: UnreadRun) -> UnreadRun:
        """The first slices of a run that was put back, as many as a run has now; the others are put back again."""
        length = self._length(unread.index, unread.slices)
        if length >= unread.slices:
            return unread
        head, tail = unread.cut(length, self._size)
        self._put_back.appendleft(tail)
        return head

    def _length(self, start: int, taken_back: int = 0) -> int:
        """Number of slices of the next run.

        Args:
            start: index of its first slice.
            taken_back: slices of the run that `_cut` has taken out of `_put_back`; they are read, but no worker has
                them.
        """
        waiting = sum(run.slices for run in [*self._put_back])  # a copy, since other threads put runs back
        return self._lengths.length(start, self._read_slices - waiting - taken_back)

    @functools.cached_property
    def _runs(self) -> Iterator[UnreadRun]:
        """The runs that are read for the first time."""
        runs = self._unread_runs()
        return longest_first(runs) if self._longest_first and self.is_in_memory else runs

    def _unread_runs(self) -> Iterator[UnreadRun]:
        """Cuts the clients into runs, in order, and checks that all cohorts have as many clients as the call.

        A run grows from one slice by doubling, at most to the length that `lengths` chooses: to `lengths.width` slices
        whatever their size, and further while `_has_room`.
        """
        cohorts = self._work.cohorts
        counting_cohort = cohorts[0] if cohorts else self._work.counted
        clients = self._zip_cohorts() if cohorts else (() for _ in _placeholders(counting_cohort))
        argument = counting_cohort.path if counting_cohort is not None else ""
        width = self._lengths.width
        while True:
            index, run_clients = self._read_slices, list(itertools.islice(clients, self._size))
            slices, most_slices = 1, self._length(index)
            while slices < most_slices and (slices < width or self._has_room(run_clients)):
                run_clients += itertools.islice(clients, slices * self._size)
                slices *= 2
            if not run_clients:
                self._work.count.check_ended(argument, self.clients)
                return
            self._read_slices += slices
            self.clients += len(run_clients)
            self._work.count.check_reading(argument, self.clients)
            yield UnreadRun(index, slices, index * self._size, run_clients)

    def _has_room(self, run_clients: list[tuple]) -> bool:
        """Whether a run with twice as many clients stays within its bytes."""
        size_bytes = _size_bytes([*itertools.chain.from_iterable(run_clients)])
        return 2 * size_bytes <= MAX_RUN_BYTES * self._lengths.width

    def _zip_cohorts(self) -> Iterator[tuple]:
        """For each client the tuple of its values, one of each cohort."""
        cohorts = [c.given if _is_in_memory(c) else self._read(c) for c in self._work.cohorts]
        return zip(*cohorts, strict=True) if len(cohorts) == 1 else self._zipped_equal(cohorts)

    def _zipped_equal(self, cohorts: list[Iterable]) -> Iterator[tuple]:
        """The tuples of `_zip_cohorts` for several cohorts. Cohorts of different lengths are refused."""
        for index, client in enumerate(itertools.zip_longest(*cohorts, fillvalue=_ENDED)):
            ended = [c.path for c, value in zip(self._work.cohorts, client, strict=True) if value is _ENDED]
            if ended:
                self._work.count.check_ended(ended[0], index)
                longer = next(c.path for c in self._work.cohorts if c.path not in ended)
                self._work.count.check_reading(longer, index + 1)
            yield client

    def _read(self, values: ClientValues) -> Iterator:
        """The values of a cohort whose reading may block or raise; a `_Raised` for a client that it fails for.

        Only an `fc.Cohort` can go on after an error: a generator has ended then.
        """
        read_next = functools.partial(next, iter(values.given), _ENDED)
        in_thread = self._timeout_s is not None or stops_from_elsewhere()
        for index in itertools.count():
            try:
                with self._being_read.reading(index):
                    if in_thread:
                        value = self._reader.call(read_next, self._timeout_s, self._stop, [values.given])
                    else:
                        value = read_next()
            except Exception as error:
                if not self._survives_errors(values):
                    if isinstance(error, TooLate):
                        raise ClientError(f"client {index} was not read from {brief(values.given)}: {error}") from None
                    error.add_note(f"while {client_name(getattr(values.given, 'client_ids', None), index)} was read")
                    raise
                value = _Raised(error)
            if value is _ENDED:
                return
            yield value

    def _survives_errors(self, values: ClientValues) -> bool:
        """Whether an error of the cohort is a fault of one client, after which the next client is read."""
        return self._drops and isinstance(values.given, Cohort)


LONGEST_FIRST_OF = 8
"""Number of successive runs that are sorted. More would keep more partials waiting for their neighbours."""


def longest_first(runs: Iterator[UnreadRun]) -> Iterator[UnreadRun]:
    """The runs, each `LONGEST_FIRST_OF` successive ones sorted by their examples.

    The runs with the most examples come first, so that workers end at about the same time.
    """
    while successive := list(itertools.islice(runs, LONGEST_FIRST_OF)):
        yield from sorted(successive, key=_examples, reverse=True)


def _examples(unread: UnreadRun) -> int:
    """The number of rows of all data sets of a run's clients."""
    datasets = [v for client in unread.clients for v in client if isinstance(v, ClientDataset)]
    return sum(len(d.columns.arrays[0]) for d in datasets if d.columns.arrays)


def _is_in_memory(values: ClientValues) -> bool:
    """Whether the user gave a sequence or an array, and not a generator or an `fc.Cohort`."""
    return isinstance(values.given, Sequence | np.ndarray)


def convert_client(values: ClientValues, index: int, value: object) -> object:
    """A client's value in the runtime's form.

    Raises:
        Exception: the cohort raised this error for the client, or the conversion did.
    """
    if isinstance(value, _Raised):
        raise value.error
    return values.convert_client(index, value)


_VALUES = (int, float, complex, str, bytes, np.ndarray, np.generic, tf.Tensor, ClientDataset, type(None))
"""Types whose values are read without user code."""


def may_block(values: Sequence) -> bool:
    """Whether reading the values may run user code, such as a dataset's function or an `__array__` method."""
    if all(issubclass(kind, _VALUES) for kind in set(map(type, values))):
        return False
    return not all(isinstance(leaf, _VALUES) for leaf in tf.nest.flatten(values))


def _size_bytes(values: Sequence) -> float:
    """About the bytes of values in tuples, lists and dictionaries; infinite if they have others than `_VALUES`."""
    kinds = set(map(type, values))
    if kinds <= _SMALL:
        return _SMALL_BYTES * len(values)
    if kinds == {str}:
        return sum(map(len, values))
    return sum(map(_value_bytes, values))


_SMALL = {int, float, complex, bool, type(None), np.float32, np.float64, np.int32, np.int64}
_SMALL_BYTES = 16  # of the largest, a complex


def _value_bytes(value: object) -> float:
    match value:
        case tuple() | list():
            return _size_bytes(value)
        case dict():
            return _size_bytes([*value.values()])
        case ClientDataset():
            return sum(_value_bytes(array) for array in value.columns.arrays)
        case np.ndarray() | np.generic():
            return value.nbytes if value.dtype != object else math.inf
        case tf.Tensor():
            return value.shape.num_elements() * value.dtype.size
        case str() | bytes():
            return len(value)
        case _:
            return _SMALL_BYTES if type(value) in _SMALL else math.inf


def is_read_once(client: tuple) -> bool:
    """Whether a client's values can be read only once, such as those of a generator, or of a cohort that raised."""
    return any(isinstance(leaf, Iterator | _Raised) for leaf in tf.nest.flatten(client))


def _placeholders(values: ClientValues | None) -> Iterable:
    """An iterable with one element for each client; its elements are not used."""
    if values is None:
        return ()
    return values.given if values.size is None else range(values.size)

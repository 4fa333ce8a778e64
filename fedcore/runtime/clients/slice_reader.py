"""Reads the clients' values of a slice: converts them within a deadline, and caches slices of datasets."""

import functools
import itertools
import math

from fedcore.collection_pause import without_collection
from fedcore.data import ClientDataset
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.runtime.client_slice import ClientSlice
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.blocked import blocked_threads
from fedcore.runtime.clients.client_source import UnreadRun, convert_client, is_read_once, may_block
from fedcore.runtime.clients.clients_being_read import ClientsBeingRead
from fedcore.runtime.clients.faults import FaultPolicy
from fedcore.runtime.clients.reader import Reader
from fedcore.runtime.clients.workers import users_code
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop, Stopped, stopped_by

MAX_SLICES = 1024
"""Number of slices of datasets that an executor caches, for cohorts that take part in several calls."""


def slice_cache() -> IdentityCache[ClientSlice]:
    """Cache of slices by the identities of their clients' datasets."""
    return IdentityCache(MAX_SLICES, _size, remembered=MAX_SLICES)


def _size(clients: ClientSlice) -> float:
    """Size of a slice in the cache: 1, or infinite for a slice that must not be cached.

    A slice from the cache would not report the fault of a client that is left out, and drawn elements are those of one
    call.
    """
    return math.inf if clients.is_of_one_call or len(clients.present) < len(clients.clients) else 1


class SliceReader:
    """Reads slices of one client stage.

    Guarantees:
      - Slices of `ClientDataset`s, which are immutable, are cached; other slices are read in every call.
      - User code runs within the deadline. The fault policy handles a client whose value cannot be read.

    Args:
        size: clients of a full slice.
        cache: the cache of slices, of all stages of an executor.
        timeout_s: seconds that reading a client's data may take; None is no deadline.
    """

    def __init__(
        self,
        work: ClientWork,
        size: int,
        faults: FaultPolicy,
        cache: IdentityCache[ClientSlice],
        report: Report,
        stop: Stop,
        timeout_s: float | None,
        being_read: ClientsBeingRead,
    ) -> None:
        self._being_read = being_read
        self._work = work
        self._size = size
        self._faults = faults
        self._cache = cache
        self._report = report
        self._stop = stop
        self._timeout_s = timeout_s
        self._has_drawn = False  # whether a random map has drawn elements of a client, in any slice so far

    def read(self, unread: UnreadRun) -> ClientSlice:
        """The run as one slice with converted values, and None for each client that is left out.

        A cohort that is opened elsewhere, such as on another machine, is passed on as it is, without conversion.
        """
        if self._work.cohorts and all(cohort.is_opened_elsewhere for cohort in self._work.cohorts):
            dropped = self._report.dropped
            clients = (None if i in dropped else client for i, client in enumerate(unread.clients, unread.first))
            return ClientSlice(unread.first, self._places(unread), tuple(clients if dropped else unread.clients))
        client_values = list(itertools.chain.from_iterable(unread.clients))
        if set(map(type, client_values)) == {ClientDataset} and not self._report.dropped:
            key = (*self._work.key, unread.first, self._places(unread))
            return self._cache.get(key, client_values, lambda: self._read(unread))
        if may_block(client_values):
            blocked_threads.check()
            with stopped_by(self._stop), users_code():
                return self._read(unread)
        with without_collection():  # new containers for each client, which stay for the call
            return self._read(unread)

    def _read(self, unread: UnreadRun) -> ClientSlice:
        """Converts the clients one by one; if reading has a deadline, in the thread of a `Reader`."""
        with Reader(f"fedcore-data-{unread.first}") as reader:
            clients = [self._convert_client(i, c, reader) for i, c in enumerate(unread.clients, unread.first)]
        return ClientSlice(unread.first, self._places(unread), tuple(clients), self._has_drawn)

    def _places(self, unread: UnreadRun) -> int:
        """Places of the slice that a run becomes: those of 2^k slices, though the last run may have fewer."""
        return self._size << (unread.slices - 1).bit_length()

    def _convert_client(self, index: int, client: tuple, reader: Reader) -> tuple | None:
        """A client's values in the runtime's form; None if the client is left out.

        If a read fails, the fault policy decides: it is repeated, the client is left out, or an error is raised.
        """
        if index in self._report.dropped:
            return None
        for reads in itertools.count(1):
            try:
                with self._being_read.reading(index):
                    if self._timeout_s is None:
                        return self._convert(index, client)
                    convert = functools.partial(self._convert, index, client)
                    return reader.call(convert, self._timeout_s, self._stop, client)
            except Stopped:
                raise
            except Exception as error:
                if self._faults.unreadable(index, error, reads=reads, once=is_read_once(client)):
                    break
        return None

    def _convert(self, index: int, client: tuple) -> tuple:
        """A client's values in the runtime's form, in which random maps of sequences have drawn their elements."""
        values = tuple(map(convert_client, self._work.cohorts, itertools.repeat(index), client))
        drawn_values = self._work.drawn(index, values)
        self._has_drawn = self._has_drawn or drawn_values is not values
        return drawn_values

"""The clients whose data calls wait for at the moment. So a client that hangs is named, without a deadline."""

import contextlib
import itertools
import time
import weakref
from collections.abc import Iterator

from fedcore.data import client_name
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.reports.report import Report

SLOW_S = 3.0
"""Seconds of reading after which a client is named as slow."""

_SPAN_S = 0.01
"""Seconds after which a client has a span of its own in a recording."""


class ClientsBeingRead:
    """The clients of one stage that are being read, in any thread."""

    def __init__(self, work: ClientWork, report: Report) -> None:
        self._ids = work.client_ids
        self._report = report
        self._began: dict[int, tuple[int, float]] = {}  # number of the read -> index of the client, time
        self._numbers = itertools.count()
        _stages.add(self)

    @contextlib.contextmanager
    def reading(self, index: int) -> Iterator[None]:
        """Context in which a client is read. An interrupt in it names the client; a recording gets a span."""
        number, began = next(self._numbers), time.perf_counter()
        self._began[number] = index, began
        try:
            yield
        except KeyboardInterrupt as interrupt:
            self.name_slow_in(interrupt, 0.0)
            raise
        finally:
            del self._began[number]
            seconds = time.perf_counter() - began
            if seconds >= _SPAN_S:
                self._report.add_span("read", self._name(index), seconds)

    def slow(self, seconds: float = SLOW_S) -> list[str]:
        """The clients whose reading takes `seconds` or more so far, such as `client 'b7', for 12 s`."""
        now = time.perf_counter()
        reads = [(index, now - began) for index, began in list(self._began.values())]
        return [f"{self._name(index)}, for {waited:.0f} s" for index, waited in reads if waited >= seconds]

    def _name(self, index: int) -> str:
        """The client of this index in words. The last reading of a cohort is for a client that does not exist."""
        at_end = self._ids is not None and index >= len(self._ids)
        return "the end of the clients" if at_end else client_name(self._ids, index)

    def name_slow_in(self, interrupt: BaseException, seconds: float = SLOW_S) -> None:
        """Notes the slow clients in an error, which shows them below its message."""
        for text in self.slow(seconds):
            note = f"while it read {text}"
            if note not in getattr(interrupt, "__notes__", ()):
                interrupt.add_note(note)


_stages: weakref.WeakSet[ClientsBeingRead] = weakref.WeakSet()


def slow_clients() -> list[str]:
    """The clients for which calls of this process have waited for `SLOW_S` or longer, as texts of `slow`."""
    return [text for stage in list(_stages) for text in stage.slow()]

"""Blocked threads: they run user code that has not returned when its call ended. Python cannot end them.

Decision 0091.
"""

import threading
from collections.abc import Iterable

from fedcore.errors import FedcoreError

MAX_BLOCKED = 32
"""Number of blocked threads in a process from which on calls refuse to run user code that may block."""

SHOWN = 3
"""Number of thread names that a message lists."""


class BlockedThreads:
    """Threads that still run user code, such as code that reads clients' data, although their calls have ended.

    Guarantees:
      - A thread counts from the moment when its call abandons it until its code returns.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._read: dict[threading.Thread, tuple[object, ...]] = {}  # the values that each blocked thread reads

    def add(self, thread: threading.Thread, read: Iterable = ()) -> None:
        """Counts a thread as blocked.

        Args:
            read: the values that the thread reads.
        """
        with self._lock:
            self._read[thread] = tuple(read)

    def discard(self, thread: threading.Thread) -> None:
        """Stops counting a thread, whose code has returned."""
        with self._lock:
            self._read.pop(thread, None)

    def reading(self, values: Iterable) -> list[str]:
        """The names of the blocked threads that read at least one of these values, by identity."""
        with self._lock:
            return [
                thread.name
                for thread, read in self._read.items()
                if any(value is other for value in values for other in read)
            ]

    def check(self) -> None:
        """Raises FedcoreError if `MAX_BLOCKED` threads are blocked."""
        if len(self._read) >= MAX_BLOCKED:
            raise FedcoreError(
                f"{self.describe()}: from here on this process reads clients' data from arrays, numbers and "
                "fc.data.ClientDataset only"
            )

    def describe(self) -> str:
        """A sentence with the number and names of the blocked threads; empty if there are none."""
        with self._lock:
            names = [thread.name for thread in self._read]
        if not names:
            return ""
        listing = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        is_plural = len(names) > 1
        return (
            f"{len(names)} thread{'s' * is_plural} of calls that were stopped or came too late still "
            f"run{'s' * (not is_plural)} "
            f"({listing}), such as code that waits for a client's data"
        )


blocked_threads = BlockedThreads()
"""The blocked threads of this process."""

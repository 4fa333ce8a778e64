"""Threads that calls have left behind: blocked Python code of the user's cannot be ended."""

import threading
from collections.abc import Iterable

from fedcore.errors import FedcoreError

MAX_BLOCKED = 32
"""Blocked threads of the process from which on no call runs code that may block."""

SHOWN = 3
"""Names of threads that a message lists."""


class BlockedThreads:
    """The threads of a process that still wait for clients' data, after the calls that asked for them have ended.

    Guarantees:
      - A thread counts from the moment when its call leaves it behind until its code returns.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._read: dict[threading.Thread, tuple[object, ...]] = {}

    def add(self, thread: threading.Thread, read: Iterable = ()) -> None:
        """Counts a thread as blocked.

        Args:
            read: the values that it reads.
        """
        with self._lock:
            self._read[thread] = tuple(read)

    def discard(self, thread: threading.Thread) -> None:
        """Counts a thread no longer: its code has returned."""
        with self._lock:
            self._read.pop(thread, None)

    def reading(self, values: Iterable) -> list[str]:
        """The names of the threads that read one of these values."""
        with self._lock:
            return [
                thread.name
                for thread, read in self._read.items()
                if any(one is other for one in values for other in read)
            ]

    def check(self) -> None:
        """Raises FedcoreError if `MAX_BLOCKED` threads are blocked."""
        if len(self._read) >= MAX_BLOCKED:
            raise FedcoreError(
                f"{self.described()}: from here on this process reads clients' data from arrays, numbers and "
                "fc.data.ClientDataset only"
            )

    def described(self) -> str:
        """A sentence with their number and names; empty if there are none."""
        with self._lock:
            names = [thread.name for thread in self._read]
        if not names:
            return ""
        shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        many = len(names) > 1
        return (
            f"{len(names)} thread{'s' * many} of calls that were stopped or came too late still run{'s' * (not many)} "
            f"({shown}), such as code that waits for a client's data"
        )


blocked_threads = BlockedThreads()
"""The blocked threads of this process."""

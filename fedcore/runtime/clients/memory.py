"""Memory of a device: when it runs out, fewer graph calls run at once, and slices get smaller.

Decision 0051.
"""

import threading
from collections.abc import Callable, Hashable
from typing import TypeVar

import tensorflow as tf

from fedcore.runtime.clients.memory_budget import MemoryBudget
from fedcore.runtime.stopping import Stop, Stopped

Result = TypeVar("Result")


class DeviceMemory:
    """Limits the number of graph calls that run on a device at once, and the number of clients of a slice.

    Guarantees:
      - At most `most` calls run at once. When a call runs out of memory, the limit becomes at most half of the limit
        under which that call began.
      - Under the limit 1 a call runs alone.
      - The limits never grow again.
      - Calls that run at once hold at most the bytes of the budget, or one runs alone.

    Args:
        most: calls that may run at once.
        budget: bytes for client stages; None for no limit.
        shrinks: slices that do not fit get smaller; else they fail.
    """

    def __init__(self, most: int, budget: MemoryBudget | None = None, *, shrinks: bool = True) -> None:
        self.budget = budget
        self.shrinks = shrinks
        self._most = most
        self._running = 0  # number of calls
        self._running_bytes = 0
        self._changed = threading.Condition()  # notified when a call ends
        self._clients: dict[Hashable, int] = {}  # stage -> most clients of a slice, see `holds`

    @property
    def most(self) -> int:
        """How many calls may run at once."""
        return self._most

    def run(self, call: Callable[[], Result], stop: Stop, note: Callable[[int], None], size_bytes: int = 0) -> Result:
        """Runs a graph call. If it runs out of memory, runs it again under a lower limit.

        Args:
            note: called with the new limit before the call runs again.
            size_bytes: the call's part of the budget.
        Raises:
            tf.errors.ResourceExhaustedError: the call ran out of memory though it ran alone.
            Stopped: `stop` was cancelled.
        """
        while True:
            limit = self.begin(stop, size_bytes)
            try:
                return call()
            except tf.errors.ResourceExhaustedError:
                new_limit = self.halve(limit)
                if not new_limit:
                    raise
            finally:
                self.end(size_bytes)
            note(new_limit)

    def begin(self, stop: Stop, size_bytes: int = 0) -> int:
        """Waits until a call may run, and returns the limit of calls at once. Each `begin` needs an `end`.

        Raises:
            Stopped: `stop` was cancelled during the wait.
        """
        with self._changed:
            while self._running >= self._most or not self._has_room(size_bytes):
                if stop.is_stopped:
                    raise Stopped("the call was stopped")
                self._changed.wait(0.1)
            self._running += 1
            self._running_bytes += size_bytes
            return self._most

    def _has_room(self, size_bytes: int) -> bool:
        """Whether a call fits into the budget beside those that run, or none runs."""
        return (
            self.budget is None
            or not self._running_bytes
            or (self._running_bytes + size_bytes <= self.budget.size_bytes)
        )

    def end(self, size_bytes: int = 0) -> None:
        """Notes the end of a call that `begin` let run with this size."""
        with self._changed:
            self._running -= 1
            self._running_bytes -= size_bytes
            self._changed.notify_all()

    def halve(self, limit: int) -> int:
        """The new limit after a call that began under `limit` ran out of memory; 0 if the call ran alone."""
        if limit == 1:
            return 0
        with self._changed:
            self._most = min(self._most, limit // 2)
            return self._most

    def clients(self, stage: Hashable, count: int) -> int:
        """How many of the `count` clients of a stage fit into one slice, as far as is known."""
        with self._changed:
            return min(count, self._clients.get(stage, count))

    def holds(self, stage: Hashable, clients: int) -> None:
        """Notes that at most so many clients of a stage fit into a slice; 0: a block runs client by client."""
        with self._changed:
            self._clients[stage] = min(clients, self._clients.get(stage, clients))

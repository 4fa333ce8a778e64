"""The memory policy: when a device runs out of memory, fewer graph calls run at once, then slices get smaller.

Decisions 0051 and 0264.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import tensorflow as tf

from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
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
        self._running = 0
        self._running_bytes = 0
        self._free = threading.Condition()
        self._clients: dict[Hashable, int] = {}

    @property
    def most(self) -> int:
        """How many calls may run at once."""
        return self._most

    def run(self, call: Callable[[], Result], stop: Stop, note: Callable[[int], None], size_bytes: int = 0) -> Result:
        """Runs a graph call. If it runs out of memory, runs it again under a lower limit.

        Args:
            note: called with the new limit before the call runs again.
            size_bytes: what the call needs of the budget.
        Raises:
            tf.errors.ResourceExhaustedError: the call ran alone.
        """
        while True:
            allowed = self.begin(stop, size_bytes)
            try:
                return call()
            except tf.errors.ResourceExhaustedError:
                fewer = self.halve(allowed)
                if not fewer:
                    raise
            finally:
                self.end(size_bytes)
            note(fewer)

    def begin(self, stop: Stop, size_bytes: int = 0) -> int:
        """Waits until a call may run, and returns the limit. Each `begin` needs an `end`.

        Raises:
            Stopped: `stop` was cancelled during the wait.
        """
        with self._free:
            while self._running >= self._most or not self._has_room(size_bytes):
                if stop.is_stopped:
                    raise Stopped("the call was stopped")
                self._free.wait(0.1)
            self._running += 1
            self._running_bytes += size_bytes
            return self._most

    def _has_room(self, size_bytes: int) -> bool:
        """Whether a call fits into the budget beside those that run."""
        return (
            self.budget is None
            or not self._running_bytes
            or (self._running_bytes + size_bytes <= self.budget.size_bytes)
        )

    def end(self, size_bytes: int = 0) -> None:
        with self._free:
            self._running -= 1
            self._running_bytes -= size_bytes
            self._free.notify_all()

    def halve(self, allowed: int) -> int:
        """The new limit after a call that began under the limit `allowed` ran out of memory; 0 if it ran alone."""
        if allowed == 1:
            return 0
        with self._free:
            self._most = min(self._most, allowed // 2)
            return self._most

    def clients(self, stage: Hashable, count: int) -> int:
        """How many of the `count` clients of a stage fit into one slice, as far as is known."""
        with self._free:
            return min(count, self._clients.get(stage, count))

    def holds(self, stage: Hashable, clients: int) -> None:
        """Notes that at most so many clients of a stage fit into a slice; 0: a block runs client by client."""
        with self._free:
            self._clients[stage] = min(clients, self._clients.get(stage, clients))


Run = Callable[[ClientSlice], SliceResult]
Merge = Callable[[Any, Any], Any]


class FittingSlices:
    """Runs slices in parts that fit into a device's memory, and of which no client fails because of the others.

    Guarantees:
      - A slice is halved, down to one block. If a block does not fit, its clients run one by one, each from the partial
        of the client before. The bits are those of the whole slice.
      - Later slices of the stage start with the size that fitted.
      - A vectorised slice that TensorFlow refuses for its values is halved too. Clients side by side take the branches
        and the steps of the others, with values for which their own program takes none.

    Args:
        run: runs a slice in one graph call.
        one_by_one: runs one block, by a graph call for each client.
        merge: merges two partials.
        device: name of the device, for the report.
        note: adds a note to the report.
        fitting_places: of a slice, how many places a call may have for the memory budget; 0 if a block's clients run
            one by one.
    """

    def __init__(
        self,
        work: ClientWork,
        memory: DeviceMemory,
        run: Run,
        one_by_one: Run,
        merge: Merge,
        device: str,
        note: Callable[[str], None],
        fitting_places: Callable[[ClientSlice], int],
    ) -> None:
        self._work = work
        self._memory = memory
        self._run = run
        self._one_by_one = one_by_one
        self._merge = merge
        self._device = device
        self._note = note
        self._fitting_places = fitting_places

    def __call__(self, clients: ClientSlice) -> SliceResult:
        if min(self._memory.clients(self._work.key, clients.places), self._fitting_places(clients)) == clients.places:
            try:
                return self._run(clients)
            except tf.errors.ResourceExhaustedError:
                if not self._memory.shrinks or (not self._work.is_vectorised and len(clients.present) == 1):
                    raise
                self._shrink(clients.places)
            except (tf.errors.InvalidArgumentError, tf.errors.CancelledError):
                # The call was not stopped: an operation that fails cancels the loops around it, and TensorFlow may name
                # the loop instead.
                if not self._work.is_vectorised or len(clients.present) == 1:
                    raise
                self._note(f"@{self._work.stage}: clients failed side by side; they ran in smaller calls")
        if clients.places == self._work.block:
            return self._one_by_one(clients)
        return in_halves(clients, self._work.block, self, self._merge)

    def _shrink(self, places: int) -> None:
        fits = places // 2 if places > self._work.block else 0
        self._memory.holds(self._work.key, fits)
        self._note(
            f"{self._device} ran out of memory: @{self._work.stage} runs there in calls of {fits or 1} "
            f"client{'s' * (fits > 1)}"
        )


def in_halves(clients: ClientSlice, block: int, run: Run, merge: Merge) -> SliceResult:
    """The joined result of the two halves of a slice. A half without present clients is left out."""
    halves = clients.parts(block, clients.places // 2)
    return clients.joined(halves, map(run, halves), merge)

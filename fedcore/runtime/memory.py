"""Out of memory: fewer graph calls at once, then smaller slices."""

import threading
from collections.abc import Callable, Hashable
from typing import TypeVar

import tensorflow as tf

from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.stopping import Stop, Stopped

Result = TypeVar("Result")


class DeviceMemory:
    """Limits the graph calls that run on a device at once, and the clients of a slice.

    Guarantees:
      - `most` calls at once until memory runs out, then at most half as many as were allowed to the call that failed.
      - A call that is allowed alone runs while no other does.
      - The limits hold as long as the stack does.
    """

    def __init__(self, most: int):
        self._most = most
        self._running = 0
        self._free = threading.Condition()
        self._clients: dict[Hashable, int] = {}

    def run(self, call: Callable[[], Result], stop: Stop, note: Callable[[int], None]) -> Result:
        """Runs a graph call, and again with fewer others beside it when memory runs out.

        Args:
            note: takes the new limit before the call runs again.
        Raises:
            tf.errors.ResourceExhaustedError: no other call ran beside it.
        """
        while True:
            allowed = self.begin(stop)
            try:
                return call()
            except tf.errors.ResourceExhaustedError:
                fewer = self.halve(allowed)
                if not fewer:
                    raise
            finally:
                self.end()
            note(fewer)

    def begin(self, stop: Stop) -> int:
        """Waits until a call may run; returns how many may run at once. Each `begin` has its `end`.

        Raises:
            Stopped: while it waited.
        """
        with self._free:
            while self._running >= self._most:
                if stop.is_stopped:
                    raise Stopped("the call was stopped")
                self._free.wait(0.1)
            self._running += 1
            return self._most

    def end(self) -> None:
        with self._free:
            self._running -= 1
            self._free.notify()

    def halve(self, allowed: int) -> int:
        """The new limit after one of so many allowed calls ran out of memory; 0 if it ran alone."""
        if allowed == 1:
            return 0
        with self._free:
            self._most = min(self._most, allowed // 2)
            return self._most

    def clients(self, stage: Hashable, asked: int) -> int:
        """The clients of a stage that fit into one slice, at most as many as are asked for."""
        with self._free:
            return min(asked, self._clients.get(stage, asked))

    def holds(self, stage: Hashable, clients: int) -> None:
        """Notes that no more clients of a stage fit; 0 where the clients of a block run one by one."""
        with self._free:
            self._clients[stage] = min(clients, self._clients.get(stage, clients))


Run = Callable[[ClientSlice], SliceResult]


class FittingSlices:
    """Runs slices in parts that fit into a device's memory.

    Guarantees:
      - Parts are halves, down to one block; then the clients of the block one by one, which pass the partial on. The
        bits are those of the whole slice.
      - Later slices of the stage begin with the size that was found to fit.

    Args:
        run: runs a slice in one graph call.
        one_by_one: runs one block, a graph call for each client.
        join: joins the results of two halves.
        device: its name, for the report.
    """

    def __init__(
        self,
        work: ClientWork,
        memory: DeviceMemory,
        run: Run,
        one_by_one: Run,
        join: Callable[[SliceResult, SliceResult], SliceResult],
        device: str,
        note: Callable[[str], None],
    ):
        self._work = work
        self._memory = memory
        self._run = run
        self._one_by_one = one_by_one
        self._join = join
        self._device = device
        self._note = note

    def __call__(self, clients: ClientSlice) -> SliceResult:
        if self._memory.clients(self._work.key, clients.places) == clients.places:
            try:
                return self._run(clients)
            except tf.errors.ResourceExhaustedError:
                if not self._work.is_vectorised and len(clients.present) == 1:
                    raise
                self._shrink(clients.places)
        if clients.places == self._work.block:
            return self._one_by_one(clients)
        return in_halves(clients, self, self._join)

    def _shrink(self, places: int) -> None:
        fits = places // 2 if places > self._work.block else 0
        self._memory.holds(self._work.key, fits)
        self._note(
            f"{self._device} ran out of memory: @{self._work.stage} runs there in calls of {fits or 1} "
            f"client{'s' * (fits > 1)}"
        )


def in_halves(clients: ClientSlice, run: Run, join: Callable[[SliceResult, SliceResult], SliceResult]) -> SliceResult:
    """Runs the two halves of a slice. A half without clients does not count."""
    results = [run(half) for half in clients.halves() if half.present]
    return results[0] if len(results) == 1 else join(*results)

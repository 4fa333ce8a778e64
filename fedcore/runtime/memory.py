"""What a device was found to hold."""

import threading
from collections.abc import Hashable

from fedcore.runtime.stopping import Stop, Stopped


class DeviceMemory:
    """How many calls run on a device at once, and how many clients one of them takes.

    Guarantees:
      - `most` calls at once until memory runs out, then at most half as many as were allowed to the call that failed.
      - A call that is allowed alone runs while no other does.
      - What was found holds as long as the stack does.
    """

    def __init__(self, most: int):
        self._most = most
        self._running = 0
        self._free = threading.Condition()
        self._clients: dict[Hashable, int] = {}

    def begin(self, stop: Stop) -> int:
        """Waits until a call may run; gives how many may at once. Each has its `end`.

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
        """How many calls may run at once after one of so many ran out of memory; 0 where it was alone."""
        if allowed == 1:
            return 0
        with self._free:
            self._most = min(self._most, allowed // 2)
            return self._most

    def clients(self, stage: Hashable, asked: int) -> int:
        """How many clients of a stage fit into one call, at most as many as are asked for."""
        with self._free:
            return min(asked, self._clients.get(stage, asked))

    def holds(self, stage: Hashable, clients: int) -> None:
        """Notes that no more clients of a stage fit; 0 where the clients of a block run one by one."""
        with self._free:
            self._clients[stage] = min(clients, self._clients.get(stage, clients))

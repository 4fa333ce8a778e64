"""Ending a call of a computation early."""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.cancelling import Cancellation

GRACE_S = 1.5
"""How long a call that is ended waits for its graph calls; a kernel that takes longer ends on its own."""


class Stopped(FedcoreError):
    """The call was stopped before it was through."""


class Stop:
    """What ends one call of a computation.

    Guarantees:
      - After `stop`, from any thread, the graph calls that run are cancelled and no further one begins.
      - Other calls on the same runtime go on.
    """

    def __init__(self) -> None:
        self._running: set[Cancellation] = set()
        self._stopped = False
        self._lock = threading.Lock()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for cancellation in running:
            cancellation.cancel()

    @contextlib.contextmanager
    def running(self) -> Iterator[Cancellation]:
        """The cancellation of a graph call that runs inside.

        Raises:
            Stopped: the call was stopped before, or is while it runs.
        """
        cancellation = Cancellation()
        with self._lock:
            if self._stopped:
                raise Stopped("the call was stopped")
            self._running.add(cancellation)
        try:
            yield cancellation
        except tf.errors.CancelledError:
            if self._stopped:
                raise Stopped("the call was stopped") from None
            raise
        finally:
            with self._lock:
                self._running.discard(cancellation)

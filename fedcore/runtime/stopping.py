"""Ending a call of a computation early."""

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from typing import Protocol

import tensorflow as tf

from fedcore.context_values import set_inside
from fedcore.errors import FedcoreError
from fedcore.graphs.tensors.cancellation import Cancellation

GRACE_S = 1.5
"""Seconds that a stopped call waits for its graph calls. A kernel that takes longer is not waited for."""


class Cancellable(Protocol):
    """Work of a call that can be ended early."""

    def cancel(self) -> object: ...


class Stopped(FedcoreError):
    """The call was stopped before it ended."""


class Stop:
    """Ends one call of a computation early.

    Guarantees:
      - `cancel` may be called from any thread. It cancels the graph calls in progress, and prevents further graph
        calls.
      - Other calls on the runtime are not affected.
    """

    def __init__(self) -> None:
        self._running: set[Cancellable] = set()
        self._stopped = False
        self._lock = threading.Lock()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def cancel(self) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for cancellable in running:
            cancellable.cancel()

    @contextlib.contextmanager
    def cancelling(self, running: "Cancellable") -> Iterator[None]:
        """Cancels `running` with this `Stop` in the `with` block; at once if the call was stopped."""
        with self._lock:
            self._running.add(running)
        try:
            if self._stopped:
                running.cancel()
            yield
        finally:
            with self._lock:
                self._running.discard(running)

    @contextlib.contextmanager
    def inner(self) -> Iterator["Stop"]:
        """A nested `Stop`: it can be cancelled alone, and is cancelled with this one."""
        within = Stop()
        with self.cancelling(within):
            yield within

    @contextlib.contextmanager
    def running(self) -> Iterator[Cancellation]:
        """Gives the `Cancellation` for a graph call in the `with` block.

        Raises:
            Stopped: the call was stopped, before or during the graph call.
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


_of_task: contextvars.ContextVar[Stop | None] = contextvars.ContextVar("fedcore_stop", default=None)


def stopped_by(stop: Stop) -> contextlib.AbstractContextManager:
    """Cancelling `stop` stops the calls that this thread or task makes in the `with` block."""
    return set_inside(_of_task, stop)


def stops_from_elsewhere() -> bool:
    """Whether another thread may stop the calls of this thread or task."""
    return _of_task.get() is not None


def current_stop() -> contextlib.AbstractContextManager[Stop]:
    """The `Stop` for a call that this thread or task makes now."""
    return (_of_task.get() or Stop()).inner()

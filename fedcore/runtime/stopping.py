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
"""Seconds that a stopped call waits for its graph calls to end; a kernel may take longer."""


class Cancellable(Protocol):
    """Work of a call that can be ended early."""

    def cancel(self) -> object:
        """Ends the work early; any thread may call."""


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
        """Stops the call, and cancels its work in progress."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for cancellable in running:
            cancellable.cancel()

    @contextlib.contextmanager
    def cancelling(self, work: Cancellable) -> Iterator[None]:
        """Context in which cancelling this `Stop` cancels the work too; at once if the call was stopped before."""
        with self._lock:
            self._running.add(work)
        try:
            if self._stopped:
                work.cancel()
            yield
        finally:
            with self._lock:
                self._running.discard(work)

    @contextlib.contextmanager
    def inner(self) -> Iterator["Stop"]:
        """A nested `Stop`: it can be cancelled alone, and is cancelled with this one."""
        nested = Stop()
        with self.cancelling(nested):
            yield nested

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


_outer_stop: contextvars.ContextVar[Stop | None] = contextvars.ContextVar("fedcore_stop", default=None)
"""The `Stop` of `stopped_by` around the code of this thread or task."""


def stopped_by(stop: Stop) -> contextlib.AbstractContextManager:
    """Context in which cancelling `stop` stops the calls that this thread or task makes."""
    return set_inside(_outer_stop, stop)


def stops_from_elsewhere() -> bool:
    """Whether another thread may stop the calls of this thread or task."""
    return _outer_stop.get() is not None


def current_stop() -> contextlib.AbstractContextManager[Stop]:
    """Context of a call that this thread or task makes; yields the `Stop` of the call."""
    return (_outer_stop.get() or Stop()).inner()

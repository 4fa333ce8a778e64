"""Runs user code that may block in a thread that the call can abandon."""

import contextvars
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from fedcore.errors import FedcoreError
from fedcore.runtime.clients.blocked import blocked_threads
from fedcore.runtime.stopping import Stop, Stopped

Result = TypeVar("Result")


class TooLate(FedcoreError):
    """A client's data or its graph were not ready by the deadline."""


MAX_LEFT = 2
"""Number of threads that may be blocked on one client's value. More than one: a second reading may succeed."""


class Reader:
    """Runs tasks (Python functions), one after the other, in a separate thread.

    Guarantees:
      - The thread is made when first needed, and ends with the `with` block of the reader.
      - A task that blocks past its deadline, or past the end of its call, is abandoned with its daemon thread. The next
        task gets a new thread.
      - A task runs in the context of the caller, so the caller's `fc.use` holds.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *error: object) -> None:
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None

    def call(self, task: Callable[[], Result], seconds: float | None, stop: Stop, read: Iterable = ()) -> Result:
        """Runs a task; returns its result or raises its error.

        Args:
            seconds: the deadline; None is no deadline.
            read: the values that the task reads, for `MAX_LEFT`.
        Raises:
            TooLate: the deadline has passed, or `MAX_LEFT` threads wait for the values already.
            Stopped: the call was stopped. Both name the threads that are blocked.
        """
        blocked = blocked_threads.reading(read)
        if len(blocked) >= MAX_LEFT:
            raise TooLate(f"the threads {', '.join(blocked)} still wait for the data, which earlier readings asked for")
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=(self._tasks,), name=self._name, daemon=True)
            self._thread.start()
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._tasks.put((contextvars.copy_context(), task, answer))
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            wait_s = min(0.1, deadline - time.monotonic())  # short, to see a stop
            try:
                result, error = answer.get(timeout=max(0.0, wait_s))
            except queue.Empty:
                if stop.is_stopped:
                    self._abandon(answer, read)
                    raise Stopped(f"the call was stopped; the thread {self._name} still waits for data") from None
                if time.monotonic() >= deadline:
                    self._abandon(answer, read)
                    raise TooLate(
                        f"the data were not there within {seconds:g} s, and the thread {self._name} still waits for "
                        "them"
                    ) from None
                continue
            if error is not None:
                raise error
            return result

    def _abandon(self, answer: queue.SimpleQueue, read: Iterable) -> None:
        """Counts the thread as blocked, and gives it up; the next task gets another thread."""
        assert self._thread is not None
        blocked_threads.add(self._thread, read)
        if not answer.empty():  # the task has ended meanwhile
            blocked_threads.discard(self._thread)
        self.__exit__()


def _serve(tasks: queue.SimpleQueue) -> None:
    """Runs the tasks of a queue until None comes; answers each by (result, error)."""
    while (request := tasks.get()) is not None:
        context, task, answer = request
        try:
            answer.put((context.run(task), None))
        except BaseException as error:
            answer.put((None, error))
        blocked_threads.discard(threading.current_thread())
        del request, context, task, answer

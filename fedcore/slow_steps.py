"""Steps that only first calls have, such as traces: a line on the terminal for a long one, and their total seconds."""

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator

SLOW_S = 3.0
"""Seconds after which a step is told."""


class _StepClock:
    """The seconds in which steps ran; those of steps that run at once, in several threads, count once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may begin a step in the thread that holds it
        self._running, self._began_s, self._ended_s = 0, 0.0, 0.0

    def begin(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._began_s = time.perf_counter()

    def end(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._ended_s += time.perf_counter() - self._began_s

    def seconds(self) -> float:
        with self._lock:
            return self._ended_s + (time.perf_counter() - self._began_s if self._running else 0.0)


_clocks: contextvars.ContextVar[tuple[_StepClock, ...]] = contextvars.ContextVar("fedcore_step_clocks", default=())


@contextlib.contextmanager
def timed_slow_steps() -> Iterator[Callable[[], float]]:
    """Gives a function that returns the seconds in which the `with` block ran steps of first calls, so far.

    Steps of another block in another thread of the process are not counted; those of a block inside are.
    """
    clock = _StepClock()
    token = _clocks.set((*_clocks.get(), clock))
    try:
        yield clock.seconds
    finally:
        _clocks.reset(token)


def timed_as_here(task: Callable[[], None]) -> Callable[[], None]:
    """The task for another thread, where its steps count in the blocks of `timed_slow_steps` around this call."""
    clocks = _clocks.get()

    def perform() -> None:
        token = _clocks.set(clocks)
        try:
            task()
        finally:
            _clocks.reset(token)

    return perform if clocks else task


@contextlib.contextmanager
def slow_step(step: str) -> Iterator[None]:
    """Context of a step that only first calls have, such as a trace. If it takes long, stderr gets a line that says so.

    Nothing is printed where stderr is no terminal.

    Args:
        step: such as "tracing `train_step`".
    """
    timer = threading.Timer(SLOW_S, _tell, [step])
    timer.daemon = True
    timer.start()
    clocks = _clocks.get()
    for clock in clocks:
        clock.begin()
    try:
        yield
    finally:
        for clock in clocks:
            clock.end()
        timer.cancel()
        timer.join()


def _tell(step: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed stderr
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"fedcore: {step} takes more than {SLOW_S:g} s; later calls do not repeat it", file=sys.stderr)

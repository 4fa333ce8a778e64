"""Tells on a terminal which step of a first call takes long."""

import contextlib
import sys
import threading
from collections.abc import Iterator

SLOW_S = 3.0
"""Seconds after which a step is told."""


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
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _tell(step: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed stderr
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"fedcore: {step} takes more than {SLOW_S:g} s; later calls do not repeat it", file=sys.stderr)

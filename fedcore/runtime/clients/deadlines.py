"""The deadline of clients' graph calls."""

import contextlib
import threading
from collections.abc import Iterator

from fedcore.runtime.clients.reader import TooLate
from fedcore.runtime.stopping import Stop, Stopped


@contextlib.contextmanager
def deadline(stop: Stop, seconds: float) -> Iterator[Stop]:
    """Gives the `Stop` for a graph call in the `with` block, and cancels it after the given seconds.

    Raises:
        TooLate: the graph call was cancelled by its deadline.
    """
    with stop.inner() as within:
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), within.cancel)  # it may be infinite
        timer.daemon = True
        timer.start()
        try:
            yield within
        except Stopped:
            if stop.is_stopped:
                raise
            raise TooLate(f"the graph did not end within {seconds:g} s") from None
        finally:
            timer.cancel()
            timer.join()

"""The deadline of clients' graph calls."""

import contextlib
import threading
from collections.abc import Iterator

from fedcore.runtime.clients.reader import TooLate
from fedcore.runtime.stopping import Stop, Stopped


@contextlib.contextmanager
def deadline(stop: Stop, seconds: float) -> Iterator[Stop]:
    """Context of a graph call; yields the `Stop` of the call, which is cancelled after some seconds.

    Raises:
        TooLate: the graph call was cancelled by its deadline.
    """
    with stop.inner() as nested:
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), nested.cancel)  # `seconds` may be infinite
        timer.daemon = True
        timer.start()
        try:
            yield nested
        except Stopped:
            if stop.is_stopped:
                raise
            raise TooLate(f"the graph did not end within {seconds:g} s") from None
        finally:
            timer.cancel()
            timer.join()

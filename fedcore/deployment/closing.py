"""The certain end of a server's exchange and of a site's process."""

import threading
import weakref
from types import TracebackType
from typing import Self

from fedcore.graphs import private_api


class ClosedAtExit:
    """An exchange that a `with` block closes, or else the end of the program."""

    def close(self) -> None:
        raise NotImplementedError

    def close_at_exit(self) -> None:
        """Has the end of the program call `close`: after the main thread, also after an exception or Ctrl-C.

        Python first waits for the threads of all pools, and those of an engine may never end. `atexit` would come
        after that; the hook of `threading`, by which pools themselves end, comes before.
        """
        reference = weakref.ref(self)

        def close() -> None:
            exchange = reference()
            if exchange is not None:
                exchange.close()

        private_api.call_before_threads_end(close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Ending:
    """The end of a site's process, which comes once, with a reason; an empty one if all is well."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def come(self, reason: str) -> None:
        """Ends the process for a reason; the first reason stays."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the end has come, at most after some seconds."""
        return self._event.wait(timeout_s)

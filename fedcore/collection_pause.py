"""Pauses Python's cyclic garbage collector.

A graph that is built consists of many objects that stay. They make the collector look at all objects of the process
several times, each time for a quarter of a second.

Decision 0246.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator


class CollectionPause:
    """Keeps the collector of the process from running while a thread is inside.

    Guarantees:
      - A collector that was off before the first thread entered stays off.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may build a graph where its thread holds it
        self._threads = 0
        self._resumes = False  # whether the collector was on before the first thread entered

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Context in which the collector does not run. The last thread that leaves it turns the collector on again."""
        with self._lock:
            self._resumes = gc.isenabled() if not self._threads else self._resumes
            self._threads += 1
            gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads and self._resumes:
                    gc.enable()


without_collection = CollectionPause()

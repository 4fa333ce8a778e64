"""Realized functions, kept by what decides them."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from fedcore.graphs.stages.realize import Realized

MAX_EXECUTABLES = 128


class ExecutableCache:
    """The realized functions of a stack, for all its devices: TensorFlow places them where they are called.

    Guarantees:
      - One function for a stage, what the data of a call's clients has in common (layout, whether all end together, and
        after one step) and the size of the call, which is a power of two of blocks and at most the plan's: a new cohort
        size makes nothing new, once the few kinds and sizes of calls are there; nor does another device.
      - At most `max_functions` functions are kept, those used last.
      - A function asked for by several threads at once is built once; one whose building fails is built again.
    """

    def __init__(self, max_functions: int = MAX_EXECUTABLES):
        self._max_functions = max_functions
        self._functions: OrderedDict[Hashable, Realized] = OrderedDict()
        self._lock = (
            threading.RLock()
        )  # a signal handler that calls a computation may come inside, or while one is built
        self._building: dict[Hashable, threading.RLock] = {}

    def get(self, key: Hashable, build: Callable[[], Realized]) -> Realized:
        """The function of that key, built (traced) now if it is new."""
        found = self._kept(key)
        if found is not None:
            return found
        with self._lock:
            building = self._building.setdefault(key, threading.RLock())
        with building:
            found = self._kept(key)
            if found is not None:
                return found
            try:
                made = build()
            except BaseException:
                with self._lock:
                    self._building.pop(key, None)
                raise
            with self._lock:
                self._functions[key] = made
                self._building.pop(key, None)
                while len(self._functions) > self._max_functions:
                    self._functions.popitem(last=False)
            return made

    def _kept(self, key: Hashable) -> Realized | None:
        with self._lock:
            if key in self._functions:
                self._functions.move_to_end(key)
            return self._functions.get(key)

    def values(self) -> list[Realized]:
        """The functions that are kept."""
        with self._lock:
            return list(self._functions.values())

    def keys(self) -> set[Hashable]:
        """What decides those that are kept."""
        with self._lock:
            return set(self._functions)

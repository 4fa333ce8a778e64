"""LRU cache of executables (realized functions)."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from fedcore.graphs.stages.realize import Realized

MAX_EXECUTABLES = 128


class ExecutableCache:
    """The executables of a stack, for all its devices: TensorFlow places a function where it is called.

    Guarantees:
      - A client stage has one executable for each shape of a slice's data (layouts, whether all clients take equally
        many steps, whether that is one step) and each slice size. Sizes are a power of two of blocks, at most the
        plan's. So new cohort sizes soon need no new executable, and another device never does.
      - Holds the `max_functions` executables used last.
      - Threads that ask for one executable at once share one build. A build that fails is tried again.
    """

    def __init__(self, max_functions: int = MAX_EXECUTABLES):
        self._max_functions = max_functions
        self._functions: OrderedDict[Hashable, Realized] = OrderedDict()
        # Reentrant: a signal handler may call a computation while this thread holds the lock, or builds.
        self._lock = threading.RLock()
        self._building: dict[Hashable, threading.RLock] = {}

    def get(self, key: Hashable, build: Callable[[], Realized]) -> Realized:
        """The executable of a key, built (traced) now if it is new."""
        found = self._found(key)
        if found is not None:
            return found
        with self._lock:
            building = self._building.setdefault(key, threading.RLock())
        with building:
            found = self._found(key)
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

    def _found(self, key: Hashable) -> Realized | None:
        with self._lock:
            if key in self._functions:
                self._functions.move_to_end(key)
            return self._functions.get(key)

    def values(self) -> list[Realized]:
        """The executables in the cache."""
        with self._lock:
            return list(self._functions.values())

    def keys(self) -> set[Hashable]:
        """The keys in the cache."""
        with self._lock:
            return set(self._functions)

"""Bounded caches that evict the least recently used entry."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Default = TypeVar("Default")


class _Missing:
    """No value; distinct from None, which may be a value."""


_MISSING = _Missing()


class LruEntries(Generic[Key, Value]):
    """A dictionary that evicts the least recently used entries when their sizes exceed `max_size` in total.

    Not thread-safe: its owner holds a lock.
    """

    def __init__(self, max_size: float) -> None:
        self.max_size = max_size
        self.size = 0.0
        self._entries: OrderedDict[Key, tuple[Value, float]] = OrderedDict()

    def find(self, key: Key, default: Default) -> Value | Default:
        """The value of a key, which becomes the most recently used; `default` if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return default
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: float = 1) -> None:
        """Adds or replaces an entry. A value that is larger than `max_size` gets none."""
        self.remove(key)
        if size > self.max_size:
            return
        self._entries[key] = value, size
        self.size += size
        while self.size > self.max_size:
            self.remove(next(iter(self._entries)))

    def remove(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= entry[1]

    def clear(self) -> None:
        self._entries.clear()
        self.size = 0.0

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def keys(self) -> set[Key]:
        return set(self._entries)

    def values(self) -> list[Value]:
        """From the least to the most recently used."""
        return [value for value, _ in self._entries.values()]


class LruCache(Generic[Key, Value]):
    """Thread-safe LRU cache of computed values.

    Guarantees:
      - It holds the values of at most `max_entries` keys; the least recently used key is evicted first.
      - Threads that ask for one missing key share one computation. A thread waits for its own key only.
      - No lock of the cache is held while a value is computed, except the key's own. That lock is reentrant, since a
        signal handler may ask for the key in the thread that computes it.
      - A computation that raises leaves no entry; a thread that waited for it computes the value itself.
    """

    def __init__(self, max_entries: int) -> None:
        self._entries: LruEntries[Key, Value] = LruEntries(max_entries)
        self._lock = threading.RLock()
        self._computing: dict[Key, _Computation] = {}

    def get(self, key: Key, compute: Callable[[], Value]) -> Value:
        """The value of a key, computed now if there is none."""
        with self._lock:
            entry = self._entries.find(key, _MISSING)
            if not isinstance(entry, _Missing):
                return entry
            computation = self._computing.setdefault(key, _Computation())
            computation.threads += 1
        try:
            with computation.lock:
                with self._lock:
                    entry = self._entries.find(key, _MISSING)
                if not isinstance(entry, _Missing):
                    return entry
                value = compute()
                with self._lock:
                    self._entries.put(key, value)
                return value
        finally:
            with self._lock:
                computation.threads -= 1
                if not computation.threads:
                    del self._computing[key]

    def keys(self) -> set[Key]:
        with self._lock:
            return self._entries.keys()

    def values(self) -> list[Value]:
        """From the least to the most recently used."""
        with self._lock:
            return self._entries.values()


class _Computation:
    """The lock of a key whose value is being computed, and the number of threads that hold it or wait for it."""

    __slots__ = ("lock", "threads")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.threads = 0

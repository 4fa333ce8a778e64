"""Weak, identity-keyed LRU cache of results derived from objects.

Decision 0060.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np

from fedcore.lru_cache import LruEntries

Value = TypeVar("Value")


def identities(objects: Sequence) -> bytes:
    """The identities of objects, as part of a key. Bytes keep their hash, and compare faster than integers."""
    return np.fromiter(map(id, objects), np.uint64, len(objects)).tobytes()


class IdentityCache(Generic[Value]):
    """Results by the identities of the objects that they were derived from, up to `max_size` in total.

    The inputs do not change, so their content is never compared.

    Guarantees:
      - An entry ends with the first of its inputs, so objects of one round leave nothing behind.
      - The least recently used entry is evicted first.
      - No lock is held during a computation, and no thread waits for another's, so that every call can be stopped.
        Threads that ask for one key at once each compute it; the first value is cached.
      - A computation that raises leaves no entry.

    Args:
        size: of a value, in the unit of `max_size`. A value that is larger than `max_size` is not cached.
        remembered: if positive, a value is cached at its second computation, provided that at most `remembered`
            other keys were computed between the two.
    """

    def __init__(self, max_size: int, size: Callable[[Value], float] = lambda value: 1, *, remembered: int = 0) -> None:
        self._seen: deque[int] | None = deque(maxlen=remembered) if remembered else None
        self._size_of = size
        self._entries: LruEntries[tuple, tuple[Value, list[weakref.ref]]] = LruEntries(max_size)
        self._lock = threading.Lock()
        self._ended: deque[tuple] = deque()  # keys of which an input has ended

    def get(
        self, call: Hashable, inputs: Sequence, compute: Callable[[], Value], input_ids: bytes | None = None
    ) -> Value:
        """The result of `compute`, from the cache if it is there.

        Args:
            call: names the computation.
            inputs: one or more objects.
            input_ids: `identities(inputs)`, if the caller has it.
        """
        key = (call, identities(inputs) if input_ids is None else input_ids)
        with self._lock:
            self._remove_ended()  # before the look-up: a new object may have the identity of an ended one
            entry = self._entries.find(key, None)
        if entry is not None:
            return entry[0]
        value = compute()
        size = self._size_of(value)
        with self._lock:
            if size <= self._entries.max_size and key not in self._entries and self._is_wanted(key):
                inputs_ending = [weakref.ref(i, lambda _: self._end(key)) for i in inputs]
                self._entries.put(key, (value, inputs_ending), size)
        return value

    def __len__(self) -> int:
        """The number of cached values."""
        return len(self._entries)

    @property
    def size(self) -> float:
        """The total size of the cached values."""
        return self._entries.size

    def _is_wanted(self, key: tuple) -> bool:
        """Whether a computed value is cached; notes the key's first computation, see `remembered`."""
        if self._seen is None or hash(key) in self._seen:
            return True
        self._seen.append(hash(key))
        return False

    def _end(self, key: tuple) -> None:
        """Removes the entry of a key of which an input has ended."""
        # The garbage collector may call this while this thread holds the lock: then the next `get` removes the entry.
        self._ended.append(key)
        if self._lock.acquire(blocking=False):
            try:
                self._remove_ended()
            finally:
                self._lock.release()

    def _remove_ended(self) -> None:
        while self._ended:
            self._entries.remove(self._ended.popleft())

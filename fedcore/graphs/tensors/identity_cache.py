"""What was computed from objects, for when it is asked for again."""

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")


class IdentityCache(Generic[Value]):
    """Values by the identities of what they were computed from: those used last, up to `max_size` in sum.

    The inputs' content, which does not change, is never looked at.

    Guarantees:
      - A value goes with the first of its inputs: what is made for one round leaves nothing behind.
      - Nothing is computed while the lock is held, and no thread waits for another's computation, so that every call
        can be stopped: threads that ask for the same at once each compute it, and the first value is kept.
      - A computation that raises leaves nothing behind.

    Args:
        size: of a value, in the unit of `max_size`; a larger one than that is not kept.
        remembered: with a number, a value is kept when it is computed again and that many calls at most lie between.
    """

    def __init__(self, max_size: int, size: Callable[[Value], float] = lambda value: 1, *, remembered: int = 0):
        self._max_size = max_size
        self._seen: deque[int] | None = deque(maxlen=remembered) if remembered else None
        self._size_of = size
        self._entries: OrderedDict[tuple, tuple[list[weakref.ref], Value, float]] = OrderedDict()
        self._size = 0.0
        self._lock = threading.Lock()
        self._gone: deque[tuple] = deque()

    def get(self, call: Hashable, inputs: Sequence, compute: Callable[[], Value]) -> Value:
        """What `compute` gives, or gave before.

        Args:
            call: says what is computed.
            inputs: one or more objects.
        """
        key = (call, *map(id, inputs))
        with self._lock:
            self._drop_gone()  # before the look-up: an identity may be another's by now
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][1]
        value = compute()
        size = self._size_of(value)
        with self._lock:
            if size <= self._max_size and key not in self._entries and self._is_wanted(key):
                self._entries[key] = ([weakref.ref(i, lambda _: self._forget(key)) for i in inputs], value, size)
                self._size += size
                while self._size > self._max_size:
                    self._drop(next(iter(self._entries)))
        return value

    def __len__(self) -> int:
        """How many values are kept."""
        return len(self._entries)

    @property
    def size(self) -> float:
        """Of the values that are kept, in sum."""
        return self._size

    def _is_wanted(self, key: tuple) -> bool:
        if self._seen is None or hash(key) in self._seen:
            return True
        self._seen.append(hash(key))
        return False

    def _forget(self, key: tuple) -> None:
        # Called by the collector, maybe inside our own lock: then the next `get` drops the entry.
        self._gone.append(key)
        if self._lock.acquire(blocking=False):
            try:
                self._drop_gone()
            finally:
                self._lock.release()

    def _drop_gone(self) -> None:
        while self._gone:
            self._drop(self._gone.popleft())

    def _drop(self, key: tuple) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry[2]

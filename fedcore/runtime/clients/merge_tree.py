"""The binary tree over block indices in which partials are merged."""

import enum
import threading
from collections.abc import Callable
from typing import Any


class _Absent(enum.Enum):
    ABSENT = enum.auto()


ABSENT = _Absent.ABSENT
"""Stands in for the partial of a block whose clients are all left out; the neutral element of the merge. It is one
object in every process.
"""


class MergeTree:
    """Merges partials by the index of their block or slice, in any order of arrival.

    Guarantees:
      - The shape of the tree depends only on the number of blocks, so the result's bits do not depend on the order of
        completion.
      - Siblings merge as soon as both exist, in the thread that adds the second sibling, outside the lock.
      - If one sibling is ABSENT, the merge is the other sibling.
      - Memory: holds O(log blocks) partials per block in flight.
    """

    def __init__(self, merge: Callable) -> None:
        self._merge = merge
        self._waiting: dict[tuple[int, int], object] = {}  # (height, index at that height) -> partial
        self._lock = threading.Lock()

    def add(self, index: int, partial: object, height: int = 0) -> None:
        """Adds the partial of a node, and merges it with its sibling, their merge with that one's sibling, and so on.

        Args:
            index: index of the node among those of its height.
            height: the node has 2^height blocks or slices; at the end of the stage it may have fewer.
        """
        while True:
            with self._lock:
                sibling = self._waiting.pop((height, index ^ 1), None)
                if sibling is None:
                    self._waiting[height, index] = partial
                    return
            partial = self._join(sibling, partial) if index & 1 else self._join(partial, sibling)
            height, index = height + 1, index >> 1

    @property
    def is_merged(self) -> bool:
        """Whether the result needs no further merge."""
        return len(self._waiting) == 1

    def result(self) -> Any:
        """The partial of all blocks. Complete subtrees are merged from the last to the first."""

        def first_block(node: tuple[int, int]) -> int:
            height, index = node
            return index << height

        subtrees = [self._waiting[node] for node in sorted(self._waiting, key=first_block)]
        total = subtrees.pop()
        while subtrees:
            total = self._join(subtrees.pop(), total)
        return total

    def _join(self, left: object, right: object) -> Any:
        """The merge of two partials, of which one may be ABSENT."""
        if left is ABSENT or right is ABSENT:
            return right if left is ABSENT else left
        return self._merge(left, right)

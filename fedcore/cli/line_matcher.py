"""Equal lines of two texts, in bounded time."""

import collections
import difflib
import itertools
from collections.abc import Hashable, Iterable, Sequence

MAX_PAIRS = 1_000_000  # of equal lines; difflib goes over all of them for each run of lines that it finds


class LineMatcher(difflib.SequenceMatcher):
    """The longest runs of equal lines; where too many lines are equal, the runs at both ends alone."""

    def __init__(self, left: Sequence[Hashable], right: Sequence[Hashable]) -> None:
        super().__init__(None, left, right, autojunk=False)
        self._left, self._right = left, right

    def get_matching_blocks(self) -> list[difflib.Match]:
        counts = collections.Counter(self._left)
        if sum(counts[line] for line in self._right) <= MAX_PAIRS:
            return super().get_matching_blocks()
        sizes = len(self._left), len(self._right)
        head = _equal(self._left, self._right)
        tail = min(_equal(reversed(self._left), reversed(self._right)), min(sizes) - head)
        ends = [difflib.Match(0, 0, head), difflib.Match(sizes[0] - tail, sizes[1] - tail, tail)]
        return [*(end for end in ends if end.size), difflib.Match(*sizes, 0)]


def _equal(left: Iterable[Hashable], right: Iterable[Hashable]) -> int:
    """The number of lines at the beginning that are equal."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))

"""Chooses the number of slices of a run, which is one request to a worker.

Decision 0242.
"""

import math

import attrs


@attrs.frozen
class RunLengths:
    """Chooses how many consecutive slices, a run, one worker computes and merges at once.

    A run has a quarter to a half of an equal share of the slices left, since a worker has two runs: large ones come
    first, and short ones last, so that workers of different speeds end together. The shortest have a 64th to a 32nd of
    an equal share of the stage, or `shortest` if that is more, but at most a half. So a worker gets two to about ten
    runs, whatever the number of slices.

    Guarantees:
      - A run has 2^k slices and begins at a multiple of 2^k, so its partial is a node of the merge tree over slices.

    Args:
        slices: number of slices of the stage; None if it is not known: runs then have `width` slices.
        workers: number of workers, or teams of workers, that take runs at once.
        longest: the most slices of a run for each process of `width`, where clients return values, whose size bounds
            runs.
        shortest: slices that take a worker so long that the driver can serve all workers meanwhile.
        width: number of processes that share a run: 1, or those of a team. A run has a slice for each of them, if there
            are so many.
    """

    slices: int | None
    workers: int
    longest: float = math.inf
    shortest: int = 1
    width: int = 1

    def length(self, start: int, assigned: int) -> int:
        """Number of slices of the next run.

        Args:
            start: index of its first slice.
            assigned: number of slices that workers have, or have computed.
        """
        share = self.width if self.slices is None else self._share(self.slices, self.slices - assigned)
        length = 1 << (share.bit_length() - 1)
        return min(length, start & -start) if start else length

    def _share(self, slices: int, left: int) -> int:
        """The most slices of the next run, of a stage of `slices`, of which `left` are not assigned."""
        shortest = max(slices // (32 * self.workers), self.shortest, self.width)
        share = max(left // (2 * self.workers), min(shortest, slices // (2 * self.workers)))
        return max(1, int(min(share, left, self.width * max(1, self.longest))))

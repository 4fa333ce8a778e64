"""How many slices of clients a request has."""

import math

import attrs


@attrs.frozen
class RunLengths:
    """Chooses how many consecutive slices, a run, one worker computes and merges at once.

    A run has a third to two thirds of an equal share of the slices left: large runs come first, and single slices last,
    so that workers of different speeds end together. S slices for W workers make O(W log(S / W)) runs.

    Guarantees:
      - A run has 2^k slices and begins at a multiple of 2^k, so its partial is a node of the merge tree over slices.

    Args:
        slices: number of slices of the stage; None if it is not known: runs then have one slice.
        workers: number of workers that compute at once.
        longest: the most slices of a run, since their clients return values.
    """

    slices: int | None
    workers: int
    longest: float = math.inf

    def length(self, start: int, taken: int) -> int:
        """Number of slices of the next run.

        Args:
            start: index of its first slice.
            taken: number of slices that workers have, or have computed.
        """
        if self.slices is None:
            return 1
        share = max(1, int(min(2 * (self.slices - taken) // (3 * self.workers), self.longest)))
        length = 1 << (share.bit_length() - 1)
        return min(length, start & -start) if start else length

"""Seeds as operands: a call's seed gives every client, stage and shuffle one of its own.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators": the finaliser of SplitMix64.

Decision 0003.
"""

import numpy as np

_MASK = (1 << 64) - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def fold_in(seed: int, number: int) -> int:
    """A new int64 seed from a seed and a number."""
    z = (seed * _GAMMA + number + 1) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    z ^= z >> 31
    return z - (1 << 64) if z >> 63 else z


def fold_in_each(seed: int, first: int, count: int) -> np.ndarray:
    """`fold_in(seed, first)`, `fold_in(seed, first + 1)`, … as int64 [count]."""
    start = (seed * _GAMMA + first + 1) & _MASK
    z = np.uint64(start) + np.arange(count, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return (z ^ (z >> np.uint64(31))).view(np.int64)


def permutation(seed: int, count: int) -> np.ndarray:
    """A uniform permutation of `count` places (int64), the same on every machine."""
    return np.argsort(fold_in_each(seed, 0, count), kind="stable")

"""Seeds as operands: a call's seed gives every client and every stage one of its own."""

_MASK = (1 << 64) - 1


def fold_in(seed: int, number: int) -> int:
    """A new int64 seed from a seed and a number; SplitMix64's finaliser over both.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
    """
    z = (seed * 0x9E3779B97F4A7C15 + number + 1) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return z - (1 << 64) if z >> 63 else z

"""Values of every dtype for all checkers: ordinary ones, and those at which kernels and rewrites go wrong."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

SPREADS = ("small", "offset", "mixed", "special", "large")
"""Ranges of numbers for every checker; `draw` takes "exact" too.

small: halves and integers near 0, with ties. Sums of a few are exact in float32, so a correct result does not depend on
    the order of the sum.
offset: near a large number: their squares are not exact, so that a formula with cancellation gives a visible error.
mixed: of several orders of magnitude.
special: zeros of both signs, infinite floats, NaN and ties; the least and the largest integers, and integers that
    float32, float64 and smaller integers do not have.
exact: as special, without floats of which sums in another order have other roundings.
large: finite floats whose squares overflow or vanish, and whose sums do not; of integers as special.
"""


def special_values(dtype: np.dtype) -> list:
    """The numbers of a dtype at which a kernel or a rewrite may go wrong, and a few ordinary ones."""
    if dtype.kind == "b":
        return [False, True]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        rounded = [2**7, 2**8 + 1, 2**15, 2**24 + 1, 2**53 + 1]
        numbers = [limits.max, -1, 0, 1, limits.min, -7, 3, *rounded, *(-n for n in rounded), limits.max - 1]
        return [n for n in numbers if limits.min <= n <= limits.max]
    if dtype.kind == "c":
        parts = (0.5, -2.0, 3.0, -0.0)  # no infinite ones: their products depend on the instructions
        return [complex(float("nan"), float("nan")), *(complex(a, b) for a in parts for b in parts)]
    return [float("inf"), 2.0, -0.0, float("nan"), -1.5, float("-inf"), 0.0, 2.0, 1 / 3]


def large_values(dtype: np.dtype) -> list:
    """Finite floats, of which some overflow or vanish when squared: no sum of 1000 of them overflows."""
    if dtype.kind == "c":
        return [complex(a, b) for a in (1e4, -1.5, 1e-4) for b in (-2e4, 0.0, 3.0)]
    if dtype.kind not in "fV":
        return special_values(dtype)
    limits = ml_dtypes.finfo(dtype)
    large, tiny = 2.0 ** min(int(limits.maxexp) - 12, 1000), float(limits.smallest_normal)
    return [large, -1.5, tiny, -large, 3.0, -tiny * 4, 1.0, float(limits.smallest_subnormal), 100.0, 0.0]


def draw(dtype: np.dtype, shape: Sequence[int], rng: np.random.Generator, spread: str = "small") -> Any:
    """An array of numbers of a spread, of letters or of booleans; a scalar for the shape ()."""
    shape = tuple(shape)
    if dtype.kind == "O":
        letters = np.array([b"a", b"b", b"", b"\xff", b"b\0", "é".encode()], object)
        letters = letters[rng.integers(0, 2 if spread == "small" else len(letters), shape)]
        return letters if shape else bytes(letters)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
    if spread in ("special", "exact", "large"):
        values = large_values(dtype) if spread == "large" else special_values(dtype)
        values = [v for v in values if spread != "exact" or v != 1 / 3]
        count = int(np.prod(shape))
        places = np.resize(rng.permutation(len(values)), max(count, 1))  # each occurs, if there is room
        return np.array([values[i] for i in rng.permuted(places)[:count]], dtype).reshape(shape)
    numbers = np.asarray(rng.integers(0 if dtype.kind == "u" else -8, 9, shape))
    if dtype.kind in "iu":
        most = int(np.iinfo(dtype).max)
        steps = 1, max(1, min(16, most // 64)), max(1, min(256, most // 64))
        return _spread_out(numbers, min(4096, most // 8), steps, rng, spread).astype(dtype)
    bits = ml_dtypes.finfo(dtype).nmant // 2
    scales = 2.0 ** -(bits // 4), 1.0, 2.0 ** (bits // 2)
    return _spread_out(numbers / 2, 2.0 ** (bits + 1), scales, rng, spread).astype(dtype)


def _spread_out(
    numbers: np.ndarray, offset: float, scales: Sequence[float], rng: np.random.Generator, spread: str
) -> np.ndarray:
    if spread == "offset":
        return np.asarray(numbers + offset)
    if spread == "mixed":
        return np.asarray(numbers * np.asarray(scales)[rng.integers(0, len(scales), numbers.shape)])
    return numbers


def has_bits_of(have: np.ndarray, want: np.ndarray) -> bool:
    """Whether arrays have equal dtypes, shapes and bits; NaN equals NaN."""
    if have.dtype != want.dtype or have.shape != want.shape:
        return False
    if want.dtype.kind == "O":
        return have.tolist() == want.tolist()
    if have.tobytes() == want.tobytes():
        return True
    if want.dtype.kind not in "fcV":
        return False
    nan = np.isnan(want)  # of NaN, no bits are promised
    return bool((np.isnan(have) == nan).all()) and have[~nan].tobytes() == want[~nan].tobytes()

"""Norm and noise of the numbers that a run would send."""

import math
from collections.abc import Iterable

import numpy as np

from fedcore.types.dtypes import find_dtype


def joint_norm(arrays: Iterable[np.ndarray]) -> float:
    """The Euclidean norm of the numbers of all arrays together; texts count as nothing."""
    return math.sqrt(sum(float(np.square(_numbers(array)).sum()) for array in arrays if _is_numeric(array)))


def measured_std(array: np.ndarray, other: np.ndarray) -> float | None:
    """The standard deviation of noise, of two runs: that of their difference, divided by the root of 2.

    It is raised by three times its own standard error, so that noise of just the bound is refused once in a thousand
    runs. A tensor of few numbers says little: less than 5 count as noisy enough if they differ.

    Returns:
        None for a tensor without elements.
    """
    if not array.size and not other.size:
        return None
    if array.shape != other.shape or not (_is_numeric(array) and _is_numeric(other)):
        return 0.0  # sizes that a plan draws hide what is in them
    difference = _numbers(array) - _numbers(other)
    std = math.sqrt(float(np.square(difference).mean()) / 2)
    room = 1 - 3 / math.sqrt(2 * difference.size)
    return std / room if room > 0 else (math.inf if std else 0.0)


def _is_numeric(array: np.ndarray) -> bool:
    return find_dtype(array.dtype) is not None and array.dtype.kind not in "OSU"


def _numbers(array: np.ndarray) -> np.ndarray:
    """The numbers of an array as float64; two of each complex one."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag]).astype(np.float64)
    return array.astype(np.float64)

"""Arrays that nobody changes any more.

Decision 0216.
"""

import numpy as np


def immutable(array: np.ndarray) -> np.ndarray:
    """The array if nobody can write to its memory, else a read-only copy.

    Arrays over read-only files, bytes and read-only arrays are taken as they are.
    """
    if not _is_writeable(array):
        return array
    return frozen(array.copy())


def frozen(array: np.ndarray) -> np.ndarray:
    """A new array, which nobody else has, made read-only."""
    array.flags.writeable = False
    return array


def _is_writeable(array: np.ndarray) -> bool:
    """Whether the array, or an object whose memory it shows, can be written to."""
    base: object = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return True
        base = base.base
    if base is None:
        return False
    try:
        return not memoryview(base).readonly  # type: ignore[arg-type]
    except TypeError:
        return True

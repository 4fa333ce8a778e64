"""Arrays that nobody changes any more.

Packed client data is cached by the identity of its arrays, so these must not change.
"""

import math

import numpy as np

ALIGNMENT_BYTES = 64
"""Alignment of memory that TensorFlow uses without a copy."""


def immutable(array: np.ndarray) -> np.ndarray:
    """The array if nobody can write to its memory, else a read-only copy.

    Arrays over read-only files, bytes and read-only arrays are taken as they are.
    """
    if not _is_writeable(array):
        return array
    return frozen(array.copy()) if array.dtype.hasobject else frozen(aligned_copy(array))


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of numbers without values, in memory that TensorFlow can use."""
    buffer = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT_BYTES, np.uint8)
    begin = -buffer.ctypes.data % ALIGNMENT_BYTES
    return buffer[begin : len(buffer) - ALIGNMENT_BYTES + begin].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def is_aligned(array: np.ndarray) -> bool:
    """Whether TensorFlow can use the memory of an array."""
    return array.flags.c_contiguous and not array.ctypes.data % ALIGNMENT_BYTES


def frozen(array: np.ndarray) -> np.ndarray:
    """A new array, which nobody else has, made read-only."""
    base: object = array
    while isinstance(base, np.ndarray):
        base.flags.writeable = False
        base = base.base
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

"""Tensors over the memory of arrays."""

import ctypes
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.types.immutable_arrays import aligned_copy, is_aligned

SHARED_BYTES = 1 << 20
"""Size from which an array is shared with TensorFlow, after one copy at most; `tf.convert_to_tensor` makes two."""


def tensor_of(array: np.ndarray) -> tf.Tensor:
    """A CPU tensor of an array; of a large one over its memory, if that is aligned and read-only, else over a copy."""
    if array.dtype == object:
        return tf.convert_to_tensor(array, tf.string)
    if array.dtype.kind not in "biufc" or array.nbytes < SHARED_BYTES:
        return tf.convert_to_tensor(array)
    if not is_aligned(array) or array.flags.writeable:
        array = aligned_copy(array)
    # numpy exports no read-only memory, and TensorFlow writes to no operand that somebody holds.
    memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array
    view = np.frombuffer(memory, array.dtype).reshape(array.shape)
    return tf.experimental.dlpack.from_dlpack(view.__dlpack__())

"""The memory of tensors as numpy arrays."""

import numpy as np
import tensorflow as tf


def mapped_array(tensor: tf.Tensor) -> np.ndarray | None:
    """The memory of a tensor as an array, ten times as fast as an operation; None if it is not mapped."""
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError, tf.errors.OpError):  # bfloat16 has no buffer format; a GPU's memory is not mapped
        return None


def unstacked_rows(tensor: tf.Tensor, rows: int) -> list:
    """The rows of a tensor [rows, …] as read-only arrays, none of which keeps the others in memory; as tensors where
    its memory is not mapped.
    """
    array = mapped_array(tensor)
    if array is None:
        return tf.unstack(tensor, rows)
    copies = [np.array(row) for row in array]
    for copy in copies:
        copy.setflags(write=False)
    return copies

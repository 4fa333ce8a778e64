"""Results as numpy arrays, with a weak map from each array to its tensor."""

import threading
import weakref

import numpy as np
import tensorflow as tf


class ReturnedArrays:
    """The read-only arrays that were returned, and the tensor behind each.

    Guarantees:
      - An array is a view of the tensor's memory on a CPU; nothing is copied.
      - An array that is passed back to a call becomes the same tensor, as long as the array lives.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[weakref.ref, tf.Tensor]] = {}
        self._lock = threading.Lock()

    def show(self, tensor: tf.Tensor):
        """The tensor as the user gets it: a number or bytes for a scalar, else a read-only array."""
        if tensor.shape.rank == 0 or tensor.dtype == tf.string:
            array = tensor.numpy()
            if isinstance(array, np.ndarray):
                array.setflags(write=False)
            return array
        array = _array(tensor)
        array.setflags(write=False)
        key = id(array)
        with self._lock:
            self._tensors[key] = (weakref.ref(array, lambda _: self._forget(key)), tensor)
        return array

    def tensor(self, value):
        """The tensor of a returned array; any other value as it is."""
        if not isinstance(value, np.ndarray):
            return value
        with self._lock:
            known = self._tensors.get(id(value))
        return known[1] if known is not None and known[0]() is value else value

    def _forget(self, key: int) -> None:
        # The garbage collector may call this while this thread holds the lock; `pop` alone is atomic.
        self._tensors.pop(key, None)


def _array(tensor: tf.Tensor) -> np.ndarray:
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError, tf.errors.OpError):  # bfloat16 has no buffer format; a GPU's memory is not ours
        return tensor.numpy()


returned = ReturnedArrays()

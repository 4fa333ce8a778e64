"""Results of calls as numpy arrays, and a weak map from each array to its tensor."""

import threading
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.graphs.tensors.mapped_arrays import mapped_array


class ReturnedArrays:
    """Weak map between the read-only arrays that calls returned and their tensors.

    Guarantees:
      - The array of a tensor on a CPU is a view of the tensor's memory, not a copy.
      - An array that is passed to a later call is converted back to its tensor, without a copy.
      - A tensor that is returned again is shown as the same array, as long as somebody holds that.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[weakref.ref, tf.Tensor]] = {}  # by the identities of arrays: array, tensor
        self._arrays: dict[int, weakref.ref] = {}  # by the identities of tensors, which the entries above hold
        self._lock = threading.Lock()

    def show(self, tensor: tf.Tensor) -> np.ndarray | np.generic | bytes:
        """The user's form of a tensor: a number or bytes for a scalar, else a read-only array."""
        if tensor.shape.rank == 0 or tensor.dtype == tf.string:
            array = tensor.numpy()
            if isinstance(array, np.ndarray):
                array.setflags(write=False)
            return array
        with self._lock:
            reference = self._arrays.get(id(tensor))
        array = None if reference is None else reference()
        return self._show_anew(tensor) if array is None else array

    def _show_anew(self, tensor: tf.Tensor) -> np.ndarray:
        """A new read-only array of a tensor, from which `tensor` finds the tensor again."""
        array = mapped_array(tensor)
        array = tensor.numpy() if array is None else array
        array.setflags(write=False)
        key, tensor_key = id(array), id(tensor)
        reference = weakref.ref(array, lambda reference: self._forget(key, tensor_key, reference))
        with self._lock:
            self._tensors[key] = (reference, tensor)
            self._arrays[tensor_key] = reference
        return array

    def tensor(self, value: Any) -> Any:
        """The tensor of a returned array; any other value unchanged."""
        if not isinstance(value, np.ndarray):
            return value
        with self._lock:
            entry = self._tensors.get(id(value))
        return entry[1] if entry is not None and entry[0]() is value else value

    def _forget(self, key: int, tensor_key: int, reference: weakref.ref) -> None:
        """Removes both entries of an array that has ended, unless the tensor has been shown as another one since."""
        # The garbage collector may call this while this thread holds the lock; `pop` alone is atomic.
        if self._arrays.get(tensor_key) is reference:
            self._arrays.pop(tensor_key, None)
        self._tensors.pop(key, None)


returned = ReturnedArrays()

"""One device: the functions realized for it, and values put on it once."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import tensorflow as tf

from fedcore.graphs.packing import PackedColumns
from fedcore.graphs.realize import Realized

MAX_PACKED_BYTES = 512 << 20
"""Packed client data that a device keeps for clients that come again."""


class DeviceExecutor:
    """Runs realized functions on one device.

    Guarantees:
      - One function for a stage, a layout and a number of clients of a block: the size of the cohort is in no
        key, so a new cohort size makes nothing new.
      - At most `max_functions` functions are kept, those used last.
      - A function asked for by several threads at once is built once.
    """

    def __init__(self, device: str, max_functions: int = 128):
        self.device = device
        self.packed = PackedColumns(MAX_PACKED_BYTES)
        self._max_functions = max_functions
        self._functions: OrderedDict[Hashable, Realized] = OrderedDict()
        self._lock = threading.Lock()
        self._building: dict[Hashable, threading.Lock] = {}

    def function(self, key: Hashable, build: Callable[[], Realized]) -> Realized:
        """The function of that key, built (traced) now if it is new."""
        with self._lock:
            if key in self._functions:
                self._functions.move_to_end(key)
                return self._functions[key]
            building = self._building.setdefault(key, threading.Lock())
        with building:
            with self._lock:
                if key in self._functions:
                    return self._functions[key]
            with tf.device(self.device):
                made = build()
            with self._lock:
                self._functions[key] = made
                self._building.pop(key, None)
                while len(self._functions) > self._max_functions:
                    self._functions.popitem(last=False)
            return made

    def put(self, tensors: Sequence) -> list[tf.Tensor]:
        """The tensors on this device; those that are here already are not copied."""
        with tf.device(self.device):
            return [tf.identity(t) if _elsewhere(t, self.device) else tf.convert_to_tensor(t) for t in tensors]

    def call(self, function: Realized, tensors: Sequence) -> tuple:
        with tf.device(self.device):
            return function(tensors)


def _elsewhere(tensor, device: str) -> bool:
    return isinstance(tensor, tf.Tensor) and not tensor.device.endswith(device.removeprefix("/"))

"""One device: values put on it, and functions run there."""

import functools
import weakref
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError, brief
from fedcore.graphs.batched.packing import packing_cache
from fedcore.graphs.stages.realize import Realized
from fedcore.runtime.executable_cache import ExecutableCache
from fedcore.runtime.stopping import Stop

MAX_PACKED_BYTES = 512 << 20
"""Packed client data that a device keeps for clients that come again."""


MAX_NUMBERS = 256
"""Scalars that a device keeps."""


class DeviceExecutor:
    """Runs realized functions on one device.

    Args:
        device: as TensorFlow names it.
        functions: those of the whole stack.
    """

    def __init__(self, device: str, functions: ExecutableCache | None = None):
        self.device = device
        self.functions = functions or ExecutableCache()
        self.packed = packing_cache(MAX_PACKED_BYTES)
        self._suffix = device.removeprefix("/")
        self._number = functools.lru_cache(MAX_NUMBERS)(_number)  # a state holds some, most of which stay as they are
        self._ready: weakref.WeakSet[Realized] = weakref.WeakSet()

    def put(self, tensors: Sequence) -> list[tf.Tensor]:
        """The tensors on this device; those that are here already are not copied."""
        with tf.device(self.device):
            return [self._here(t) for t in tensors]

    def _here(self, value) -> tf.Tensor:
        if isinstance(value, tf.Tensor):
            return value if value.device.endswith(self._suffix) else tf.identity(value)
        if isinstance(value, np.ndarray | np.generic) and not value.ndim and not value.dtype.hasobject:
            return self._number(value.dtype, value.tobytes())
        return tf.convert_to_tensor(value)

    def get_ready(self, function: Realized, tensors: Sequence) -> None:
        """Compiles the function for this device, if that was not done before: a call with a deadline only runs it."""
        if function not in self._ready:
            with tf.device(self.device):
                function.get_ready(tensors)
            self._ready.add(function)

    def call(self, function: Realized, tensors: Sequence, stop: Stop) -> tuple:
        """The function's result; ended early when `stop` says so."""
        with tf.device(self.device), stop.running() as cancellation:
            return function(tensors, cancellation)


def _number(dtype: np.dtype, data: bytes) -> tf.Tensor:
    return tf.convert_to_tensor(np.frombuffer(data, dtype)[0])


def default_devices() -> list[str]:
    """All logical devices of the kind that clients run on by default: GPUs where there are any, else CPUs."""
    return [d.name for d in tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")]


def device_name(asked, parameter: str) -> str:
    """The whole name of a device that there is, such as `/device:CPU:0` for `CPU:0` and for a LogicalDevice.

    Raises:
        FedcoreError: there is none of that name; the message lists those that there are.
    """
    there = [d.name for d in tf.config.list_logical_devices()]
    name = asked if isinstance(asked, str) else getattr(asked, "name", None)
    try:
        spec = tf.DeviceSpec.from_string(f"/{name.removeprefix('/')}") if isinstance(name, str) else None
    except ValueError:
        spec = None
    found = f"/device:{spec.device_type}:{spec.device_index or 0}" if spec is not None and spec.device_type else None
    if found is None or found not in there:
        raise FedcoreError(f"{parameter}: there is no device {brief(asked)}; there are {', '.join(there)}")
    return found

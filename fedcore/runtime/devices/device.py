"""One device: copies tensors to it, and runs executables on it."""

import functools
import queue
import re
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError, brief
from fedcore.graphs.batched.packing import packing_cache, size_bytes
from fedcore.graphs.stages.realize import Realized
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.graphs.tensors.returned import returned
from fedcore.graphs.tensors.shared_memory import SHARED_BYTES, tensor_of
from fedcore.ir import Constant
from fedcore.runtime.devices.executable_cache import ExecutableCache
from fedcore.runtime.stopping import Stop
from fedcore.slow_steps import slow_step

MAX_PACKED_BYTES = 512 << 20
"""Size of a device's cache of packed client data, for clients that take part in several calls."""

MAX_NUMBERS = 256
"""Number of scalars that a device caches."""


class DeviceExecutor:
    """Runs executables on one device.

    Args:
        device: name of the device in TensorFlow.
        functions: cache of executables, shared by all devices of a runtime. Default: a cache of its own.

    Attributes:
        packed: cache of packed client data.
        products: cache of products of clients' data alone, see `Realized.products`.
        not_finite: keys of the stages of which a client's work was not finite, see `ClientWork.key`.
    """

    def __init__(self, device: str, functions: ExecutableCache | None = None) -> None:
        self.device = device
        self.functions = functions or ExecutableCache()
        self.packed = packing_cache(MAX_PACKED_BYTES)
        self.products: IdentityCache[tf.Tensor] = IdentityCache(MAX_PACKED_BYTES, size_bytes)
        self.not_finite: set[Hashable] = set()
        self._suffix = device.removeprefix("/")  # of the full names by which tensors name the device
        self._constants: weakref.WeakKeyDictionary[Constant, tf.Tensor] = weakref.WeakKeyDictionary()
        self._number = functools.lru_cache(MAX_NUMBERS)(_number)  # most scalars of a server state do not change
        self._compiling: weakref.WeakKeyDictionary[Realized, _Compiling] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def put(self, tensors: Sequence) -> list[tf.Tensor]:
        """The tensors on this device. A tensor that is already on the device is not copied."""
        with tf.device(self.device):
            return [self._here(t) for t in tensors]

    def constant(self, value: Constant) -> tf.Tensor:
        """A literal on this device; equal literals share one tensor, which lives as long as the first of them."""
        with self._lock:
            if value not in self._constants:
                (self._constants[value],) = self.put([returned.tensor(value.to_numpy())])
            return self._constants[value]

    def _here(self, value: Any) -> tf.Tensor:
        """A tensor, array or scalar as a tensor on this device; the caller has entered `tf.device`."""
        if isinstance(value, tf.Tensor):
            if value.dtype == tf.variant:
                return value  # a dataset, whose elements are copied when they are read
            return value if value.device.endswith(self._suffix) else tf.identity(value)
        if isinstance(value, np.ndarray | np.generic) and not value.ndim and not value.dtype.hasobject:
            return self._number(value.dtype, value.tobytes())
        if isinstance(value, np.ndarray) and value.nbytes >= SHARED_BYTES:
            return self._here(tensor_of(value))
        return tf.convert_to_tensor(value)

    def get_ready(self, function: Realized, tensors: Sequence) -> None:
        """Compiles the function for this device once, so that the compilation does not count against a deadline.

        Threads wait for the one that compiles: in TensorFlow each would compile the function for itself.
        """
        with self._lock:
            compiling = self._compiling.setdefault(function, _Compiling())
        if compiling.is_done:
            return
        with compiling.lock:
            if not compiling.is_done:
                future: Future = Future()
                with slow_step(f"compiling {_stage_name(function)} for {self._suffix}"):
                    _compiler(self.device).put((lambda: self._compile(function, tensors), future))
                    future.result()
                compiling.is_done = True

    def _compile(self, function: Realized, tensors: Sequence) -> None:
        """Compiles the function; runs in the thread of `_compiler`."""
        with tf.device(self.device):
            function.get_ready(tensors)

    def call(self, function: Realized, tensors: Sequence, stop: Stop) -> tuple:
        """The function's result. Cancelling `stop` cancels the graph call."""
        self.get_ready(function, tensors)
        with tf.device(self.device), stop.running() as cancellation:
            return function(tensors, cancellation)


class _Compiling:
    """Whether a function is compiled for a device. The lock is held during the compilation."""

    __slots__ = ("is_done", "lock")

    def __init__(self) -> None:
        self.is_done = False
        self.lock = threading.RLock()  # a signal handler may call the function in the thread that compiles it


_Jobs = queue.SimpleQueue[tuple[Callable[[], None], Future]]
"""(job, future of its result)."""


@functools.cache
def _compiler(device: str) -> _Jobs:
    """The queue of a thread that compiles for a device, one thread for the life of the process.

    For each operation and dtype, TensorFlow's layout pass searches the list of all kernels, which takes a millisecond,
    and remembers the answer for its thread only.
    """
    jobs: _Jobs = queue.SimpleQueue()
    threading.Thread(target=_do, args=(jobs,), name=f"fedcore-compiler {device}", daemon=True).start()
    return jobs


def _do(jobs: _Jobs) -> None:
    """Does the jobs of a queue, one after another, without end."""
    while True:
        job, future = jobs.get()
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)
        del job, future  # they hold tensors


def _stage_name(function: Realized) -> str:
    """The name of an executable, without the prefix and the number that TensorFlow adds to names of functions."""
    name = function.name
    return re.sub(r"^__inference_|_[0-9]+$", "", name.decode() if isinstance(name, bytes) else name)


def _number(dtype: np.dtype, data: bytes) -> tf.Tensor:
    """The tensor of a scalar, given by its bytes, by which NaN and -0.0 are keys of a cache too."""
    return tf.convert_to_tensor(np.frombuffer(data, dtype)[0])


def default_devices() -> list[str]:
    """The default client devices: all logical GPUs, or all logical CPUs if there is no GPU."""
    return [d.name for d in tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")]


def device_name(device: object, parameter: str) -> str:
    """The full name of a logical device, such as `/device:CPU:0` for `CPU:0` and for a `LogicalDevice`.

    Raises:
        FedcoreError: no device has the name; the message lists the devices.
    """
    existing = [d.name for d in tf.config.list_logical_devices()]
    name = device if isinstance(device, str) else getattr(device, "name", None)
    try:
        spec = tf.DeviceSpec.from_string(f"/{name.removeprefix('/')}") if isinstance(name, str) else None
    except ValueError:
        spec = None
    full_name = (
        f"/device:{spec.device_type}:{spec.device_index or 0}" if spec is not None and spec.device_type else None
    )
    if full_name is None or full_name not in existing:
        raise FedcoreError(f"{parameter}: there is no device {brief(device)}; there are {', '.join(existing)}")
    return full_name

"""A configuration of `benchmarks.bits`: a computation on a runtime, with the same bits in every process."""

import abc
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import keras
import numpy as np

import fedcore as fc
from fedcore.testing.faults import out_of_memory

SEED = 20261120
AVX512 = "avx512/large-l2/fast-memory/no-gpu"
AVX2 = "avx2/large-l2/fast-memory/no-gpu"
SSE = "sse/large-l2/fast-memory/no-gpu"
SLOW = "avx2/small-l2/slow-memory/no-gpu"
"""Targets, so that the plans do not depend on the machine. Its processor still decides the last bits of products."""

BLOCK = 8
"""Clients of a block in vectorised stages, where the settings name none; an initial value that is not zero is added for
each block."""

Arrays = dict[str, np.ndarray]


@attrs.frozen(kw_only=True)
class Configuration(abc.ABC):
    """A computation on a runtime.

    Args:
        settings: arguments of `fc.runtime.local`.
        failing_calls: number of graph calls that run out of memory, so that the clients of a block run one by one.
        has_reference: the computation has comparable results in float64: it draws no random numbers, and TensorFlow has
            kernels for it.
        float_type: of the data and the weights.
    """

    settings: Mapping[str, Any] = attrs.field(factory=dict)
    failing_calls: int = 0
    has_reference: bool = True
    float_type: str = "float32"

    def run(self) -> Arrays:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_float_type(self.float_type))
            runtime = fc.runtime.local(**{"target": AVX512, **self.settings})
            stack.enter_context(contextlib.closing(runtime))
            stack.enter_context(fc.use(runtime, seed=SEED))
            stack.enter_context(out_of_memory(runtime, "CPU:0", calls=range(self.failing_calls)))
            return self.results()

    def in_float64(self) -> "Configuration":
        """The configuration in float64, with one client after the other, and the same blocks of clients."""
        settings = {"vectorize": False, "block_size": self.settings.get("block_size", BLOCK)}
        return attrs.evolve(self, settings=settings, failing_calls=0, float_type="float64")

    @abc.abstractmethod
    def results(self) -> Arrays:
        """The results, by their names, on the runtime in use and in Keras' float type."""


@contextlib.contextmanager
def _float_type(name: str) -> Iterator[None]:
    """Makes layers and data of a float type."""
    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(name)
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(policy)


def floats(array: np.ndarray) -> np.ndarray:
    """Floats of Keras' float type, with values of float32."""
    return array.astype("float32").astype(keras.config.floatx())


def named_arrays(name: str, value) -> Arrays:
    """The leaves of a structure, by their paths."""
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value)).items()
    else:
        return {name: np.asarray(value)}
    return {path: array for key, part in parts for path, array in named_arrays(f"{name}/{key}", part).items()}

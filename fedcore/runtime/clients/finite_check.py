"""Whether floats are finite: of a slice's result, which fails otherwise, and of a call whose graph assumes it."""

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.tensors.mapped_arrays import mapped_array
from fedcore.graphs.tensors.values import flatten
from fedcore.runtime.client_slice import ClientSlice, SliceResult

MODERATE = 1e19
"""A float32 matrix with no entry beyond it has a finite sum, of up to 1e19 entries."""


class NotFinite(FedcoreError):
    """The result of a slice holds floats that are not finite.

    Args:
        result: the slice's result.
    """

    def __init__(self, result: SliceResult) -> None:
        self.result = result
        super().__init__("its contribution is not finite: fc.debug.check_numerics() names the operation")


def checked_finite(run: Callable[[ClientSlice], SliceResult]) -> Callable[[ClientSlice], SliceResult]:
    """A function that calls `run`, and raises NotFinite if a float of the result is not finite."""

    def run_checked(clients: ClientSlice) -> SliceResult:
        result = run(clients)
        if not are_finite([*flatten(result.partial), *flatten(tuple(result.kept.values()))]):
            raise NotFinite(result)
        return result

    return run_checked


def are_finite(values: Iterable) -> bool:
    """Whether all float and complex tensors and arrays are finite. Other values count as finite."""
    return all(map(_is_finite, values))


def is_moderate(floats: tf.Tensor) -> bool:
    """Whether all entries of a float32 tensor are finite, and none is beyond `MODERATE`."""
    array = mapped_array(floats)
    if array is None:
        return bool(tf.reduce_all(tf.abs(floats) < MODERATE))
    with np.errstate(invalid="ignore"):
        return bool(array.min(initial=0) > -MODERATE and array.max(initial=0) < MODERATE)  # false if one is NaN


def _is_finite(value: object) -> bool:
    if not isinstance(value, np.ndarray | tf.Tensor):
        return True
    dtype = tf.as_dtype(value.dtype)
    if not dtype.is_floating and not dtype.is_complex:
        return True
    array = value if isinstance(value, np.ndarray) else mapped_array(value)
    if array is not None:
        return bool(np.isfinite(array).all())
    parts = [tf.math.real(value), tf.math.imag(value)] if dtype.is_complex else [value]
    return all(bool(tf.reduce_all(tf.math.is_finite(part))) for part in parts)

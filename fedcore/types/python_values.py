"""Conversion of Python numbers and texts, which have no dtype, to arrays, with a check that the dtype holds them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedcore.errors import InvalidValue, brief
from fedcore.types.dtypes import DType

_NUMBERS = {int, float, complex}
# By the kind of numpy's dtype: bool 0, integer 1 (as objects beyond 64 bits), float 2, complex 3.
_RANKS = {"b": 0, "i": 1, "u": 1, "O": 1, "f": 2, "c": 3}
_SMALL = 60000.0  # every float dtype reaches beyond
_EXACT = 1 << 53  # float64 holds every integer up to here


def as_array(value: object) -> np.ndarray:
    """Nested lists of Python values as an array; text becomes bytes in an object array.

    Raises:
        ValueError: lengths differ, bools or text are mixed with numbers, or a value is neither a number nor text.
    """
    try:
        array = np.asarray(value)
    except (ValueError, UnicodeDecodeError):
        numpy = getattr(value, "numpy", None)  # NumPy refuses the `__array__` of TensorFlow's bfloat16 scalars
        array = _objects(value) if numpy is None else np.asarray(numpy())
    if array.dtype.kind in "biufc" or array.dtype.name == "bfloat16":
        if array.dtype.kind != "b" and isinstance(value, list | tuple) and _has_bool(value):
            raise InvalidValue("bools stand among numbers")
        return array
    # Not by numpy's conversion, which drops trailing zeros of bytes and turns numbers beside text into text.
    array = array.astype(object) if hasattr(value, "dtype") else _objects(value)
    if array.size and all(type(x) is int for x in array.ravel()):
        return array  # beyond 64 bits
    return _texts(array)


def _objects(value: object) -> np.ndarray:
    """Nested lists as an array of Python objects; raises InvalidValue if their lengths differ."""
    try:
        return np.asarray(value, dtype=object)
    except ValueError:
        raise InvalidValue("lengths differ") from None


def _texts(array: np.ndarray) -> np.ndarray:
    """An array of str and bytes as one of bytes; raises InvalidValue if another object is in it."""
    flat = array.ravel().tolist()
    for x in flat:
        if isinstance(x, list | tuple):
            raise InvalidValue("lengths differ")
        if not isinstance(x, str | bytes | bool | int | float | complex | np.generic):
            raise InvalidValue(f"{brief(x)} is neither number nor text")
    if not all(isinstance(x, str | bytes) for x in flat):
        mixed = any(isinstance(x, str | bytes) for x in flat)
        raise InvalidValue("text stands among numbers" if mixed else "numbers stand in an array of objects")
    out = np.empty(len(flat), dtype=object)
    try:
        out[:] = [x.encode() if isinstance(x, str) else bytes(x) for x in flat]
    except UnicodeEncodeError as error:
        raise InvalidValue(f"{error.object!r} holds surrogates, which UTF-8 cannot") from None
    return out.reshape(array.shape)


def _has_bool(values: list | tuple) -> bool:
    """Whether a bool of Python or numpy is in nested lists."""
    if set(map(type, values)) <= _NUMBERS:
        return False
    return any(
        _has_bool(x) if isinstance(x, list | tuple) else isinstance(x, bool) or getattr(x, "dtype", None) == np.bool_
        for x in values
    )


def small_number(value: object, dtype: DType) -> np.ndarray | None:
    """A Python number in a dtype that surely holds it; None where `in_dtype` and `first_not_held` have to tell."""
    if type(value) is float and dtype.is_float and -_SMALL < value < _SMALL:
        return np.array(value, dtype.numpy)
    if type(value) is int and 0 <= value <= 127 and (dtype.is_integer or dtype.is_float):
        return np.array(value, dtype.numpy)
    return None


def in_dtype(array: np.ndarray, dtype: DType) -> np.ndarray | None:
    """Python numbers cast to a dtype of their kind or a wider kind (integer < float < complex); None for another dtype.

    `first_not_held` finds a number that the dtype does not hold.
    """
    want = 0 if dtype.name == "bool" else 1 if dtype.is_integer else 2 if dtype.is_float else 3
    have = _RANKS.get(array.dtype.kind, 4)
    if not array.size and dtype.name != "str":
        return array.astype(dtype.numpy)
    if dtype.name == "str" or have > want or (have == 0) != (want == 0):
        return None
    with np.errstate(all="ignore"):
        try:
            wide = array.astype(np.float64) if array.dtype.kind == "O" and want > 1 else array
            return wide.astype(dtype.numpy)
        except OverflowError:  # an integer that no dtype holds
            return np.full(array.shape, np.inf if want > 1 else 0, np.float64).astype(dtype.numpy)


def first_not_held(array: np.ndarray, cast: np.ndarray) -> tuple[tuple[int, ...], str] | None:
    """Index and text of the first number of `array` that the dtype of `cast` does not hold; else None.

    A dtype does not hold an integer that the cast changes, nor a finite float that becomes infinite. Floats may round.
    """
    if array.dtype == cast.dtype or (array.dtype.kind == "f" and np.isfinite(cast).all()):
        return None
    wrong = _changed_mask(array, cast) if array.dtype.kind in "iuO" else _overflow_mask(array, cast)
    if not wrong.any():
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return place, brief(array[place].item() if array.dtype.kind != "O" else array[place])


def holds(dtype: DType, number: object) -> bool:
    """Whether the dtype holds a Python number; a float may round."""
    array = as_array(number)
    cast = in_dtype(array, dtype)
    return cast is not None and first_not_held(array, cast) is None


def _changed_mask(array: np.ndarray, cast: np.ndarray) -> np.ndarray:
    """Mask of the integers that the cast changes."""
    if array.dtype.kind != "O" and cast.dtype.kind in "iu":
        return (cast.astype(array.dtype) != array) | ((cast < 0) != (array < 0))
    if array.dtype.kind != "O" and ((array >= -_EXACT) & (array <= _EXACT)).all():
        return cast.real.astype(np.float64) != array
    pairs = zip(array.ravel().tolist(), cast.ravel(), strict=True)
    return np.array([_integer(result) != original for original, result in pairs], bool).reshape(array.shape)


def _integer(number: Any) -> int | None:
    """A number of numpy as an int, without the fraction; None if it is not finite."""
    if isinstance(number, np.integer):
        return int(number)
    real = float(number.real)
    return int(real) if math.isfinite(real) else None


def _overflow_mask(array: np.ndarray, cast: np.ndarray) -> np.ndarray:
    """Mask of the finite floats that the cast makes infinite."""
    if array.dtype.kind == "c":
        return _overflow_mask(array.real, cast.real) | _overflow_mask(array.imag, cast.imag)
    real = cast.real if cast.dtype.kind == "c" else cast
    return np.isinf(real.astype(np.float64)) & ~np.isinf(array)

"""TFF's functions of dtypes, shapes and arrays. A dtype is anything that `fc.types.as_dtype` takes."""

import math
from typing import TypeAlias

import numpy as np

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.types import DType, Shape, as_dtype, as_shape, is_static
from fedcore.types.dtypes import find_dtype
from fedcore.types.python_values import holds

Array: TypeAlias = bool | int | float | complex | str | bytes | np.generic | np.ndarray
"""A value of a tensor."""

_CLASSES = {bool: "bool", int: "int64", float: "float64", complex: "complex128", str: "str", bytes: "str"}
"""Class of a Python scalar -> the widest dtype of its kind."""


def is_valid_dtype(dtype: object) -> bool:
    """Whether a tensor can have the dtype."""
    return find_dtype(dtype) is not None


def can_cast_dtype(value: bool | int | float | complex | str | bytes, dtype: object) -> bool:
    """Whether the dtype holds a Python scalar; a float may round.

    Unlike in TFF, no integer dtype holds a float, and only bool holds a bool.
    """
    dtype = as_dtype(dtype)
    if dtype.name == "str" or isinstance(value, str | bytes):
        return dtype.name == "str" and isinstance(value, str | bytes)
    return holds(dtype, value)


def infer_dtype(obj: bool | int | float | complex | str | bytes) -> type:
    """The numpy class of the dtype that stands for a Python scalar.

    An int is int32, or int64 where 32 bits do not hold it; a float is float32. Unlike in TFF, a complex is complex64.

    Raises:
        InvalidValue: an int that 64 bits do not hold.
        TypeMismatch: `obj` is no Python scalar.
    """
    if type(obj) not in _CLASSES:
        raise TypeMismatch(f"{brief(obj)} is no Python scalar")
    dtype = as_dtype(type(obj))
    if dtype.is_integer and not holds(dtype, obj):
        dtype = as_dtype("int64")
        if not holds(dtype, obj):
            raise InvalidValue(f"{brief(obj)} does not fit into 64 bits")
    return dtype.type


def array_is_compatible_dtype(value: Array, dtype: object) -> bool:
    """Whether a value is of the dtype's kind, such as integer or float, and no wider than the dtype."""
    dtype = as_dtype(dtype)
    if isinstance(value, np.generic | np.ndarray):
        have = find_dtype(value.dtype)
        if have is None or _kind(have) != _kind(dtype):
            return False
        return have.name == "str" or np.can_cast(have.numpy, dtype.numpy)
    kind = _CLASSES.get(type(value))
    return kind is not None and _kind(as_dtype(kind)) == _kind(dtype) and can_cast_dtype(value, dtype)


def _kind(dtype: DType) -> str:
    """The name that all dtypes of a kind share: of numbers `integer`, `float` or `complex`, else the dtype's own."""
    for kind in ("integer", "float", "complex"):
        if getattr(dtype, f"is_{kind}"):
            return kind
    return dtype.name


def array_is_compatible_shape(value: Array, shape: Shape) -> bool:
    """Whether the shape allows the value, which is a scalar unless it is an array."""
    return array_shape_is_compatible_with(np.shape(value) if isinstance(value, np.ndarray) else (), shape)


def array_shape_is_compatible_with(target: Shape, other: Shape) -> bool:
    """Whether some tensor has both shapes."""
    target, other = as_shape(target), as_shape(other)
    if target is None or other is None:
        return True
    return len(target) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(target, other, strict=True)
    )


def array_shape_is_fully_defined(shape: Shape) -> bool:
    """Whether the rank and every size are known."""
    return is_static(as_shape(shape))


def array_shape_is_scalar(shape: Shape) -> bool:
    """Whether the shape is that of a scalar."""
    return as_shape(shape) == ()


def num_elements_in_array_shape(shape: Shape) -> int | None:
    """The number of elements of a tensor; None where a size is unknown."""
    shape = as_shape(shape)
    return math.prod(shape) if is_static(shape) else None

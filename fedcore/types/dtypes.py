"""The element types of tensors.

Decision 0079.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from fedcore.errors import TypeMismatch, brief

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64", "bfloat16")
_COMPLEX = ("complex64", "complex128")


@attrs.frozen(repr=False, eq=False)
class DType:
    """An element type, by name. Use `as_dtype` to get one.

    Equal to every object that `as_dtype` converts to it, such as `np.int32`; a set or dict tells these apart.
    """

    name: str
    numpy: np.dtype
    bits: int | None
    """Bits of one element in a message: 1 for bool, None for str and code, whose values differ in size."""

    @property
    def dtype(self) -> np.dtype:
        """numpy's dtype. TensorFlow and numpy read this attribute of an argument, so they accept a `DType`."""
        return self.numpy

    @property
    def type(self) -> type:
        """numpy's class of a scalar; `np.str_` for texts."""
        return np.str_ if self.name == "str" else self.numpy.type

    @property
    def is_integer(self) -> bool:
        return self.name in _INTEGERS

    @property
    def is_float(self) -> bool:
        return self.name in _FLOATS

    @property
    def is_complex(self) -> bool:
        return self.name in _COMPLEX

    @property
    def is_inexact(self) -> bool:
        """Float or complex."""
        return self.is_float or self.is_complex

    @property
    def is_real(self) -> bool:
        """Integer or float, which have an order and limits."""
        return self.is_integer or self.is_float

    @property
    def is_numeric(self) -> bool:
        """Neither bool nor str."""
        return self.is_integer or self.is_inexact

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, DType):
            other = find_dtype(other)
        return other is not None and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"DType({self.name!r})"

    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        return as_dtype, (self.name,)


def _make(name: str) -> DType:
    """The dtype of a name in `DTYPES`."""
    if name == "bool":
        return DType("bool", np.dtype(np.bool_), 1)
    if name == "str":
        return DType("str", np.dtype(object), None)
    numpy = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    return DType(name, numpy, numpy.itemsize * 8)


DTYPES: dict[str, DType] = {name: _make(name) for name in ("bool", *_INTEGERS, *_FLOATS, *_COMPLEX, "str")}

CODE = DType("code", np.dtype(np.uint8), None)
"""Bytes of a code: its number of bits in the first four (little endian), then the bits, then zeros up to the capacity.

Values of this dtype are made by the intrinsic `message` only.
"""

# Python numbers take the 32 bits of models, not numpy's 64.
_DTYPE_OF_CLASS = {bool: "bool", int: "int32", float: "float32", complex: "complex64", str: "str", bytes: "str"}


def as_dtype(x: object) -> DType:
    """Converts x to a `DType`.

    Args:
        x: a `DType`, a name (`"float32"`), a numpy or ml_dtypes dtype or scalar type, a TensorFlow dtype, or one of
            Python's bool, int (int32), float (float32), complex (complex64), str and bytes. The text, bytes and object
            dtypes of numpy are `str`.
    Raises:
        TypeMismatch: x is not one of these.
    """
    dtype = find_dtype(x)
    if dtype is None:
        raise TypeMismatch(f"{brief(x)} is not a dtype; dtypes are {', '.join(DTYPES)}")
    return dtype


def find_dtype(x: Any) -> DType | None:
    """The `DType` that x denotes; None where `as_dtype` raises an error."""
    if isinstance(x, DType):
        return x
    if isinstance(x, str):
        return CODE if x == CODE.name else DTYPES.get(x)
    if isinstance(x, type) and x in _DTYPE_OF_CLASS:
        return DTYPES[_DTYPE_OF_CLASS[x]]
    if isinstance(x, np.dtype):
        return _from_numpy(x)
    if isinstance(x, type) and issubclass(x, np.generic):
        return _from_numpy(np.dtype(x))
    # A tf.DType, recognised without importing TensorFlow. The class is asked, since tf.variant's attribute raises.
    if hasattr(type(x), "as_numpy_dtype"):
        return DTYPES["str"] if x.name == "string" else DTYPES.get(x.name)
    if isinstance(x, type) and x is getattr(ml_dtypes, x.__name__, None):
        return DTYPES.get(np.dtype(x).name)
    return None


def _from_numpy(dtype: np.dtype) -> DType | None:
    if dtype.kind in "OUST":  # objects, and numpy's three dtypes of texts and bytes
        return DTYPES["str"]
    return DTYPES.get(dtype.name)

"""Conversion of run-time values: Python containers, nested tuples, flat lists of leaves.

Inside fedcore a struct is a tuple. Its type names the Python container for the user.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedcore.errors import TypeMismatch, brief
from fedcore.types import (
    StructType,
    StructWithPythonType,
    TensorType,
    Type,
    container_class,
    explain,
    fields_of,
    fits,
    make_container,
    not_dense,
)
from fedcore.types.python_values import as_array, first_not_held, in_dtype, small_number

Nested: TypeAlias = Any
"""A leaf (a tensor or a sequence), or a nested tuple of leaves: its type says which, and no type checker."""


def flatten(value: Nested) -> list:
    """The leaves (tensors and sequences) of a nested tuple, in order."""
    if not isinstance(value, tuple):
        return [value]
    parts: list = []
    for part in value:
        if isinstance(part, tuple):
            parts.extend(flatten(part))
        else:
            parts.append(part)
    return parts


def unflatten(leaves: Sequence, type_: Type) -> Nested:
    """The nested tuple of a type from its leaves, in order."""
    remaining = iter(leaves)
    value = _take(remaining, type_)
    left = len(list(remaining))
    if left:
        raise ValueError(f"{left} leaves are left over for {type_}")
    return value


def _take(leaves: Iterator, type_: Type) -> Nested:
    return tuple([_take(leaves, t) for t in type_.types]) if isinstance(type_, StructType) else next(leaves)


def elements_of(value: Any, type_: StructType, path: str = "") -> list:
    """The elements of a Python struct (dict, tuple, list, NamedTuple, attrs, dataclass) in the order of the type."""
    names = type_.names
    where = f" at {path}" if path else ""
    if isinstance(value, Mapping):
        if set(value) != {n for n in names if n is not None} or None in names:
            raise TypeMismatch(f"the keys{where} are {sorted(map(str, value))}, but the type is {type_}")
        return [value[n] for n in names]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) != len(names):
            raise TypeMismatch(f"there are {len(value)} elements{where}, but the type is {type_}")
        fields = getattr(value, "_fields", names)
        if fields == names or None in names:
            return list(value)
        if set(fields) != set(names):
            raise TypeMismatch(f"the fields{where} are {sorted(fields)}, but the type is {type_}")
    named = [n for n in names if n is not None and hasattr(value, n)]
    if len(named) == len(names) and (names or fields_of(value) is not None) and not isinstance(value, np.ndarray):
        return [getattr(value, n) for n in named]
    raise TypeMismatch(f"{type(value).__name__}{where} is no struct of type {type_}")


def leaves_of(value: Any, type_: Type) -> list:
    """The leaves of a Python struct in the order of the type."""
    if not isinstance(type_, StructType):
        return [value]
    parts = zip(elements_of(value, type_), type_.types, strict=True)
    return [leaf for part, t in parts for leaf in leaves_of(part, t)]


def to_python(value: Nested, type_: Type) -> Any:
    """Converts a nested tuple to the Python containers that the type names."""
    if not isinstance(type_, StructType):
        return value
    parts = [to_python(part, t) for part, t in zip(value, type_.types, strict=True)]
    return container(parts, type_)


def container(parts: list, type_: StructType) -> Any:
    """One struct in its Python container. Default: dict if all elements have names, else tuple."""
    names = type_.names
    if isinstance(type_, StructWithPythonType):
        cls = container_class(type_.container)
        instance = None if cls is None else make_container(cls, names, parts)
        if instance is not None:
            return instance
    if names and None not in names:
        return dict(zip(names, parts, strict=True))
    return tuple(parts)


def tensor_leaf(value: Any, type_: TensorType, path: str = "value") -> Any:
    """`value` as something TensorFlow takes for the type; a numpy array unless it is a tensor already.

    Raises:
        TypeMismatch: the dtype or the shape does not fit; Python's numbers, which have no dtype, take this one if it
            is of their kind or a wider one, and holds them. Floats are rounded.
    """
    if hasattr(value, "numpy") and hasattr(value, "dtype"):
        if type(value).__name__ == "RaggedTensor":
            raise TypeMismatch(f"{path}: {not_dense(value)}")
        have, array, note = _tensor_type(value.dtype, tuple(value.shape)), value, ""
        if have.dtype.name == "bfloat16" and not have.shape:
            array = np.asarray(value.numpy())  # NumPy refuses the `__array__` of these tensors
    else:
        array, note = _array(value, type_, path)
        have = _tensor_type(array.dtype if array.dtype != object else "str", array.shape)
    if note or not fits(have, type_):
        raise TypeMismatch(explain(f"{path} does not fit", have, type_) + note)
    return array


_tensor_type = functools.lru_cache(256)(TensorType)  # a state has many leaves of few types


def _array(value: Any, type_: TensorType, path: str) -> tuple[np.ndarray, str]:
    """A value that is no tensor as an array, and a note where the dtype does not hold its numbers.

    An array keeps its dtype, and Python's numbers get that of the type. What does not fit comes in a dtype of its own,
    by which `tensor_leaf` refuses it.
    """
    small = small_number(value, type_.dtype)
    if small is not None:
        return small, ""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcV":  # V: bfloat16
        array = np.asarray(value)
        return (array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))), ""
    problem = not_dense(value)
    if problem is not None:
        raise TypeMismatch(f"{path}: {problem}")
    try:
        array = as_array(value)
    except ValueError as error:
        if type_.dtype.name == "str" and not isinstance(value, list | tuple | str):
            raise TypeMismatch(f"{path} is {brief(value)}, but the type is {type_}") from None
        raise TypeMismatch(f"{path} is no tensor of type {type_}: {error}") from None
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], bytes):
        return array, ""
    if type_.dtype.name == "str":
        if array.size:
            raise TypeMismatch(f"{path} is {brief(value)}, but the type is {type_}")
        return array.astype(object), ""
    if hasattr(value, "dtype"):
        return array, ""
    cast = in_dtype(array, type_.dtype)
    if cast is None:
        return (array if array.dtype.kind != "O" else array.astype(np.float64)), ""
    lossy_entry = first_not_held(array, cast)
    if lossy_entry is None:
        return cast, ""
    place, number = lossy_entry
    where = f"{path}[{']['.join(map(str, place))}]" if place else path
    return (array if array.dtype.kind != "O" else cast), f"\n  {where} is {number}, which {type_.dtype} does not hold"

"""Equivalence of Python functions, decided by their code and the values that they refer to.

Preprocessing code often creates a new but equivalent function for each client. Equivalent functions share a graph.
"""

import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

import attrs
import numpy as np
import tensorflow as tf

_CONSTANT = (bool, int, float, complex, str, bytes, type(None), tf.DType, np.dtype)


_FIXED = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, np.ufunc)


class _Changing(Exception):
    """The function refers to an object that may be mutated."""


@attrs.frozen
class _Itself:
    """Compares an object by identity."""

    value: object = attrs.field(eq=id)


def equivalence_key(fn: Callable) -> Hashable | None:
    """Key that is equal for functions that share a code object and have equal references; None if a reference may
    change.

    References may be constants, functions with a key, modules and classes. The key of a module or class consists of its
    attributes whose names occur in the code. Functions of libraries count as immutable.
    """
    try:
        return _of(fn, ()) if isinstance(fn, types.FunctionType) else None
    except _Changing:
        return None


def _of(fn: types.FunctionType, above: tuple) -> Hashable:
    if fn in above:
        return _Itself(fn.__code__)
    above = (*above, fn)
    names = sorted(set(_names(fn.__code__)))
    cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    defaults = (*(fn.__defaults__ or ()), *sorted((fn.__kwdefaults__ or {}).items()))
    return (
        _Itself(fn.__code__),
        _values((*cells, *defaults), names, above),
        _attributes_of(fn.__globals__, names, above),
    )


def _attributes_of(held: Mapping[str, object], names: list[str], above: tuple) -> Hashable:
    return tuple((name, _value(held[name], names, above)) for name in names if name in held)


def _values(values: Iterable, names: list[str], above: tuple) -> Hashable:
    return tuple(_value(v, names, above) for v in values)


def _value(value: object, names: list[str], above: tuple) -> Hashable:
    if isinstance(value, _CONSTANT):
        return type(value), value
    if isinstance(value, tuple):
        return _values(value, names, above)
    if isinstance(value, types.FunctionType) and not any(isinstance(v, types.ModuleType) for v in above):
        return _of(value, above)
    if isinstance(value, types.ModuleType | type):
        return _Itself(value), () if value in above else _attributes_of(vars(value), names, (*above, value))
    if isinstance(value, _FIXED):
        return _Itself(value)
    raise _Changing


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes in the code, including nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

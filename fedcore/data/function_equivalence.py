"""Whether two Python functions do the same, as those that are made again for every client."""

import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

import attrs
import numpy as np
import tensorflow as tf

_CONSTANT = (bool, int, float, complex, str, bytes, type(None), tf.DType, np.dtype)


_FIXED = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, np.ufunc)


class _Changing(Exception):
    """The function refers to something that may change without a trace."""


@attrs.frozen
class _Itself:
    """An object that equals only itself."""

    value: object = attrs.field(eq=id)


def equivalence_key(fn: Callable) -> Hashable | None:
    """Equal for functions of one piece of code that refer to the same things; None where that cannot be told.

    What is referred to are constants, other such functions, modules and classes; of these two what the code may name in
    them. A library's function is taken to stay as it is.
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
    given = (*(fn.__defaults__ or ()), *sorted((fn.__kwdefaults__ or {}).items()))
    return _Itself(fn.__code__), _values((*cells, *given), names, above), _named(fn.__globals__, names, above)


def _named(held: Mapping[str, object], names: list[str], above: tuple) -> Hashable:
    return tuple((name, _value(held[name], names, above)) for name in names if name in held)


def _values(values: Iterable, names: list[str], above: tuple) -> Hashable:
    return tuple(_value(v, names, above) for v in values)


def _value(value, names: list[str], above: tuple) -> Hashable:
    if isinstance(value, _CONSTANT):
        return type(value), value
    if isinstance(value, tuple):
        return _values(value, names, above)
    if isinstance(value, types.FunctionType) and not any(isinstance(v, types.ModuleType) for v in above):
        return _of(value, above)
    if isinstance(value, types.ModuleType | type):
        return _Itself(value), () if value in above else _named(vars(value), names, (*above, value))
    if isinstance(value, _FIXED):
        return _Itself(value)
    raise _Changing


def _names(code: types.CodeType) -> Iterator[str]:
    """Those of globals and attributes in the code and in the functions that it makes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

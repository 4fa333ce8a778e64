"""Equivalence of Python functions, decided by their code and the values that they refer to.

Preprocessing code often creates a new but equivalent function for each client. Equivalent functions share a graph. A
function that is used again shares its own graph as long as the values that it refers to have not changed.
"""

import functools
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs
import numpy as np
import tensorflow as tf

_CONSTANT = (bool, int, float, complex, str, bytes, type(None), tf.DType, np.dtype)
"""Types of values that are compared by their content."""

_FIXED = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, np.ufunc)
"""Types of values that are compared by identity, since they do not change."""

_LONGEST = 1000
"""Entries of the longest container whose entries are compared."""


class _Changing(Exception):
    """The function refers to an object that may be mutated."""


@attrs.frozen
class _Itself:
    """Part of a key that stands for an object: equal for the same object only."""

    value: object = attrs.field(eq=id)


_KeyOfOther: TypeAlias = Callable[[object, list[str], tuple], Hashable]
"""(an object that may change, names in the code, the objects that lead to it) -> its part of a key."""


def equivalence_key(fn: Callable) -> Hashable | None:
    """Key that is equal for functions that share a code object and have equal references; None if a reference may
    change.

    References may be constants, functions with a key, modules and classes. The key of a module or class consists of its
    attributes whose names occur in the code. Functions of libraries count as immutable.
    """
    try:
        return _function_key(fn, (), _refuse) if isinstance(fn, types.FunctionType) else None
    except _Changing:
        return None


def values_held(fn: Callable) -> Hashable:
    """The values that a function refers to, as they are now: equal to those of an earlier use if none has changed.

    Objects other than those of `equivalence_key` count by their identity, containers and arrays by their content, and
    instances by what their attributes hold directly.
    """
    if isinstance(fn, functools.partial):
        return values_held(fn.func), _content((*fn.args, *fn.keywords.items()), [], ())
    return _function_key(fn, (), _content) if isinstance(fn, types.FunctionType) else _content(fn, [], ())


def _function_key(fn: types.FunctionType, above: tuple, others: _KeyOfOther) -> Hashable:
    """Key of a function: its code, the keys of its closure and defaults, and those of the globals that its code names.

    Args:
        above: the functions, modules, classes and containers that lead to it. If it is one of them, it refers to
            itself, and its code alone is the key.
        others: makes the key of a referenced object that may change.
    Raises:
        _Changing: `others` raises it.
    """
    if fn in above:
        return _Itself(fn.__code__)
    above = (*above, fn)
    names = sorted(set(_names(fn.__code__)))  # of globals and of attributes: the code does not tell them apart
    cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    defaults = (*(fn.__defaults__ or ()), *sorted((fn.__kwdefaults__ or {}).items()))
    return (
        _Itself(fn.__code__),
        _values((*cells, *defaults), names, above, others),
        _attributes_of(fn.__globals__, names, above, others),
    )


def _attributes_of(attributes: Mapping[str, object], names: list[str], above: tuple, others: _KeyOfOther) -> Hashable:
    """(Name, key) of each variable of a module, or attribute of a class, that has one of the names."""
    return tuple((name, _value(attributes[name], names, above, others)) for name in names if name in attributes)


def _values(values: Iterable, names: list[str], above: tuple, others: _KeyOfOther) -> Hashable:
    return tuple(_value(v, names, above, others) for v in values)


def _value(value: object, names: list[str], above: tuple, others: _KeyOfOther) -> Hashable:
    """Key of a value that a function refers to; arguments as for `_function_key`.

    Args:
        names: the names in the function's code, by which attributes of modules and classes are chosen.
    """
    if isinstance(value, float | complex):
        return type(value), repr(value)  # tells 0.0 and -0.0 apart
    if isinstance(value, _CONSTANT):
        return type(value), value
    if isinstance(value, tuple):
        return _values(value, names, above, others)
    if isinstance(value, types.FunctionType) and not any(isinstance(v, types.ModuleType) for v in above):
        return _function_key(value, above, others)
    if isinstance(value, types.ModuleType | type):
        is_above = any(value is v for v in above)
        return _Itself(value), () if is_above else _attributes_of(vars(value), names, (*above, value), others)
    if isinstance(value, _FIXED):
        return _Itself(value)
    return others(value, names, above)


def _refuse(value: object, names: list[str], above: tuple) -> Hashable:
    """The `_KeyOfOther` of `equivalence_key`."""
    raise _Changing


def _content(value: object, names: list[str], above: tuple) -> Hashable:
    """The `_KeyOfOther` of `values_held`: by the entries of a container, the bytes of an array, or the attributes of an
    instance.
    """
    if any(value is v for v in above):
        return _Itself(value)
    above = (*above, value)
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        value = tuple(value.items())
    if isinstance(value, tuple | list | set | frozenset) and len(value) <= _LONGEST:
        return type(value), _values(value, names, above, _content)
    directly = (*_CONSTANT, tuple, list, dict, set, np.ndarray, np.generic)
    attributes = [(k, v) for k, v in getattr(value, "__dict__", {}).items() if isinstance(v, directly)]
    return _Itself(value), tuple((name, _value(v, names, above, _content)) for name, v in attributes)


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes in the code, including nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

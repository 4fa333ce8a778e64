"""Keys of fedcore's own functions over tensors, whose graphs several processes share.

The functions of a process that read nothing of the user's, such as the step of a server's optimizer or the quotient of
a mean, are traced once for all processes of equal types: a sweep of learning rates builds a process for each.

Decision 0332.
"""

import dis
import types
from collections.abc import Hashable
from typing import Any

import attrs

from fedcore.types import Type

_MAX_DEPTH = 8
"""Nesting of the values in a closure; a value that refers to itself would have no end."""


class _NoKey(Exception):
    """A value may change, or its content is not known, so that nothing that refers to it has a key."""


@attrs.frozen(eq=False)
class _Identity:
    """A key that equals the keys of one object only."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def own_function_key(fn: object) -> Hashable | None:
    """A key of a function of fedcore; None for a user's, and for one that refers to what may change.

    Guarantees:
      - Functions of one key compute alike: they have the same code, equal values in their closures, and the same
        objects under the globals that they name.
      - What a closure holds is plain: numbers, texts, types, containers of these, and objects of fedcore's classes
        with such attributes and the same methods. A model, an array, a computation or a user's function gives None.
      - A helper that was replaced under such a global's own globals, by a patch of fedcore from outside, is not seen.
      - Tracing them changes nothing around them: no list, dict or set, and no variable of theirs.
    """
    try:
        return _function_key(fn, 0)
    except _NoKey:
        return None


def _function_key(fn: object, depth: int) -> Hashable:
    """`own_function_key` of a function that is nested `depth` deep in another's closure.

    Raises:
        _NoKey: there is none.
    """
    if not isinstance(fn, types.FunctionType) or not _is_own(fn.__module__) or hasattr(fn, "__wrapped__"):
        raise _NoKey
    try:
        cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    except ValueError:  # not filled yet
        raise _NoKey from None
    if any(isinstance(cell, list | dict | set) for cell in cells) or _assigns_outside(fn.__code__):
        raise _NoKey  # tracing may be what fills them
    names = sorted(_global_names(fn.__code__) & fn.__globals__.keys())
    global_keys = tuple(_Identity(fn.__globals__[name]) for name in names)
    return (
        fn.__code__,
        fn.__code__.co_filename,
        global_keys,
        *(_value_key(v, depth + 1) for v in (fn.__defaults__, fn.__kwdefaults__, *cells)),
    )


def _value_key(value: Any, depth: int) -> Hashable:
    """A key of a value in a closure or of a default: equal for equal content, as `own_function_key` says.

    Raises:
        _NoKey: the value, or a part of it, is not plain.
    """
    if depth > _MAX_DEPTH:
        raise _NoKey
    cls = type(value)
    if value is None or cls in (bool, int, float, str, bytes):
        return cls, repr(value)  # 1, 1.0 and True are equal
    if isinstance(value, Type):
        return value
    if cls in (tuple, list):
        return cls, tuple(_value_key(part, depth + 1) for part in value)
    if cls is dict:
        return cls, tuple((_value_key(k, depth + 1), _value_key(v, depth + 1)) for k, v in value.items())
    if cls is frozenset:
        return cls, frozenset(_value_key(part, depth + 1) for part in value)
    if cls is types.FunctionType:
        return _function_key(value, depth)
    if not _is_own(cls.__module__):
        raise _NoKey
    attributes = tuple((name, _value_key(part, depth + 1)) for name, part in _attributes(value))
    return _Identity(cls), _methods(cls), attributes


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """The (name, value) pairs of an object's attributes; raises `_NoKey` if they are not known."""
    if attrs.has(type(value)):
        return [(field.name, getattr(value, field.name)) for field in attrs.fields(type(value))]
    if hasattr(value, "__dict__"):
        return list(vars(value).items())
    raise _NoKey


def _methods(cls: type) -> tuple:
    """The definitions of the class and its bases, all of fedcore's; a method that was replaced gives another key."""
    defined = []
    for base in cls.__mro__:
        if base.__module__ in ("builtins", "abc", "typing"):
            continue
        if not _is_own(base.__module__):
            raise _NoKey
        defined += [_Identity(part) for name, part in vars(base).items() if not name.startswith("_abc_")]
    return tuple(defined)


def _is_own(module: str | None) -> bool:
    """Whether a module, by name, is fedcore's."""
    return (module or "").partition(".")[0] == "fedcore"


def _assigns_outside(code: types.CodeType) -> bool:
    """Whether code, or that of a function in it, assigns a variable of a function around it, or a global."""
    for step in dis.get_instructions(code):
        if step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars):
            return True
    return any(_assigns_outside(inner) for inner in code.co_consts if isinstance(inner, types.CodeType))


def _global_names(code: types.CodeType) -> set[str]:
    """The globals that code, or that of a function in it, reads."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(_global_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))

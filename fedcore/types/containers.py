"""Python containers that stand for structs: their elements, a registry of their classes by name, and new ones."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from fedcore.errors import InvalidValue, TypeMismatch, brief

_BUILTIN: dict[str, type] = {
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
}
_registered: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def register_container(cls: type) -> str:
    """Registers a container class; returns its name in the notation.

    A later class with the same module and qualified name replaces the earlier one, as when a notebook defines a class
    again.
    """
    for name, builtin in _BUILTIN.items():
        if cls is builtin:
            return name
    name = f"{cls.__module__}.{cls.__qualname__}"
    _registered[name] = cls
    return name


def container_class(name: str) -> type | None:
    """The class of that name; None if this process has not registered it. Imports nothing."""
    return _BUILTIN.get(name) or _registered.get(name)


def fields_of(x: Any) -> dict[str, Any] | None:
    """The fields of a named tuple, an attrs or a dataclass object, by name; None for every other object."""
    if isinstance(x, type):
        return None
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return {name: getattr(x, name) for name in x._fields}
    if attrs.has(type(x)):
        return {field.name: getattr(x, field.name) for field in attrs.fields(type(x))}
    if dataclasses.is_dataclass(x):
        return {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}
    return None


def elements_and_class(x: object) -> tuple[list[tuple[str | None, Any]], type | None] | None:
    """The (name, element) pairs of a container, and the class that its struct has in Python; None for a leaf.

    Raises:
        TypeMismatch: a key of a mapping is not a str.
    """
    fields = fields_of(x)
    if fields is not None:
        return list(fields.items()), x.__class__  # not `type`: TensorFlow wraps containers that modules hold
    if isinstance(x, Mapping):
        check_keys(x)
        return list(x.items()), x.__class__ if isinstance(x, dict) and x.__class__ is not dict else None
    if isinstance(x, list | tuple):
        return [(None, element) for element in x], list if isinstance(x, list) else None
    return None


def check_keys(mapping: Mapping) -> None:
    """Raises TypeMismatch if a key of a mapping is not a str, and so cannot name an element of a struct."""
    for key in mapping:
        if not isinstance(key, str):
            raise TypeMismatch(f"elements of a struct are named by str; the key {brief(key)} is not one")


def make_container(cls: type, names: Sequence[str | None], parts: Sequence) -> Any:
    """A container of the class with these elements; None if the class has other fields, as after its redefinition.

    Raises:
        InvalidValue: the class refuses the elements, as a validator of attrs may.
    """
    try:
        if cls is list or cls is tuple:
            return cls(parts)
        if issubclass(cls, Mapping):
            return _make_mapping(cls, dict(zip(names, parts, strict=True)))
        return _make_object(cls, dict(zip(map(str, names), parts, strict=True)))
    except Exception as error:
        raise InvalidValue(f"{cls.__name__} cannot be made of its elements: {error}") from error


def _make_mapping(cls: Any, elements: dict) -> Any:
    """A mapping of the class; a dict whose constructor takes other arguments, as defaultdict's, is filled instead."""
    try:
        return cls(elements)
    except TypeError:
        if not issubclass(cls, dict):
            raise
        instance = cls.__new__(cls)
        instance.update(elements)
        return instance


def _make_object(cls: Any, elements: dict[str, Any]) -> Any:
    """A named tuple, an attrs or a dataclass object, also with fields that its constructor does not take.

    None if the class has other fields. Any other class gets the elements as keyword arguments.
    """
    if hasattr(cls, "_make"):
        return cls._make(elements[name] for name in cls._fields) if set(cls._fields) == set(elements) else None
    if attrs.has(cls):
        arguments = {field.name: field.alias if field.init else None for field in attrs.fields(cls)}
    elif dataclasses.is_dataclass(cls):
        arguments = {field.name: field.name if field.init else None for field in dataclasses.fields(cls)}
    else:
        return cls(**elements)
    if set(arguments) != set(elements):
        return None
    instance = cls(**{argument: elements[name] for name, argument in arguments.items() if argument is not None})
    for name, argument in arguments.items():
        if argument is None:
            object.__setattr__(instance, name, elements[name])
    return instance

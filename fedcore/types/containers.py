"""Registry of the Python classes of structs, by name."""

from __future__ import annotations

import collections
import weakref

_BUILTIN: dict[str, type] = {
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
}
_seen: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def register_container(cls: type) -> str:
    """Registers a container class; returns its name in the notation.

    A later class with the same module and qualified name replaces the earlier one, as when a notebook defines a class
    again.
    """
    for name, builtin in _BUILTIN.items():
        if cls is builtin:
            return name
    name = f"{cls.__module__}.{cls.__qualname__}"
    _seen[name] = cls
    return name


def container_class(name: str) -> type | None:
    """The class of that name; None if this process has not registered it. Imports nothing."""
    return _BUILTIN.get(name) or _seen.get(name)

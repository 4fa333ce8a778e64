"""Python classes that a struct comes back to, by name."""

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
    """The name of a container class in the notation; from now on `container_class` finds the class by it.

    Of two classes with one module and qualified name, the one registered last is found: a class defined
    again in a notebook takes the place of the old one.
    """
    for name, builtin in _BUILTIN.items():
        if cls is builtin:
            return name
    name = f"{cls.__module__}.{cls.__qualname__}"
    _seen[name] = cls
    return name


def container_class(name: str) -> type | None:
    """The class of that name; None where this process has not seen it. Nothing is imported."""
    return _BUILTIN.get(name) or _seen.get(name)

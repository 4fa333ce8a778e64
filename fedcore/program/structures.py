"""Nested structures: lists, tuples, named tuples, mappings and attrs classes; everything else is a leaf."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs


def fields_of(value: object) -> dict[str, Any] | None:
    """The fields of a named tuple or of an instance of an attrs class, by name; None for another value."""
    if isinstance(value, type):
        return None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    cls: type = type(value)
    if attrs.has(cls):
        return {a.name: getattr(value, a.name) for a in attrs.fields(cls) if a.init}
    return None


def children_of(value: object) -> dict[Any, Any] | None:
    """The parts of a structure by name, key or index; None for a leaf."""
    fields = fields_of(value)
    if fields is not None:
        return fields
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return None


def with_children(value: Any, children: Sequence[Any]) -> Any:
    """A structure like `value` with other parts, in the order of `children_of`."""
    fields = fields_of(value)
    if fields is not None:
        return type(value)(**dict(zip((name.lstrip("_") for name in fields), children, strict=True)))
    if isinstance(value, Mapping):
        return type(value)(zip(value, children, strict=True))  # type: ignore[call-arg]
    return type(value)(children)


def map_leaves(fn: Callable[[Any], Any], value: Any) -> Any:
    """The structure with `fn` applied to each leaf."""
    children = children_of(value)
    if children is None:
        return fn(value)
    return with_children(value, [map_leaves(fn, child) for child in children.values()])


def leaves_with_names(value: object, path: tuple = ()) -> Iterator[tuple[str, Any]]:
    """The leaves; a leaf's name joins its keys and indices with `/`, as in `client_work/train/loss`."""
    children = children_of(value)
    if children is None:
        yield "/".join(map(str, path)), value
        return
    for key, child in children.items():
        yield from leaves_with_names(child, (*path, key))

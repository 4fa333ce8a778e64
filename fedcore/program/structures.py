"""Nested structures: lists, tuples, named tuples, mappings, attrs and dataclass objects; all else is a leaf."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedcore.types import fields_of, make_container


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
    parts = children_of(value)
    if parts is not None and (isinstance(value, Mapping) or fields_of(value) is not None):
        return make_container(type(value), list(parts), children)
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

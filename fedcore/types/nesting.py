"""Bounds of Python containers that become structs, so that their conversion may recurse."""

from collections.abc import Iterable, Mapping

from fedcore.errors import InvalidValue
from fedcore.types.types import MAX_DEPTH, MAX_PARTS


def check_nesting(x: object) -> None:
    """Checks that dicts, lists and tuples nest within the bounds of types. A container that stands twice counts twice.

    Raises:
        InvalidValue: they nest deeper than `MAX_DEPTH`, or have more than `MAX_PARTS` parts.
    """
    parts, count = [x], 0
    for _ in range(MAX_DEPTH):
        parts = [element for part in parts for element in _elements(part)]
        count += len(parts)
        if count > MAX_PARTS:
            raise InvalidValue(f"types have at most {MAX_PARTS} parts")
        if not parts:
            return
    raise InvalidValue(f"types nest at most {MAX_DEPTH} deep")


def _elements(x: object) -> Iterable:
    """The elements of a mapping, a list or a tuple; none of another object."""
    if isinstance(x, Mapping):
        return x.values()
    return x if isinstance(x, list | tuple) else ()

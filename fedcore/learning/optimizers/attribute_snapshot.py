"""Snapshots of an object's attributes and containers."""

from collections import OrderedDict
from typing import Any

import numpy as np

from fedcore.graphs import private_api_keras

_CONTAINERS: tuple[Any, ...] = (OrderedDict, dict, list, set)
_NUMBERS = (bool, int, float, complex, str, np.ndarray, np.generic)


class AttributeSnapshot:
    """The attributes of an object, and the contents of the lists, dicts and sets that they hold, at one time.

    Objects of other classes are kept by identity. Contents are put back by the methods of Python's own containers, so
    that subclasses which track their elements do not notice.
    """

    def __init__(self, owner: object) -> None:
        self._attributes = dict(vars(owner))
        self._contents: list[tuple[Any, Any, list]] = []  # (container, its class of Python's, elements or items)
        seen: set[int] = set()
        pending: list[Any] = [vars(owner)]
        while pending:
            value = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            kind: Any = next((base for base in type(value).__mro__ if base in _CONTAINERS), None)
            if kind is not None:
                contents = list(kind.items(value)) if issubclass(kind, dict) else list(kind.__iter__(value))
                self._contents.append((value, kind, contents))
                pending += [child for _, child in contents] if issubclass(kind, dict) else contents
            if isinstance(value, tuple):
                pending += value
            if private_api_keras.tracks_containers(value) and hasattr(value, "__dict__"):
                pending.append(vars(value))

    def restore(self) -> None:
        """Gives the object and its containers the contents that they had."""
        for value, kind, contents in self._contents:
            kind.clear(value)
            (list.extend if kind is list else kind.update)(value, contents)

    def changed_number(self, owner: object) -> str | None:
        """The name of an attribute that was a number, a string or an array, and has another value now; else None."""
        for name, new in vars(owner).items():
            old = self._attributes.get(name, getattr(type(owner), name, None))
            if new is not old and isinstance(old, _NUMBERS) and not np.array_equal(np.asarray(old), np.asarray(new)):
                return name
        return None

    def grown_container(self, owner: object) -> str | None:
        """The name of an attribute that is a list, dict or set of another size than it had; else None."""
        sizes = {id(value): (kind, len(contents)) for value, kind, contents in self._contents}
        for name, value in vars(owner).items():
            kind, size = sizes.get(id(value), (None, 0))
            if kind is not None and kind.__len__(value) != size:
                return name
        return None

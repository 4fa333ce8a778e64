"""Snapshots of an object's attributes and containers."""

from collections import OrderedDict
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.graphs import private_api_keras

_CONTAINERS = (OrderedDict, dict, list, set)


class AttributeSnapshot:
    """The attributes of an object, and the contents of the lists, dicts and sets that they hold, at one time.

    Objects of other classes are kept by identity. Contents are put back by the methods of Python's own containers, so
    that subclasses which track their elements do not notice.
    """

    def __init__(self, owner: object) -> None:
        self._attributes = dict(vars(owner))
        self._contents: list[tuple[Any, type, Any]] = []
        seen: set[int] = set()
        pending: list[Any] = [vars(owner)]
        while pending:
            value = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            kind = next((base for base in type(value).__mro__ if base in _CONTAINERS), None)
            if kind is not None:
                contents = list(kind.items(value)) if issubclass(kind, dict) else list(kind.__iter__(value))
                self._contents.append((value, kind, contents))
                pending += [child for _, child in contents] if issubclass(kind, dict) else contents
            if isinstance(value, tuple):
                pending += value
            if private_api_keras.tracks_containers(value) and hasattr(value, "__dict__"):
                pending.append(vars(value))

    def restore(self) -> None:
        """Gives the object and its containers what they had."""
        for value, kind, contents in self._contents:
            kind.clear(value)
            (list.extend if kind is list else kind.update)(value, contents)

    def changed_attribute(self, owner: object) -> str | None:
        """An attribute with a number or an array that has another value now, or a container of another size."""
        sizes = {id(value): (kind, len(contents)) for value, kind, contents in self._contents}
        now = vars(owner)
        for name, old in self._attributes.items():
            new = now.get(name)
            if new is not old and _is_state(old, new) and not _are_equal(old, new):
                return name
            kind, size = sizes.get(id(old), (None, 0))
            if new is old and kind is not None and kind.__len__(old) != size:
                return name
        return None


def _is_state(old: object, new: object) -> bool:
    """Whether a value that Python replaced may be one that the next step reads."""
    if old is None:
        return isinstance(new, bool | int | float | np.ndarray | np.generic | tf.Tensor)
    return isinstance(old, bool | int | float | complex | str | np.ndarray | np.generic | tf.Tensor)


def _are_equal(old: object, new: object) -> bool:
    return not isinstance(new, tf.Tensor) and bool(np.array_equal(np.asarray(old), np.asarray(new)))

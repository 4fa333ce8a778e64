"""Released values without some of their parts."""

from collections.abc import Callable, Mapping
from typing import Any

from fedcore.errors import TypeMismatch
from fedcore.program.release_manager import ReleaseManager
from fedcore.program.structures import children_of, with_children
from fedcore.program.type_variables import Key, ReleasableStructure
from fedcore.types import fields_of, make_container

_LEFT_OUT = object()


class NotFilterableError(TypeMismatch):
    """A part is left out of a structure that cannot be without it."""


class FilteringReleaseManager(ReleaseManager[ReleasableStructure, Key]):
    """Releases to another manager the leaves for which a function of their path is true.

    A structure all of whose leaves are left out is left out; an empty one stays. If nothing is left, nothing is
    released.

    Args:
        release_manager: gets what is left.
        filter_fn: path -> whether the leaf is released. A path is a tuple of keys, field names and indices.
    Example:
        >>> memory = fc.program.MemoryReleaseManager()
        >>> manager = fc.program.FilteringReleaseManager(memory, lambda path: path == ("loss",))
        >>> asyncio.run(manager.release({"loss": 0.5, "accuracy": 0.9}, key=1))
        >>> dict(memory.values())
        {1: {'loss': 0.5}}
    """

    def __init__(self, release_manager: ReleaseManager, filter_fn: Callable[[tuple[str | int, ...]], bool]) -> None:
        self._release_manager = release_manager
        self._filter_fn = filter_fn

    async def release(self, value: Any, key: Any) -> None:
        """Releases what is left of a value.

        Raises:
            NotFilterableError: a field of a named tuple or of an attrs class would be left out.
        """
        left = self._filter(value, ())
        if left is not _LEFT_OUT:
            await self._release_manager.release(left, key)

    def _filter(self, value: Any, path: tuple) -> Any:
        """Filters a part of the released value, which stands at `path`; gives `_LEFT_OUT` if nothing is left."""
        children = children_of(value)
        if children is None:
            return value if self._filter_fn(path) else _LEFT_OUT
        parts = {name: self._filter(child, (*path, name)) for name, child in children.items()}
        left = {name: part for name, part in parts.items() if part is not _LEFT_OUT}
        if parts and not left:
            return _LEFT_OUT
        if len(left) == len(parts):
            return with_children(value, list(left.values()))
        if fields_of(value) is not None:
            missing = ", ".join(str(name) for name in parts if name not in left)
            raise NotFilterableError(
                f"{type(value).__name__} cannot be without its fields: {missing} would be left out"
            )
        if isinstance(value, Mapping):
            return make_container(type(value), list(left), list(left.values()))
        return type(value)(left.values())

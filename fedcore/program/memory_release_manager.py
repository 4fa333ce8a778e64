"""Values in memory."""

import collections
from collections.abc import Hashable
from typing import Any

from fedcore.program.release_manager import ReleaseManager
from fedcore.program.type_variables import Key, ReleasableStructure
from fedcore.program.value_reference import materialize_value


class MemoryReleaseManager(ReleaseManager[ReleasableStructure, Key]):
    """Keeps the released values in memory, in the order of their release.

    Example:
        >>> manager = fc.program.MemoryReleaseManager()
        >>> asyncio.run(manager.release({"loss": 0.5}, key=1))
        >>> dict(manager.values())
        {1: {'loss': 0.5}}
    """

    def __init__(self) -> None:
        self._values: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()

    async def release(self, value: Any, key: Hashable) -> None:
        self._values[key] = await materialize_value(value)

    def values(self) -> collections.OrderedDict[Hashable, Any]:
        """The values by their keys."""
        return self._values.copy()

    def remove_all(self) -> None:
        self._values.clear()

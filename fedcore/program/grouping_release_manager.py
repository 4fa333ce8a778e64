"""Several release managers as one."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fedcore.errors import InvalidValue
from fedcore.program.release_manager import ReleaseManager
from fedcore.program.type_variables import Key, ReleasableStructure


class GroupingReleaseManager(ReleaseManager[ReleasableStructure, Key]):
    """Releases every value to several managers.

    Raises:
        InvalidValue: there are no managers.
    """

    def __init__(self, release_managers: Sequence[ReleaseManager]) -> None:
        if not release_managers:
            raise InvalidValue("release_managers is a list of one manager or more, not empty")
        self._release_managers = list(release_managers)

    async def release(self, value: Any, key: Any) -> None:
        await asyncio.gather(*(manager.release(value, key) for manager in self._release_managers))

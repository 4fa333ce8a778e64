"""The released values without the first."""

from typing import Any

from fedcore.program.release_manager import ReleaseManager
from fedcore.program.type_variables import Key, ReleasableStructure
from fedcore.scalars import whole_number


class DelayedReleaseManager(ReleaseManager[ReleasableStructure, Key]):
    """Releases to another manager from the `delay`-th value on.

    Args:
        release_manager: gets the values.
        delay: 1 releases every value.
    Raises:
        InvalidValue: `delay` is less than 1.
    """

    def __init__(self, release_manager: ReleaseManager, delay: int) -> None:
        self._delay = whole_number("delay", delay, at_least=1)
        self._release_manager = release_manager
        self._count = 0

    async def release(self, value: Any, key: Any) -> None:
        self._count += 1
        if self._count >= self._delay:
            await self._release_manager.release(value, key)

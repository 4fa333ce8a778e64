"""Every k-th of the released values."""

import datetime
import time
from typing import Any

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.program.release_manager import ReleaseManager
from fedcore.program.type_variables import Key, ReleasableStructure


class PeriodicReleaseManager(ReleaseManager[ReleasableStructure, Key]):
    """Releases to another manager at intervals.

    Args:
        release_manager: gets the values.
        periodicity: 3 releases the third, sixth, ninth … value; a `datetime.timedelta` of a second or more releases a
            value if so much time has passed since the value before it that was released.
    Raises:
        InvalidValue: `periodicity` is less than 1 or than a second.
        TypeMismatch: it is neither a whole number nor a `datetime.timedelta`.
    """

    def __init__(self, release_manager: ReleaseManager, periodicity: int | datetime.timedelta) -> None:
        if isinstance(periodicity, bool) or not isinstance(periodicity, int | datetime.timedelta):
            raise TypeMismatch(f"periodicity is a whole number or a datetime.timedelta, not {brief(periodicity)}")
        least = 1 if isinstance(periodicity, int) else datetime.timedelta(seconds=1)
        if periodicity < least:  # type: ignore[operator]
            raise InvalidValue(f"periodicity is 1 or more, or a second or more, not {brief(periodicity)}")
        self._release_manager = release_manager
        self._periodicity = periodicity
        self._count = 0
        self._released_at_s = time.monotonic()

    async def release(self, value: Any, key: Any) -> None:
        if self._is_due():
            await self._release_manager.release(value, key)

    def _is_due(self) -> bool:
        """Whether the next value is released; counts the value, or notes the time of the release."""
        if isinstance(self._periodicity, int):
            self._count += 1
            return self._count % self._periodicity == 0
        now_s = time.monotonic()
        is_due = now_s - self._released_at_s >= self._periodicity.total_seconds()
        if is_due:
            self._released_at_s = now_s
        return is_due

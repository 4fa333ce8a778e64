"""The protocol of managers that hand the values of a program to its user."""

import abc
from typing import Any, Generic

from fedcore.errors import NotFound, brief
from fedcore.program.type_variables import Key, ReleasableStructure


class ReleasedValueNotFoundError(NotFound):
    """No value was released under this key."""

    def __init__(self, key: object) -> None:
        super().__init__(f"no value was released under the key {brief(key)}")


class ReleaseManager(abc.ABC, Generic[ReleasableStructure, Key]):
    """Hands values of a program to its user: to memory, files, a log."""

    @abc.abstractmethod
    async def release(self, value: Any, key: Any) -> None:
        """Hands over a value.

        Args:
            value: a nested structure; `MaterializableValueReference`s in it are materialized.
            key: what the value is found by, such as the number of a round.
        """

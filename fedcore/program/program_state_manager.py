"""The protocol of managers that keep the state of a program, and their errors."""

import abc
from collections.abc import Callable
from typing import Any, Generic

from fedcore.errors import InvalidValue, NotFound
from fedcore.ir.locations import warn_user
from fedcore.program.type_variables import ProgramStateStructure


class ProgramStateExistsError(InvalidValue):
    """A state was saved under this version before."""

    def __init__(self, *, version: int, path: str) -> None:
        super().__init__(f"there is a program state of version {version} in {path}")


class ProgramStateNotFoundError(NotFound):
    """No state was saved under this version."""

    def __init__(self, version: int) -> None:
        super().__init__(f"there is no program state of version {version}")


class ProgramStateDamagedError(InvalidValue):
    """A saved state is not what was written: a file is missing or has other bytes."""


class ProgramStateManager(abc.ABC, Generic[ProgramStateStructure]):
    """Saves and loads the state of a program, so that a program that was interrupted can go on.

    The state is a nested structure; each saved state has a version, a whole number.
    """

    @abc.abstractmethod
    async def get_versions(self) -> list[int] | None:
        """The saved versions, in ascending order; None if there are none."""

    @abc.abstractmethod
    async def load(self, version: int, structure: Any) -> Any:
        """A saved state.

        Args:
            structure: a state of the same structure, for the classes in it. A leaf may stand for a whole part.
        Raises:
            ProgramStateNotFoundError: there is no such version.
            ProgramStateDamagedError: the saved state is not what was written.
        """

    async def load_latest(self, structure: Any) -> tuple[Any, int]:
        """The newest state that is whole, and its version; (None, 0) if none was saved.

        A damaged state is skipped, with a warning.

        Raises:
            ProgramStateDamagedError: states were saved, and all of them are damaged.
        """
        damaged = []
        for version in reversed(await self.get_versions() or []):
            try:
                state = await self.load(version, structure)
            except ProgramStateNotFoundError:  # removed since
                continue
            except ProgramStateDamagedError as error:
                damaged.append(error)
                continue
            for problem in damaged:
                warn_user(f"{problem}; version {version} is used instead")
            return state, version
        if damaged:
            raise ProgramStateDamagedError("no program state is whole:\n  " + "\n  ".join(map(str, damaged)))
        return None, 0

    @abc.abstractmethod
    async def save(self, program_state: Any, version: int) -> None:
        """Saves a state.

        Args:
            version: greater than the versions before.
        Raises:
            ProgramStateExistsError: there is a whole state of this version.
        """

    async def begin_save(self, program_state: Any, version: int) -> Callable[[], None]:
        """Takes a state, which may change afterwards, and gives the function that writes it.

        The function may be called once, in any thread. Default: the state is saved at once, and the function does
        nothing.

        Raises:
            ProgramStateExistsError: there is a whole state of this version.
        """
        await self.save(program_state, version)
        return lambda: None

    async def remove_all(self) -> None:
        """Removes all saved states."""
        raise NotImplementedError(f"{type(self).__name__} cannot remove states")

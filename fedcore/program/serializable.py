"""Objects that a program state can hold: they turn into bytes and back."""

import abc


class Serializable(abc.ABC):
    """An object that a `ProgramStateManager` saves as bytes."""

    @classmethod
    @abc.abstractmethod
    def from_bytes(cls, buffer: bytes) -> "Serializable":
        """The object of these bytes."""

    @abc.abstractmethod
    def to_bytes(self) -> bytes:
        """The object as bytes."""

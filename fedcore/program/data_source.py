"""The protocols of the data of a program's clients."""

import abc
import enum
from typing import Any

from fedcore.errors import FedcoreError
from fedcore.program.serializable import Serializable
from fedcore.types import FederatedType


class Capability(enum.Enum):
    """An ability of a `FederatedDataSource`.

    RANDOM_UNIFORM: it selects clients uniformly at random.
    """

    RANDOM_UNIFORM = 1


class FederatedDataSourceIterator(Serializable):
    """Selects the data of clients, one selection after another; its place is saved with a program's state.

    An iterator without `to_bytes` and `from_bytes` selects, but a program's state that holds it cannot be saved.
    """

    @property
    @abc.abstractmethod
    def federated_type(self) -> FederatedType:
        """The type of a selection: `{T}@CLIENTS`."""

    @abc.abstractmethod
    def select(self, k: int | None = None) -> Any:
        """The data of k clients: the client argument of a computation."""

    def to_bytes(self) -> bytes:
        raise _cannot_be_saved(type(self))

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "FederatedDataSourceIterator":
        raise _cannot_be_saved(cls)


def _cannot_be_saved(cls: type) -> FedcoreError:
    return FedcoreError(f"a {cls.__name__} cannot be saved: it has no to_bytes and from_bytes of its own")


class FederatedDataSource(abc.ABC):
    """Data of clients, of which `iterator()` begins a sequence of selections."""

    @property
    @abc.abstractmethod
    def federated_type(self) -> FederatedType:
        """The type of a selection: `{T}@CLIENTS`."""

    @property
    def capabilities(self) -> list[Capability]:
        """The abilities of the source."""
        return [Capability.RANDOM_UNIFORM]

    @abc.abstractmethod
    def iterator(self) -> FederatedDataSourceIterator:
        """An iterator that begins from the first selection."""

"""The protocols of the data of a program's clients."""

import abc
import enum
from typing import Any

from fedcore.program.serializable import Serializable
from fedcore.types import FederatedType


class Capability(enum.Enum):
    """What a `FederatedDataSource` can do.

    RANDOM_UNIFORM: it selects clients uniformly at random.
    """

    RANDOM_UNIFORM = 1


class FederatedDataSourceIterator(Serializable):
    """Selects the data of clients, one selection after another; its place is saved with a program's state."""

    @property
    @abc.abstractmethod
    def federated_type(self) -> FederatedType:
        """The type of a selection: `{T}@CLIENTS`."""

    @abc.abstractmethod
    def select(self, k: int | None = None) -> Any:
        """The data of k clients: the client argument of a computation."""


class FederatedDataSource(abc.ABC):
    """Data of clients, of which `iterator()` begins a sequence of selections."""

    @property
    @abc.abstractmethod
    def federated_type(self) -> FederatedType:
        """The type of a selection: `{T}@CLIENTS`."""

    @property
    def capabilities(self) -> list[Capability]:
        """What the source can do."""
        return [Capability.RANDOM_UNIFORM]

    @abc.abstractmethod
    def iterator(self) -> FederatedDataSourceIterator:
        """An iterator that begins from the first selection."""

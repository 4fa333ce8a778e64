"""Clients' identifiers as a data source, for contexts that find the data of a client themselves."""

import json
import secrets
from collections.abc import Sequence

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.program.data_source import FederatedDataSource, FederatedDataSourceIterator
from fedcore.scalars import random_generator, seed_number, whole_number
from fedcore.types import CLIENTS, FederatedType


class ClientIdDataSourceIterator(FederatedDataSourceIterator):
    """Selects clients by their identifiers, uniformly at random and without repetition within a selection.

    Selection n depends on the seed and n only.

    Args:
        client_ids: the identifiers, one or more.
        seed: a whole number. Default: drawn.
    Raises:
        InvalidValue: there are no identifiers.
        TypeMismatch: one is no text.
    """

    def __init__(self, client_ids: Sequence[str], seed: int | None = None) -> None:
        self._client_ids = _check_ids(client_ids)
        self._seed = secrets.randbits(63) if seed is None else seed_number("seed", seed)
        self._selections = 0

    @property
    def federated_type(self) -> FederatedType:
        return FederatedType("str", CLIENTS)

    def select(self, k: int | None = None) -> list[str]:
        """The identifiers of k different clients, drawn uniformly.

        Raises:
            InvalidValue: k is None, the default of all sources, or no number of clients from 0 to all.
        """
        if k is None or whole_number("k", k) < 0 or k > len(self._client_ids):
            raise InvalidValue(f"k is a number of clients from 0 to {len(self._client_ids)}, not {brief(k)}")
        chosen = random_generator(self._seed, self._selections).choice(len(self._client_ids), size=k, replace=False)
        self._selections += 1
        return [self._client_ids[i] for i in chosen]

    def to_bytes(self) -> bytes:
        return json.dumps([self._client_ids, self._seed, self._selections]).encode()

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "ClientIdDataSourceIterator":
        """The iterator of these bytes, which goes on where it was.

        Raises:
            InvalidValue: they are not the bytes of an iterator.
        """
        try:
            client_ids, seed, selections = json.loads(buffer)
            iterator = cls(client_ids, seed)
            iterator._selections = whole_number("selections", selections, at_least=0)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidValue(f"these are not the bytes of a ClientIdDataSourceIterator: {error}") from None
        return iterator

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientIdDataSourceIterator):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]


class ClientIdDataSource(FederatedDataSource):
    """A data source over the identifiers of clients.

    Args:
        client_ids: the identifiers, one or more.
        seed: seed of the selections. Default: drawn by each `iterator()`.
    Raises:
        InvalidValue: there are no identifiers.
        TypeMismatch: one is no text.
    Example:
        >>> source = fc.program.ClientIdDataSource(["ada", "bob", "eve"], seed=0)
        >>> str(source.federated_type), len(source.iterator().select(2))
        ('{str}@CLIENTS', 2)
    """

    def __init__(self, client_ids: Sequence[str], seed: int | None = None) -> None:
        self._client_ids = _check_ids(client_ids)
        self._seed = seed if seed is None else seed_number("seed", seed)

    @property
    def federated_type(self) -> FederatedType:
        return FederatedType("str", CLIENTS)

    def iterator(self) -> ClientIdDataSourceIterator:
        return ClientIdDataSourceIterator(self._client_ids, self._seed)


def _check_ids(client_ids: Sequence[str]) -> list[str]:
    """The identifiers, if there are any and all are texts.

    Raises:
        InvalidValue, TypeMismatch: it is not so.
    """
    if isinstance(client_ids, str) or not len(client_ids):
        raise InvalidValue("client_ids is a list of one identifier or more")
    for client_id in client_ids:
        if not isinstance(client_id, str):
            raise TypeMismatch(f"client_ids holds texts, not {brief(client_id)}")
    return list(client_ids)

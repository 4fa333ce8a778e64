"""Cohorts whose clients are created lazily."""

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedcore.errors import ClientError, FedcoreError, brief


class Cohort:
    """The clients of a round. Each client's value is created when it is read.

    Unlike a list, a cohort does not hold all clients in memory. Unlike a generator, it can be read several times; every
    reading creates the values again.

    Guarantees:
      - A value that was read is not retained.
      - Every reading calls `client` with 0, 1, … in order, in the thread that calls the computation. If the call has a
        deadline or may be stopped by another thread, another thread reads.

    Args:
        size: the number of clients.
        client: index -> the client's value. Equal indices must give equal values, since the stages of a call may read a
            client several times.
        client_ids: for each client its id, by which errors and reports name it. Default: they give its index.
    Raises:
        FedcoreError: `size` is no number of clients, or `client` is no function.
    Example:
        >>> total(fc.Cohort(100_000, lambda i: np.float32(i % 7)))
    """

    def __init__(self, size: int, client: Callable[[int], object], client_ids: Sequence | None = None) -> None:
        if isinstance(size, bool) or not hasattr(size, "__index__") or operator.index(size) < 0:
            raise FedcoreError(f"the size of a cohort is a number of clients, 0 or more, not {brief(size)}")
        if not callable(client):
            raise FedcoreError(f"a cohort takes a function from an index to a client's value, not {brief(client)}")
        self._size = operator.index(size)
        self._client = client
        self.client_ids = client_ids

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator:
        return map(self._client_at, range(self._size))

    def __getitem__(self, index: int) -> Any:
        """The value of one client."""
        if not 0 <= index < self._size:
            raise IndexError(f"client {index} of a cohort of {self._size}")
        return self._client_at(index)

    def _client_at(self, index: int) -> Any:
        try:
            return self._client(index)
        except StopIteration as error:  # StopIteration would end the reading at this client
            raise ClientError(f"client {index} of {self!r} raised StopIteration") from error

    def __repr__(self) -> str:
        return f"fc.Cohort({self._size}, {getattr(self._client, '__qualname__', self._client)})"


def client_name(client_ids: Sequence | Mapping[int, Hashable] | None, index: int) -> str:
    """A client as errors name it: by its id, else by its index."""
    return f"client {index if client_ids is None else repr(client_ids[index])}"


class OpenedElsewhere(Cohort):
    """The clients of a round, which another machine can open: it gets their ids and `open_client`, pickled.

    Args:
        client_ids: ids of the clients.
        open_client: id -> the client's value.
    """

    def __init__(self, client_ids: Iterable[str], open_client: Callable[[str], object]) -> None:
        ids = list(client_ids)
        self.open_client = open_client
        super().__init__(len(ids), lambda index: open_client(ids[index]), ids)

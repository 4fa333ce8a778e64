"""Slices of clients, and their results: the data that executors of clients exchange.

Example: a fold over 20 clients with block=4 and call=8 runs as three slices, each with places=8: clients 0 to 7, 8 to
15, and 16 to 19. Each slice gives a `SliceResult`; the merge tree merges their partials.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from fedcore.data import columns_of
from fedcore.errors import FedcoreError
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.streams import Stream
from fedcore.graphs.tensors.values import flatten
from fedcore.runtime.arguments import prepare
from fedcore.runtime.client_work import ClientWork
from fedcore.seeds import fold_in_each
from fedcore.site_value import SiteValue
from fedcore.types import Type


@attrs.frozen
class ClientSlice:
    """The clients of one graph call.

    Args:
        first: index of the slice's first client.
        places: capacity: the number of clients of a full slice, a multiple of the block size.
        clients: for each client the tuple of its values, one for each cohort; None for a client that is left out. The
            last slice of a stage may have fewer clients than places.
        is_of_one_call: whether elements of clients were drawn by the call's seed, so that no other call may have them.
    """

    first: int
    places: int
    clients: tuple[tuple | None, ...]
    is_of_one_call: bool = False

    def __reduce__(self) -> tuple:
        return ClientSlice, (self.first, self.places, self.clients)

    @functools.cached_property
    def present(self) -> list[int]:
        """The indices of the clients that are not left out."""
        return [self.first + i for i, client in enumerate(self.clients) if client is not None]

    @functools.cached_property
    def positions(self) -> tuple[int, ...]:
        """The positions of the present clients within the slice."""
        return tuple(i - self.first for i in self.present)

    @functools.cached_property
    def values(self) -> list[tuple]:
        """For each present client the tuple of its values."""
        return [client for client in self.clients if client is not None]

    @functools.cached_property
    def leaves(self) -> ClientLeaves:
        """The leaves of the present clients' values."""
        # Flat tuples, the common case, are taken as they are.
        return ClientLeaves([flatten(c) if any(isinstance(value, tuple) for value in c) else c for c in self.values])

    @functools.cached_property
    def common_layouts(self) -> tuple[Layout, ...] | None:
        """The layouts of the present clients' sequences; None if clients differ, if elements are ragged or in a stream,
        or if a batch has no rows.

        A vectorised stage cannot run a batch without rows: it would take the batch for the end of its client. Clients
        with other batch sizes differ too, since the batch size decides when factors of kernels are added up.
        """
        clients = self.leaves.each
        if any(isinstance(leaf, Stream) for client in clients for leaf in client):
            return None
        positions = [i for i, leaf in enumerate(clients[0]) if isinstance(leaf, Columns)] if clients else []
        layouts = [(clients[0][i].layout, clients[0][i].batch_size) for i in positions]
        for client in clients if positions else ():
            sequences = [client[i] for i in positions]
            if any(s.ragged or s.has_empty_batch for s in sequences):
                return None
            if [(s.layout, s.batch_size) for s in sequences] != layouts:
                return None
        return tuple([layout for layout, _ in layouts])

    def with_only(self, indices: Iterable[int]) -> "ClientSlice":
        """This slice with only the clients of these indices; all other clients are left out."""
        chosen = {i - self.first for i in indices}
        return attrs.evolve(self, clients=tuple(c if i in chosen else None for i, c in enumerate(self.clients)))

    def without(self, indices: Iterable[int]) -> "ClientSlice":
        """This slice without the clients of these indices."""
        return self.with_only(set(self.present).difference(indices))

    def parts(self, block: int, most: int) -> list["ClientSlice"]:
        """Equal parts of whole blocks, in order of their clients; parts without present clients are left out.

        The number of parts, with those left out, is the smallest power of two that gives parts of at most `most`
        clients. So `joined` merges the parts in the tree in which the whole slice merges its blocks.

        Args:
            block: clients of a block, `work.block`.
            most: clients of a part; at least a block.
        Raises:
            FedcoreError: such parts would not have whole blocks.
        Example:
            >>> slice.parts(block=4, most=8)  # 16 places, clients 32 to 43: the parts 32 to 39 and 40 to 43
        """
        places = self.places
        while places > most and places % (2 * block) == 0:
            places //= 2
        if places > most or places % block:
            raise FedcoreError(
                f"a slice of {self.places} places has no parts of whole blocks of {block} with at most {most} clients"
            )
        starts = range(0, len(self.clients), places) if places else ()
        cut = [ClientSlice(self.first + i, places, self.clients[i : i + places]) for i in starts]
        return [part for part in cut if part.present]

    def divided(self, block: int, count: int) -> list["ClientSlice"]:
        """The largest equal parts, as `parts` gives them, of which at least `count` have clients; else single blocks.

        A slice has many more places than clients if its cohort is small, so a part of half its places may hold all.

        Example:
            >>> slice.divided(block=8, count=2)  # 512 places, clients 0 to 39: the parts 0 to 31 and 32 to 39
        """
        places, parts = self.places, self.parts(block, self.places)
        while len(parts) < count and places > block and places % (2 * block) == 0:
            places //= 2
            parts = self.parts(block, places)
        return parts

    def joined(
        self, parts: Sequence["ClientSlice"], results: Iterable["SliceResult"], merge: Callable[[Any, Any], Any]
    ) -> "SliceResult":
        """The result of this slice from the results of its parts.

        Args:
            parts: one result of `parts`.
            results: for each part its result.
            merge: merges two partials, such as the `merge` of a `DeviceStage`; not called if the stage has no fold.
        """
        row = {(part.first - self.first) // part.places: r for part, r in zip(parts, results, strict=True)}
        while len(row) > 1:  # up one row of the merge tree: index of a node -> its result
            parents: dict[int, SliceResult] = {}
            for index, result in row.items():
                left = parents.get(index // 2)
                parents[index // 2] = result if left is None else _merge_results(left, result, merge)
            row = parents
        (whole,) = row.values()
        return whole

    def opened(self, work: ClientWork, find: Callable[[SiteValue], object]) -> "ClientSlice":
        """The slice with the clients' own data, for the machine that holds them.

        Args:
            find: from a `SiteValue` to the whole value of that name, as a user gives it; elements are taken from it.
        Raises:
            TypeMismatch: a value does not fit.
        """
        parameters = work.module.function(work.stage).parameters

        def open_client(index: int, client: tuple) -> tuple:
            types = [p.type for p in parameters[len(parameters) - len(client) :]]  # its values are the last parameters
            values = [_open_value(v, type_, f"client {index}", find) for v, type_ in zip(client, types, strict=True)]
            return work.drawn(index, tuple(values))

        clients = (None if c is None else open_client(i, c) for i, c in enumerate(self.clients, self.first))
        return ClientSlice(self.first, self.places, tuple(clients), is_of_one_call=True)

    def seeds(self, seed: int) -> np.ndarray:
        """The seeds of the present clients, from the call's seed and their indices."""
        seeds = fold_in_each(seed, self.first, len(self.clients))
        return seeds if len(self.present) == len(seeds) else seeds[list(self.positions)]


def _open_value(value: object, type_: Type, path: str, find: Callable[[SiteValue], object]) -> object:
    """A client's value in the runtime's form; a value that is no `SiteValue` as it is. See `ClientSlice.opened`."""
    if not isinstance(value, SiteValue):
        return value
    user_value: Any = find(value)
    for position in value.path:
        user_value = [*user_value.values()][position] if isinstance(user_value, Mapping) else user_value[position]
    return prepare(user_value, type_, path, columns_of)


_NOTHING: Mapping[int, Any] = MappingProxyType({})


@attrs.frozen
class SliceResult:
    """The result of a slice.

    Args:
        partial: partial of the slice's clients; None if the stage has no fold.
        kept: client index -> the value that the stage returns for this client.
        sent_bits: client index -> sizes in bits of what the client sends of `ClientWork.measured`, int64 [n].
        place: name of the place that computed the slice, if the executor has several; it replaces the executor's name
            in reports. None if the report has the places already.
    """

    partial: object
    kept: Mapping[int, object] = _NOTHING
    sent_bits: Mapping[int, np.ndarray] = _NOTHING
    place: str | None = attrs.field(default="", repr=False)

    def __reduce__(self) -> tuple:
        return SliceResult, (self.partial, dict(self.kept), dict(self.sent_bits), self.place)


def _merge_results(left: SliceResult, right: SliceResult, merge: Callable[[Any, Any], Any]) -> SliceResult:
    """The result of two neighbouring parts of a slice."""
    partial = None if left.partial is None else merge(left.partial, right.partial)
    return SliceResult(partial, {**left.kept, **right.kept}, {**left.sent_bits, **right.sent_bits})

"""A client stage as executors take it: the stage with its arguments, slices of its clients, and the result of a slice.

Example: a fold over 20 clients with block=4 and call=8 runs as three slices, each with places=8: clients 0 to 7, 8 to
15, and 16 to 19. Each gives one `SliceResult`; the merge tree joins their partials.
"""

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from fedcore.graphs.batched.packing import ClientLeaves
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.tensors.values import flatten
from fedcore.ir import Module
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_count import ClientCount
from fedcore.seeds import fold_in_each


@attrs.frozen
class ClientWork:
    """One client stage of a plan with its arguments.

    Guarantees:
      - Pickles without its cohorts, `counted` and `count`: another process gets its clients in slices.

    Args:
        module: the plan.
        digest: of the plan.
        zero, join: stages that make and merge partials; None where the stage only keeps client values.
        stage: the client stage, a function of the plan.
        broadcasts: nested tuples of tensors that every client gets.
        cohorts: the client values, one cohort for each further parameter.
        numbers: for each cohort the numbers of a value's leaves, among the leaves of the call's arguments.
        keeps: the stage returns a value per client beside the partial.
        seed: of the call; a client's seed folds its index in.
        merge: the operation of the plan that takes the partials.
        measured: names in the stage of what crosses to the server, where its types leave the size open.
        counted: where the stage takes no client value, one of the call's: it says how many clients there are.
        count: of the call's clients, as far as it is known.
        without_rules: layouts of clients that turned out to have no batching rules; see `BatchingFallback`.
    """

    module: Module
    digest: str
    zero: str | None
    stage: str
    join: str | None
    broadcasts: tuple
    cohorts: tuple
    numbers: tuple[range, ...]
    keeps: bool
    seed: int
    merge: str | None = None
    measured: tuple[str, ...] = ()
    counted: ClientValues | None = None
    count: ClientCount = attrs.field(factory=ClientCount, eq=False)
    without_rules: set[tuple[Layout, ...]] = attrs.field(factory=set, eq=False, init=False)

    def __reduce__(self):
        here_only = ("cohorts", "counted", "count", "without_rules")
        fields = {f.name: getattr(self, f.name) for f in attrs.fields(ClientWork) if f.name not in here_only}
        return _without_cohorts, (fields,)

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the stage, in keys of executables."""
        return self.digest, self.stage

    @functools.cached_property
    def plan(self) -> Mapping[str, Any]:
        """The stage's attributes, such as its strategy."""
        return self.module.function(self.stage).attributes

    @property
    def is_vectorised(self) -> bool:
        return self.plan.get("strategy") == "vectorised"

    @functools.cached_property
    def block(self) -> int:
        """Clients of a block, which are folded in order."""
        return int(self.plan.get("block", 1))

    @functools.cached_property
    def width(self) -> int:
        """Clients that a vectorised stage computes side by side."""
        return int(self.plan.get("width", 1))

    def slice_size(self, executors: int) -> int:
        """The clients of a slice: at most as planned, and few enough that each of so many executors gets a slice."""
        planned = int(self.plan.get("call", self.block))
        clients = next((s for c in (*self.cohorts, self.counted) if c and (s := c.size) is not None), None)
        if executors == 1 or clients is None:
            return planned
        blocks = -(-clients // self.block)
        share = -(-blocks // executors)
        return min(planned, self.block << max(0, share - 1).bit_length())


def _without_cohorts(fields: dict[str, Any]) -> ClientWork:
    return ClientWork(cohorts=(), **fields)


@attrs.frozen
class ClientSlice:
    """The clients of one graph call.

    Args:
        first: the index of its first client.
        places: how many clients it could have: whole blocks.
        clients: the values of each; None for a client that is left out.
    """

    first: int
    places: int
    clients: tuple[tuple | None, ...]

    def __reduce__(self):
        return ClientSlice, (self.first, self.places, self.clients)

    @functools.cached_property
    def present(self) -> list[int]:
        """The indices of the clients that are not left out."""
        return [self.first + i for i, client in enumerate(self.clients) if client is not None]

    @functools.cached_property
    def values(self) -> list[tuple]:
        """The values of the present clients."""
        return [client for client in self.clients if client is not None]

    @functools.cached_property
    def leaves(self) -> ClientLeaves:
        """The leaves of the present clients' values."""
        return ClientLeaves([flatten(c) if any(isinstance(part, tuple) for part in c) else c for c in self.values])

    @functools.cached_property
    def common_layouts(self) -> tuple[Layout, ...] | None:
        """The layouts of the present clients' sequences; None where clients differ, or have a batch without rows.

        A vectorised step takes a batch without rows for the end of its client.
        """
        sequences = [[leaf for leaf in leaves if isinstance(leaf, Columns)] for leaves in self.leaves.each]
        first = tuple([s.layout for s in sequences[0]]) if sequences else ()
        for of_client in sequences:
            if any(s.has_empty_batch for s in of_client) or tuple([s.layout for s in of_client]) != first:
                return None
        return first

    def with_only(self, indices: Iterable[int]) -> "ClientSlice":
        """The same slice; the other clients are left out."""
        chosen = {i - self.first for i in indices}
        return attrs.evolve(self, clients=tuple(c if i in chosen else None for i, c in enumerate(self.clients)))

    def without(self, indices: Iterable[int]) -> "ClientSlice":
        return self.with_only(set(self.present).difference(indices))

    def halves(self) -> tuple["ClientSlice", "ClientSlice"]:
        """The first half of its blocks, and the second."""
        half = self.places // 2
        left = attrs.evolve(self, places=half, clients=self.clients[:half])
        return left, attrs.evolve(self, first=self.first + half, places=half, clients=self.clients[half:])

    def seeds(self, seed: int) -> np.ndarray:
        """The seeds of the present clients."""
        every = fold_in_each(seed, self.first, len(self.clients))
        return every if len(self.present) == len(every) else every[[i - self.first for i in self.present]]


_NOTHING: Mapping[int, Any] = MappingProxyType({})


@attrs.frozen
class SliceResult:
    """The outcome of a slice.

    Args:
        partial: of its clients; None where the stage has no fold.
        kept: the value of each client that the stage returns, by index.
        sent_bits: for each client the bits of what it sends, where the types leave the size open.
    """

    partial: object
    kept: Mapping[int, object] = _NOTHING
    sent_bits: Mapping[int, np.ndarray] = _NOTHING

    def __reduce__(self):
        return SliceResult, (self.partial, dict(self.kept), dict(self.sent_bits))

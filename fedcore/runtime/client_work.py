"""The data that executors of clients exchange: a client stage with its arguments, a slice of clients, and its result.

Example: a fold over 20 clients with block=4 and call=8 runs as three slices, each with places=8: clients 0 to 7, 8 to
15, and 16 to 19. Each slice gives a `SliceResult`; the merge tree merges their partials.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.data import Cohort, columns_of
from fedcore.errors import FedcoreError
from fedcore.graphs.batched.batching_policy import schedule_rules
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.cost_model import PARALLEL
from fedcore.graphs.batched.schedule import ScheduleRules
from fedcore.graphs.dataflow.passes.bfloat16_kernels import bfloat16_kernels
from fedcore.graphs.dataflow.stage_passes import stage_pass_registrations
from fedcore.graphs.graphdef.form.graph_bodies import rewrite_graph
from fedcore.graphs.sequences.columns import Columns, draw_values
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.streams import Stream
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.tensors.values import flatten
from fedcore.ir import Module
from fedcore.ir.rewritten_graphs import with_rewritten_graphs
from fedcore.processor import has_bfloat16_products
from fedcore.runtime.arguments import ClientValues, prepare
from fedcore.runtime.client_count import ClientCount
from fedcore.seeds import fold_in, fold_in_each
from fedcore.site_value import SiteValue
from fedcore.types import Type, leaves


@attrs.frozen
class ClientWork:
    """One client stage of a plan with its arguments.

    Guarantees:
      - Pickles without its cohorts, `counted` and `count`: another process gets its clients in slices.

    Args:
        module: the plan.
        digest: digest of the plan.
        zero, join: names of the stages that make and merge partials; None if the stage only keeps client values.
        stage: name of the client stage, a function of the plan.
        broadcasts: nested tuples of tensors that every client gets.
        cohorts: client values; cohort k is the stage's parameter k after the partial and the broadcasts.
        numbers: for each cohort the numbers of a value's leaves among the leaves of the call's arguments.
        keeps: the stage returns a value for each client, beside the partial.
        seed: seed of the call; a client's seed is this seed folded with the client's index.
        operation: name of the plan's operation that runs the stage.
        merge: name of the plan's operation that merges the partials.
        secure: the attribute `secure` of that operation; empty if no leaf of the partial crosses in a secure sum.
        measured: names of the stage's values that clients send and whose size is measured, see `measured_leaves`.
        counted: if the stage takes no client value, a client value of the call, which gives the number of clients.
        count: number of the call's clients, as far as it is known.
        without_rules: layouts for which a batching rule turned out to be missing; see `FittingSlices`.
        without_streams: the stage's name, if it turned out to read a sequence in another way than a stream can be read.
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
    operation: str = ""
    merge: str | None = None
    secure: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    counted: ClientValues | None = None
    count: ClientCount = attrs.field(factory=ClientCount, eq=False)
    without_rules: set[tuple[Layout, ...]] = attrs.field(factory=set, eq=False, init=False)
    without_streams: set[str] = attrs.field(factory=set, eq=False, init=False)

    def __reduce__(self) -> tuple[Callable, tuple[dict[str, Any]]]:
        not_pickled = ("cohorts", "counted", "count", "without_rules", "without_streams")
        fields = {f.name: getattr(self, f.name) for f in attrs.fields(ClientWork) if f.name not in not_pickled}
        return _without_cohorts, (fields,)

    @property
    def key(self) -> tuple:
        """The stage's part of the keys of its executables, with all that `client_stage` is made of: two operations may
        run one function with other zeros. A stage pass that is declared makes them stale.

        Decision 0328.
        """
        parts = self.zero, self.stage, self.join, len(self.broadcasts), self.keeps, tuple(self.measured)
        return self.digest, *parts, stage_pass_registrations()

    @functools.cached_property
    def plan(self) -> Mapping[str, Any]:
        """The stage's attributes, such as its strategy."""
        return self.module.function(self.stage).attributes

    @functools.cached_property
    def built(self) -> Module:
        """The plan that executables are built from: with the kernels that this machine has for rounded products."""
        rounds = self.plan.get("compute_dtype") == "bfloat16" and "bfloat16-kernels" not in self.plan.get("without", ())
        if not rounds or not has_bfloat16_products() or tf.config.get_visible_devices("GPU"):
            return self.module
        return with_rewritten_graphs(
            self.module, lambda _, data, names: rewrite_graph(bfloat16_kernels, data, names, called_only=True)
        )

    def drawn(self, index: int, client: tuple) -> tuple:
        """A client's values in which the random maps of sequences have been applied; the same object without such maps.

        Args:
            index: the client's index.
        """
        if not any(getattr(leaf, "draws", False) for leaf in flatten(client)):
            return client
        seed = fold_in(self.seed, index)
        return tuple([draw_values(value, seed, n.start) for value, n in zip(client, self.numbers, strict=True)])

    @property
    def is_vectorised(self) -> bool:
        return self.plan.get("strategy") == "vectorised"

    @functools.cached_property
    def block(self) -> int:
        """Number of clients of a block."""
        return int(self.plan.get("block", 1))

    @functools.cached_property
    def table_rows(self) -> int:
        """Rows of the smallest table whose changed rows local training keeps; 0 if it keeps none."""
        return self.client_stage.table_rows

    @functools.cached_property
    def low_rank(self) -> int:
        """Rank from which local training keeps kernels low-rank; 0 if it keeps none."""
        return int(self.plan.get("low_rank", 0))

    @functools.cached_property
    def parallel(self) -> int:
        """Number of clients that the loop in the graph of a block computes at once."""
        return int(self.plan.get("parallel", PARALLEL))

    @functools.cached_property
    def schedule_rules(self) -> ScheduleRules:
        """The rules of the schedules of a vectorised stage's calls."""
        return schedule_rules(self.client_stage)

    @functools.cached_property
    def client_stage(self) -> ClientStage:
        """The stage that executables are built from."""
        return ClientStage(
            self.built, self.zero, self.stage, self.join, len(self.broadcasts), self.keeps, tuple(self.measured)
        )

    @property
    def clients(self) -> int | None:
        """Number of clients; None if it is not known before they are read."""
        return next((s for c in (*self.cohorts, self.counted) if c and (s := c.size) is not None), None)

    @property
    def client_ids(self) -> Sequence | None:
        """For each client its id; None if no cohort tells the ids."""
        opened_elsewhere = (c.given for c in self.cohorts if c.is_opened_elsewhere)
        cohorts = (c.given.client_ids for c in self.cohorts if isinstance(c.given, Cohort))
        return next((ids for ids in (*opened_elsewhere, *cohorts) if ids is not None), None)

    @functools.cached_property
    def kept_bytes(self) -> float:
        """Bytes of the value that the stage returns for each client; infinite if its type leaves them open."""
        kept_type = self.client_stage.kept_type
        if kept_type is None:
            return 0
        bits = [getattr(leaf, "size_bits", None) for _, leaf in leaves(kept_type)]
        return sum(math.inf if size is None else size for size in bits) / 8

    def slice_size(self, executors: int) -> int:
        """Number of clients of a slice: at most the plan's `call`, and small enough that every executor gets a slice.

        Args:
            executors: number of executors.
        """
        planned = int(self.plan.get("call", self.block))
        if executors == 1 or self.clients is None:
            return planned
        blocks = -(-self.clients // self.block)
        share = -(-blocks // executors)
        return min(planned, self.block << max(0, share - 1).bit_length())


def _without_cohorts(fields: dict[str, Any]) -> ClientWork:
    return ClientWork(cohorts=(), **fields)


@attrs.frozen
class ClientSlice:
    """The clients of one graph call.

    Args:
        first: index of the slice's first client.
        places: capacity: the number of clients of a full slice, a multiple of the block size.
        clients: for each client its values; None for a client that is left out. The last slice of a stage may have
            fewer clients than places.
        is_of_one_call: elements of clients were drawn by the call's seed.
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
        """The values of the present clients."""
        return [client for client in self.clients if client is not None]

    @functools.cached_property
    def leaves(self) -> ClientLeaves:
        """The leaves of the present clients' values."""
        return ClientLeaves([flatten(c) if any(isinstance(part, tuple) for part in c) else c for c in self.values])

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
        places = [i for i, leaf in enumerate(clients[0]) if isinstance(leaf, Columns)] if clients else []
        layouts = [(clients[0][i].layout, clients[0][i].batch_size) for i in places]
        for client in clients if places else ():
            sequences = [client[i] for i in places]
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
        while len(row) > 1:  # up one row of the merge tree
            above: dict[int, SliceResult] = {}
            for index, right in row.items():
                left = above.get(index // 2)
                above[index // 2] = right if left is None else _merge_results(left, right, merge)
            row = above
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

        def opened(index: int, client: tuple) -> tuple:
            own = parameters[len(parameters) - len(client) :]
            values = [_open_value(v, p.type, f"client {index}", find) for v, p in zip(client, own, strict=True)]
            return work.drawn(index, tuple(values))

        clients = (None if c is None else opened(i, c) for i, c in enumerate(self.clients, self.first))
        return ClientSlice(self.first, self.places, tuple(clients), is_of_one_call=True)

    def seeds(self, seed: int) -> np.ndarray:
        """The seeds of the present clients."""
        every = fold_in_each(seed, self.first, len(self.clients))
        return every if len(self.present) == len(every) else every[list(self.positions)]


def _open_value(value: object, type_: Type, path: str, find: Callable[[SiteValue], object]) -> object:
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
    partial = None if left.partial is None else merge(left.partial, right.partial)
    return SliceResult(partial, {**left.kept, **right.kept}, {**left.sent_bits, **right.sent_bits})

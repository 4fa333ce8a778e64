"""A client stage of a plan with its arguments."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import tensorflow as tf

from fedcore.data import Cohort
from fedcore.graphs.batched.batching_policy import schedule_rules
from fedcore.graphs.batched.cost_model import PARALLEL
from fedcore.graphs.batched.schedule import ScheduleRules
from fedcore.graphs.dataflow.passes.bfloat16_kernels import bfloat16_kernels
from fedcore.graphs.dataflow.stage_passes import stage_pass_registrations
from fedcore.graphs.graphdef.form.graph_bodies import rewrite_graph
from fedcore.graphs.sequences.columns import draw_values
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.tensors.values import flatten
from fedcore.ir import Module
from fedcore.ir.rewritten_graphs import with_rewritten_graphs
from fedcore.processor import has_bfloat16_products
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_count import ClientCount
from fedcore.seeds import fold_in
from fedcore.types import leaves


@attrs.frozen
class ClientWork:
    """One client stage of a plan with its arguments.

    Guarantees:
      - Pickles without its cohorts, `counted` and `count`: another process gets its clients in slices.

    Args:
        module: the plan.
        digest: digest of the plan.
        zero, join: names of the plan's functions that make and merge partials; None if the stage only keeps client
            values.
        stage: name of the client stage, a function of the plan.
        broadcasts: values that every client gets, nested tuples of tensors.
        cohorts: the `ClientValues`; cohort k is the stage's parameter k after the partial and the broadcasts.
        numbers: for each cohort the numbers of a value's leaves among the leaves of the call's arguments.
        keeps: the stage returns a value for each client, beside the partial.
        seed: seed of the call; a client's seed is this seed folded with the client's index.
        operation: name of the plan's operation that runs the stage.
        merge: name of the plan's operation that merges the partials.
        secure: the attribute `secure` of that operation; empty if no leaf of the partial crosses in a secure sum.
        measured: names of the stage's values that clients send and whose size is measured, see `measured_leaves`.
        counted: if the stage takes no client value, a cohort of the call, which gives the number of clients.
        count: number of the call's clients, as far as it is known.
        without_rules: layouts for which a batching rule turned out to be missing; see `FittingSlices`.
        without_streams: the stage's name, if the stage turned out to read a sequence in another way than a stream can
            be read.
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

    def __reduce__(self) -> tuple[Callable, tuple]:
        not_pickled = ("cohorts", "counted", "count", "without_rules", "without_streams")
        fields = {f.name: getattr(self, f.name) for f in attrs.fields(ClientWork) if f.name not in not_pickled}
        return functools.partial(ClientWork, cohorts=(), **fields), ()

    @property
    def key(self) -> tuple:
        """The key of the stage in caches of executables: all that `client_stage` is built from.

        The digest and the function do not suffice, since two operations may run one function with different zeros. The
        key has the declared stage passes, so that declaring one makes the executables stale.

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
        """The plan that executables are built from.

        Where products are rounded to bfloat16, and the processor has kernels for these, the plan's graphs call them.
        """
        rounds = self.plan.get("compute_dtype") == "bfloat16" and "bfloat16-kernels" not in self.plan.get("without", ())
        if not rounds or not has_bfloat16_products() or tf.config.get_visible_devices("GPU"):
            return self.module
        return with_rewritten_graphs(
            self.module, lambda _, data, names: rewrite_graph(bfloat16_kernels, data, names, called_only=True)
        )

    def drawn(self, index: int, client: tuple) -> tuple:
        """A client's values with the elements that random maps in its sequences draw, by the call's seed and the index.

        Args:
            client: the client's values, one for each cohort; the same object is returned if no map draws.
        """
        if not any(getattr(leaf, "draws", False) for leaf in flatten(client)):
            return client
        seed = fold_in(self.seed, index)
        return tuple([draw_values(value, seed, n.start) for value, n in zip(client, self.numbers, strict=True)])

    @property
    def is_vectorised(self) -> bool:
        """Whether the plan computes clients side by side, and not in a loop."""
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
        sizes = (cohort.size for cohort in (*self.cohorts, self.counted) if cohort is not None)
        return next((size for size in sizes if size is not None), None)

    @property
    def client_ids(self) -> Sequence | None:
        """For each client its id; None if no cohort has ids."""
        elsewhere_ids = (c.given for c in self.cohorts if c.is_opened_elsewhere)
        cohort_ids = (c.given.client_ids for c in self.cohorts if isinstance(c.given, Cohort))
        return next((ids for ids in (*elsewhere_ids, *cohort_ids) if ids is not None), None)

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

        Slices are a power of two of blocks, so that their partials are nodes of the merge tree over blocks.

        Args:
            executors: number of executors.
        """
        planned = int(self.plan.get("call", self.block))
        if executors == 1 or self.clients is None:
            return planned
        blocks = -(-self.clients // self.block)
        blocks_each = -(-blocks // executors)
        return min(planned, self.block << max(0, blocks_each - 1).bit_length())

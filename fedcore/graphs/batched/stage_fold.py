"""A client stage for the clients of one call, as one TensorFlow function that returns their partial.

In:  the broadcasts, then the tensors of the clients.
Out: <partial, kept values, bits, factors>, see `ClientStage.stacked_result_type`; the kept values and the bits are of
the present clients, in order.

The function has three parts:

1. Client-invariant operations (they depend on broadcasts only) run once.
2. Client operations run once for each group of clients. The values that the fold reads are the contribution of a
   client. `batched_stage` computes groups of several clients side by side, `looped_stage` one client at a time.
3. The fold runs over the clients of each block, all blocks side by side. The merge then runs over the tree of blocks.

Example: 1,000 clients of FedAvg with weights [7, 3], width 32, blocks of 8, 64 blocks a call. The first call has 512
clients in 16 groups. A group trains weights [32, 7, 3] and contributes <weighted change [32, 7, 3], weight [32]>. The
block sums are [64, 7, 3] and [64]; the merge tree reduces them to [7, 3] and [].

Leaves of the partial to which clients only append rows are not folded: the rows are gathered (`appended_rows`).

Decision 0195.

See decisions 0251 and 0282.
"""

import abc
import functools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Protocol

import attrs
import tensorflow as tf

from fedcore.graphs.batched.appended_rows import appended_rows, without_appends
from fedcore.graphs.batched.batched_interpreter import BatchedInterpreter, Presence
from fedcore.graphs.batched.batched_value import NoBatchingRule, batched, broadcast_to_clients, shared
from fedcore.graphs.batched.batching_rewrites import KNOWN_INPUTS
from fedcore.graphs.batched.block_reduction import fold_blocks, fold_next_client, sum_blocks_by_group
from fedcore.graphs.batched.client_contribution import (
    PARALLEL_GROUPS,
    ClientContribution,
    Contribution,
    Factors,
    Tensors,
    contributions_by_group,
)
from fedcore.graphs.batched.reduction import Reduction
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.emission.region_function import realized_function
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.stages.onednn import with_kernels_of
from fedcore.graphs.stages.realize import Realized, profiler_name
from fedcore.graphs.tensors.sizes import bits_of, unsized_leaves
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.module import Module, Operation, Ref, Symbol
from fedcore.ir.operations import lookup
from fedcore.ir.purity import seeded_symbols
from fedcore.types import StructType, TensorType, Type, leaves, tensor_leaves


class Group(Protocol):
    """The client operations of a group."""

    def __call__(self, first_lane: Value, factored_leaves: Mapping[int, int]) -> list[Value | Factors]:
        """The leaves [width, …], or factors, of the contributions of a group's clients.

        Args:
            first_lane: int64, the first lane of the group.
            factored_leaves: leaf of the contribution that may stay factors, since the fold only adds it -> the leaf of
                the partial to which it is added.
        """


def split_stage(stage: ClientStage) -> tuple[list[Operation], list[Operation], list[str]]:
    """(client operations, fold operations, contribution) of a stage.

    Fold operations depend on the partial; client operations do not. The contribution is the names of the values that
    fold operations read from client operations and parameters, but for rows that are appended. The operation that puts
    the partial and a kept value together is none of both.

    Raises:
        NoBatchingRule: as for `result_names`.
    """
    function = stage.function
    dependent = set() if stage.zero is None else {function.parameters[0].name}
    partial_name, kept_name = result_names(stage)
    client_operations: list[Operation] = []
    fold_operations: list[Operation] = []
    contribution: dict[str, None] = {}  # in order
    for op in function.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if not dependent.intersection(names):
            client_operations.append(op)
            continue
        if op.name == function.result.name != partial_name:
            continue
        dependent.add(op.name)
        fold_operations.append(op)
        if op.kind == "append_rows":
            continue
        contribution.update(dict.fromkeys(n for n in names if n not in dependent))
    if partial_name is not None and partial_name not in dependent:
        contribution[partial_name] = None  # the fold takes it as the partial, and leaves the partial before
    if kept_name in dependent:
        raise NoBatchingRule("struct", "the value that is kept of a client depends on other clients")
    return client_operations, fold_operations, list(contribution)


def result_names(stage: ClientStage) -> tuple[str | None, str | None]:
    """The names of the partial after a client, and of the value that is kept of the client; None for what there is not.

    Raises:
        NoBatchingRule: the stage does not put the two together by a `struct`.
    """
    function = stage.function
    if stage.zero is None:
        return None, function.result.name
    if not stage.keeps:
        return function.result.name, None
    last = next(op for op in reversed(function.operations) if op.name == function.result.name)
    if last.kind != "struct":
        raise NoBatchingRule(last.kind, "it gives the partial and the value that is kept of a client")
    partial, kept_name = (o.name for o in last.operands)
    return partial, kept_name


def _split_invariant(
    module: Module, operations: list[Operation], broadcasts: list[str]
) -> tuple[list[Operation], list[Operation]]:
    """(client-invariant operations, other operations). The former depend on broadcasts only, and on no seed.

    Args:
        operations: client operations of a stage, in order.
        broadcasts: names of the parameters that all clients share.
    """
    seeded, invariant = seeded_symbols(module), set(broadcasts)
    invariant_operations, others = [], []
    for op in operations:
        names = {o.name for o in op.operands if isinstance(o, Ref)}
        is_random = lookup(op.kind).draws or any(isinstance(o, Symbol) and o.name in seeded for o in op.operands)
        if names <= invariant and not is_random:
            invariant.add(op.name)
            invariant_operations.append(op)
        else:
            others.append(op)
    return invariant_operations, others


class StageFold(abc.ABC):
    """The parts of a stage: zero, client operations by group, and fold.

    Args:
        stage: if it has no partial, its results are those that it keeps of each client.
        width: clients of a group.
        layout: of packed clients; the default where clients are not packed.
        joined: the sum of a block's factors is one product.

    Attributes:
        parallel: groups of a call that may run in parallel.
        witness_leaves: leaves of the partial: if a left factor that was taken for finite is not, one of them is not.
        joined_rows: as in `FactoredContribution`.
        rows_of_lanes: int64 [lanes]: rows of the factors of each lane, in the graph being built; None: all.
    """

    parallel = PARALLEL_GROUPS

    def __init__(
        self,
        stage: ClientStage,
        width: int,
        layout: PackedLayout | None = None,
        *,
        joined: bool,
    ) -> None:
        """Splits the operations of the stage: those of the fold, the client-invariant ones, and a client's own."""
        self.stage = stage
        self.width = width
        self._joined = joined
        client_operations, fold_operations, self._contribution = split_stage(stage)
        self._partial_name, self._kept_name = result_names(stage)
        self._appended = appended_rows(stage, fold_operations, self._partial_name)
        self._fold_operations = without_appends(fold_operations)
        self.invariant_operations, self.client_operations = _split_invariant(
            stage.module, client_operations, [p.name for p in stage.shared_parameters]
        )
        self.types = stage.function.types()
        self.interpreter = BatchedInterpreter(
            stage.module,
            layout or PackedLayout((), ()),
            xla=stage.is_compiled,
            knows_inputs=KNOWN_INPUTS not in self.left_out,
        )
        self.invariant: dict[str, object] = {}
        self.witness_leaves: set[int] = set()
        self.joined_rows = 0
        self.rows_of_lanes: Value | None = None

    @property
    def left_out(self) -> tuple[str, ...]:
        """Stage passes and rewrites of batching that the plan switches off."""
        return tuple(self.stage.function.attributes.get("without", ()))

    # --- of the subclasses ---

    @property
    @abc.abstractmethod
    def client_specs(self) -> list[tf.TensorSpec]:
        """Specs of the clients' tensors."""

    @abc.abstractmethod
    def groups(self, tensors: list) -> tuple[list[tuple[Group, Value]], Value]:
        """Functions that run the client operations of a group.

        Args:
            tensors: of the clients.
        Returns:
            groups: functions, and for how many groups (int64) each is called, in the order of the lanes.
            lane_of: int64 [clients], the lane of each client of the call.
        """

    @property
    @abc.abstractmethod
    def has_factors(self) -> bool:
        """Whether matrices that the fold only adds may stay factors."""

    def groups_hold_blocks(self, block: int) -> bool:
        """Whether a group holds whole blocks, so that it may add them up."""
        return False

    # --- parts ---

    @property
    def contribution_specs(self) -> list[tf.TensorSpec]:
        """Specs of the leaves of one client's contribution."""
        return [spec(t) for name in self._contribution for t in tensor_leaves(self.types[name])]

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Specs of the broadcasts and of the clients' tensors."""
        return [*self.stage.shared_specs, *self.client_specs]

    def contribution(self, scope: dict, factored_leaves: Mapping[int, int]) -> list[Value | Factors]:
        """The leaves [width, …] of the contribution of a group's clients, or their factors.

        Args:
            factored_leaves: as in `Group`.
        """
        values = [value for name in self._contribution for value in flatten(scope[name])]
        factors = {i: values[i].low_rank.only_factors for i in factored_leaves if values[i].low_rank is not None}
        return [factors.get(i) or broadcast_to_clients(value, self.width) for i, value in enumerate(values)]

    def own_leaves(self, scope: dict) -> Tensors:
        """The leaves [width, …] that are returned of a group's clients: the rows that they append, and kept values."""
        values = [flatten(scope[name])[i] for name, i in self._row_sources]
        values += [] if self._kept_name is None else flatten(scope[self._kept_name])
        return [broadcast_to_clients(value, self.width) for value in values]

    @property
    def _row_sources(self) -> list[tuple[str, int]]:
        """(name of a value, number of its leaf) of the rows that a client appends, for each leaf that gets rows."""
        return [rows.right for rows in self._appended.values()]

    @property
    def own_specs(self) -> list[tf.TensorSpec]:
        """Specs of `own_leaves` of one client, then of the measured sizes."""
        types = [tensor_leaves(self.types[name])[i] for name, i in self._row_sources]
        types += [] if self.stage.kept_type is None else tensor_leaves(self.stage.kept_type)
        return [*map(spec, types), *([tf.TensorSpec([self.stage.sizes], tf.int64)] if self.stage.sizes else [])]

    def sizes_of(self, scope: dict) -> Tensors:
        """The sizes of the measured leaves of a group's clients, int64 [width, sizes]; nothing if none is measured."""
        sizes = []
        for name in self.stage.measured:
            values, types = flatten(scope[name]), leaves(self.types[name])
            for i in unsized_leaves(self.types[name]):
                sizes.append(bits_of(broadcast_to_clients(values[i], self.width), types[i][1]))
        return [ops.stack(sizes, 1)] if sizes else []

    def zeros(self) -> Tensors:
        """The initial partial, leaves [1, …], without those to which rows are appended."""
        if self.stage.zero is None:
            return []
        broadcast = [self.invariant[p.name] for p in self.stage.shared_parameters]
        zero = self.interpreter.run(self.stage.module.function(self.stage.zero), *broadcast)
        return [broadcast_to_clients(value, 1) for value in self._folded(flatten(zero))]

    def _folded(self, partial_leaves: list) -> list:
        """The leaves of a partial without those to which rows are appended."""
        return [leaf for i, leaf in enumerate(partial_leaves) if i not in self._appended]

    def _partial_of(self, folded: Tensors) -> object:
        """The partials whose folded leaves [n, …] are given; the others have no rows."""
        folded_leaves, count = iter(folded), int(folded[0].shape[0])
        specs = map(spec, tensor_leaves(self.stage.partial_type))
        leaves = [
            ops.zeros([count, 0, *s.shape[1:]], s.dtype) if i in self._appended else next(folded_leaves)
            for i, s in enumerate(specs)
        ]
        return unflatten(list(map(batched, leaves)), self.stage.partial_type)

    def fold(self, contributions: Tensors, partial_leaves: Tensors, present: Presence | None = None) -> Tensors:
        """The partials after one client of each block; leaves [blocks, …], if partials have leaves.

        Runs the fold operations of the stage with the blocks in the place of clients: [blocks, …] is a batched value.

        Args:
            contributions: leaves [blocks, …], of one client of each block.
            partial_leaves: of the partials before these clients, [blocks, …].
            present: the blocks that have such a client. Default: all.
        """
        if self._partial_name is None or not partial_leaves:
            return []
        partial = self._partial_of(partial_leaves)
        scope = {**self.invariant, self.stage.function.parameters[0].name: partial}
        values = iter([batched(t) for t in contributions])
        for name in self._contribution:
            scope[name] = unflatten([next(values) for _ in tensor_leaves(self.types[name])], self.types[name])
        with self.interpreter.occupying(present):
            self.interpreter.operations(self._fold_operations, scope, dict(self.types))
        blocks = int(partial_leaves[0].shape[0])
        return [broadcast_to_clients(value, blocks) for value in self._folded(flatten(scope[self._partial_name]))]

    def merge(self, left: Tensors, right: Tensors, present: Presence | None = None) -> Tensors:
        """The merges of pairs of partials; leaves [pairs, …].

        Args:
            present: the pairs whose two partials have clients. Default: all.
        """
        assert self.stage.join is not None  # the stage has partials
        pair = [self._partial_of(side) for side in (left, right)]
        join = self.stage.module.function(self.stage.join)
        with self.interpreter.occupying(present):
            joined = self.interpreter.run(attrs.evolve(join, operations=tuple(without_appends(join.operations))), *pair)
        return [broadcast_to_clients(value, int(left[0].shape[0])) for value in self._folded(flatten(joined))]

    def _with_rows(self, folded: Tensors, rows: Tensors, previous: Tensors | None = None) -> Tensors:
        """All leaves of a partial: those that the fold computes, and those to which each client only appends rows.

        A leaf of the second kind is the rows of all clients, one behind the other, up to its number `at_most`.

        Args:
            folded: the leaves that the fold computes.
            rows: of the other leaves, the rows of each client, [clients, rows of a client, …].
            previous: the leaves of the partial of the clients before. Default: there are none.
        """
        folded_leaves, leaves_of_rows = iter(folded), iter(rows)
        partial = []
        for i, _ in enumerate(tensor_leaves(self.stage.partial_type)):
            if i not in self._appended:
                partial.append(ops.identity(next(folded_leaves)))
                continue
            leaf, at_most = next(leaves_of_rows), self._appended[i].at_most
            leaf = ops.reshape(leaf, [-1, *leaf.shape[2:]])
            leaf = leaf if previous is None else ops.concat([previous[i], leaf], 0)
            partial.append(leaf if at_most is None else leaf[:at_most])
        return partial

    # --- functions ---

    def whole_call(self, block: int, blocks: int) -> Realized:
        """The function of a call: (broadcasts, tensors of the clients) -> <partial of all blocks, kept, bits, <>>.

        Args:
            block: clients of a block.
            blocks: blocks of a call, a power of two; blocks without clients are skipped.
        """

        def body(*tensors: Value) -> list[Value]:
            """The leaves of the partial, then the values of each present client (`own_specs`), in order.

            Args:
                tensors: of the broadcasts, then of the clients.
            """
            groups, lane_of = self._run_invariant_operations(list(tensors))
            lane_of = ops.reshape(lane_of, [blocks, block])
            reduction = self._reduction()
            holds_blocks = self.groups_hold_blocks(block)
            if holds_blocks and len(reduction.sum_only_leaves) == len(reduction.zeros):
                ((group, count),) = groups
                own: Tensors = []
                partial = sum_blocks_by_group(
                    functools.partial(group, factored_leaves=reduction.leaves_only_summed),
                    reduction,
                    lane_of,
                    count=count,
                    width=self.width,
                    parallel=self.parallel,
                    joined=self._joined,
                )
            else:
                contributions, own = self._contributions(groups, reduction)
                partial = fold_blocks(reduction, contributions, lane_of)
            if own:
                lanes = ops.reshape(lane_of, [-1])
                lanes = ops.gather(lanes, ops.where(lanes >= 0)[:, 0])
                own = [ops.gather(leaf, lanes) for leaf in own]
            rows, own = own[: len(self._appended)], own[len(self._appended) :]
            return [*self._with_rows([t[0] for t in partial], rows), *own]

        return self._realize(body, self.specs, self.stage.stacked_result_type(None))

    def next_client(self) -> Realized:
        """The function that adds one client to the partial of its block: (is_first, is_last, broadcasts, tensors of
        the client, partial after the previous clients, their joined factors) -> <partial, kept, bits, joined factors>.

        `is_first` and `is_last` are bools: whether the client is the first or the last of its block. The joined factors
        are those of leaves whose blocks are summed by one product, [r, n] and [r, m] for each.
        """
        flag = tf.TensorSpec([], tf.bool)
        partial = [spec(t) for t in tensor_leaves(self.stage.partial_type)]
        joined = self.joined_leaves
        types = [TensorType("float32", (None, size)) for shape in joined.values() for size in shape]

        def body(is_first: Value, is_last: Value, *tensors: Value) -> list[Value]:
            """The leaves of the new partial, the values of the client (`own_specs`), and the joined factors.

            Args:
                tensors: of the broadcasts and the client, then of the old partial, then the joined factors.
            """
            end_arguments, end_partial = len(tensors) - len(types) - len(partial), len(tensors) - len(types)
            previous = list(tensors[end_arguments:end_partial])
            factors = [t[None] for t in tensors[end_partial:]]
            old_partial = [t[None] for t in self._folded(previous)]
            groups, _ = self._run_invariant_operations(list(tensors[:end_arguments]))
            reduction = self._reduction()
            contributions, own = self._contributions(groups, reduction)
            pending = {j: (factors[2 * i], factors[2 * i + 1]) for i, j in enumerate(joined)}
            new_partial, pending = fold_next_client(
                reduction, contributions, old_partial, pending, is_first, is_last, self.joined_rows
            )
            rows, own = own[: len(self._appended)], own[len(self._appended) :]
            return [
                *self._with_rows([t[0] for t in new_partial], [leaf[:1] for leaf in rows], previous),
                *(leaf[:1] for leaf in own),
                *(ops.identity(t[0]) for j in joined for t in pending[j]),
            ]

        specs = [flag, flag, *self.specs, *partial, *map(spec, types)]
        result = self.stage.stacked_result_type(1, StructType([(None, t) for t in types]))
        realized = self._realize(body, specs, result)
        return attrs.evolve(realized, joined_sizes=tuple(size for shape in joined.values() for size in shape))

    @property
    def joined_leaves(self) -> dict[int, tuple[int, int]]:
        """Leaves of the contribution that may be joined factors, with their shapes."""
        shapes = {j: s.shape for j, s in enumerate(self.contribution_specs) if s.dtype == tf.float32}
        return {j: (int(s[0]), int(s[1])) for j, s in shapes.items() if self._joined and s.rank == 2}

    def _run_invariant_operations(self, tensors: list) -> tuple[list[tuple[Group, Value]], Value]:
        """Runs the client-invariant operations, and returns the functions of groups, and the lanes of clients."""
        parameters = self.stage.shared_parameters
        broadcasts = [unflatten([shared(tensors.pop(0)) for _ in leaves(p.type)], p.type) for p in parameters]
        self.invariant = dict(zip([p.name for p in parameters], broadcasts, strict=True))
        self.interpreter.operations(self.invariant_operations, self.invariant, dict(self.types))
        return self.groups(tensors)

    def _reduction(self) -> Reduction:
        return Reduction(self.fold, self.merge, self.zeros(), self.contribution_specs)

    def _contributions(
        self, groups: SequenceOf[tuple[Group, Value]], reduction: Reduction
    ) -> tuple[list[Contribution], Tensors]:
        """Runs the groups: (the contributions that the fold reads, the leaves of `own_specs` of each lane).

        Both are stored together, as leaves of one contribution; those of `own_specs` stand behind those that the fold
        reads, and are tensors [lanes + 1, …], the last entry of which belongs to no client.
        """
        specs = reduction.specs
        factored_leaves = reduction.leaves_only_summed if self.has_factors else {}
        group_calls = [(functools.partial(group, factored_leaves=factored_leaves), count) for group, count in groups]
        leaf_specs = [*specs, *self.own_specs]
        contributions = contributions_by_group(
            group_calls,
            self.width,
            leaf_specs,
            parallel=self.parallel,
            joined=self._joined,
            joined_rows=self.joined_rows,
            rows=self.rows_of_lanes,
        )
        own: dict[int, Value] = {}
        for each in contributions:
            if max(each.leaves.positions) >= len(specs):
                assert isinstance(each, ClientContribution)
                own |= each.leaves.unpack(each.concatenate())
        return contributions, [own[i] for i in range(len(specs), len(leaf_specs))]

    def _realize(self, body: Callable, specs: list[tf.TensorSpec], result: Type) -> Realized:
        name = profiler_name(self.stage.module, self.stage.name)
        function = realized_function(body, specs, name=name, without=self.left_out)
        call = with_kernels_of(self.stage.function, function)
        folded = self._folded(list(range(len(tensor_leaves(self.stage.partial_type)))))
        assumes_finite = tuple(folded[i] for i in sorted(self.witness_leaves))
        return Realized(call, result, assumes_finite=assumes_finite, stacks_kept=True)

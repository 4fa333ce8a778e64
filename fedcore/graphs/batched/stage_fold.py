"""A client stage for the clients of one call, as one TensorFlow function that returns their partial.

In:  the broadcasts, then the tensors of the clients.
Out: <partial, kept values, bits, factors>, see `ClientStage.stacked_result_type`; the kept values and the bits are of
the present clients, in order.

Client-invariant operations run once, client operations once for each group of clients (`client_groups`). The fold runs
over the clients of each block, all blocks side by side. The merge then runs over the tree of blocks.

Example: 1,000 clients of FedAvg with weights [7, 3], width 32, blocks of 8, 64 blocks a call. The first call has 512
clients in 16 groups. A group trains weights [32, 7, 3] and contributes <weighted change [32, 7, 3], weight [32]>. The
block sums are [64, 7, 3] and [64]; the merge tree reduces them to [7, 3] and [].

Leaves of the partial to which clients only append rows are not folded: the rows are gathered (`appended_rows`).

Decisions 0195 and 0330.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import attrs
import tensorflow as tf

from fedcore.graphs.batched.appended_rows import without_appends
from fedcore.graphs.batched.batched_interpreter import BatchedInterpreter, Presence
from fedcore.graphs.batched.batched_value import batched, broadcast_to_clients, shared
from fedcore.graphs.batched.batching_rewrites import KNOWN_INPUTS
from fedcore.graphs.batched.block_reduction import fold_blocks, fold_next_client, sum_blocks_by_group
from fedcore.graphs.batched.client_contribution import (
    ClientContribution,
    Contribution,
    Tensors,
    contributions_by_group,
)
from fedcore.graphs.batched.client_groups import ClientGroups, Group
from fedcore.graphs.batched.reduction import Reduction
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.batched.stage_parts import StageParts
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.emission.region_function import realized_function
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.stages.onednn import with_kernels_of
from fedcore.graphs.stages.realize import Realized, profiler_name
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.types import StructType, TensorType, Type, leaves, tensor_leaves


class StageFold:
    """The functions of a stage whose clients are computed in groups: client operations by group, and their fold.

    Args:
        layout: of the clients.
        assumes, parallel: as in `ClientGroups`.
    """

    def __init__(
        self, stage: ClientStage, layout: PackedLayout, *, assumes: bool = False, parallel: int | None = None
    ) -> None:
        self.stage = stage
        self.parts = StageParts.from_stage(stage)
        self._layout = layout
        self._interpreter = BatchedInterpreter(
            stage.module,
            PackedLayout((), (), products=layout.products),
            xla=stage.is_compiled,
            knows_inputs=KNOWN_INPUTS not in self.parts.left_out,
        )
        self.groups = ClientGroups(self.parts, layout, self._interpreter, assumes=assumes, parallel=parallel)
        self._invariant: dict[str, object] = {}

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Specs of the broadcasts and of the clients' tensors."""
        return [*self.stage.shared_specs, *self.groups.specs]

    def zeros(self) -> Tensors:
        """The initial partial, leaves [1, …], without those to which rows are appended; [] if there are no partials.

        It may read the broadcasts, so `_run_invariant_operations` comes first.
        """
        if self.stage.zero is None:
            return []
        broadcast = [self._invariant[p.name] for p in self.stage.shared_parameters]
        zero = self._interpreter.run(self.stage.module.function(self.stage.zero), *broadcast)
        return [broadcast_to_clients(value, 1) for value in self.parts.folded(flatten(zero))]

    def _partial_of(self, folded: Tensors) -> object:
        """n partials as one batched value, of their folded leaves [n, …]; the other leaves have no rows."""
        folded_leaves, count = iter(folded), int(folded[0].shape[0])
        specs = map(spec, tensor_leaves(self.stage.partial_type))
        partial_leaves = [
            ops.zeros([count, 0, *s.shape[1:]], s.dtype) if i in self.parts.appended else next(folded_leaves)
            for i, s in enumerate(specs)
        ]
        return unflatten(list(map(batched, partial_leaves)), self.stage.partial_type)

    def fold(self, contributions: Tensors, partial_leaves: Tensors, present: Presence | None = None) -> Tensors:
        """The partials after one client of each block; leaves [blocks, …], if partials have leaves.

        Runs the fold operations of the stage with the blocks in the place of clients: [blocks, …] is a batched value.

        Args:
            contributions: leaves [blocks, …], of one client of each block.
            partial_leaves: of the partials before these clients, [blocks, …].
            present: the blocks that have such a client. Default: all.
        """
        if self.parts.partial_name is None or not partial_leaves:
            return []
        partial = self._partial_of(partial_leaves)
        scope = {**self._invariant, self.stage.function.parameters[0].name: partial}
        values = iter([batched(t) for t in contributions])
        for name in self.parts.contribution:
            scope[name] = unflatten(
                [next(values) for _ in tensor_leaves(self.parts.types[name])], self.parts.types[name]
            )
        with self._interpreter.occupying(present):
            self._interpreter.operations(self.parts.fold_operations, scope, dict(self.parts.types))
        blocks = int(partial_leaves[0].shape[0])
        return [
            broadcast_to_clients(value, blocks) for value in self.parts.folded(flatten(scope[self.parts.partial_name]))
        ]

    def merge(self, left: Tensors, right: Tensors, present: Presence | None = None) -> Tensors:
        """The merges of pairs of partials; leaves [pairs, …].

        Args:
            present: the pairs whose two partials have clients. Default: all.
        """
        assert self.stage.join is not None  # the stage has partials
        pair = [self._partial_of(side) for side in (left, right)]
        join = self.stage.module.function(self.stage.join)
        with self._interpreter.occupying(present):
            joined = self._interpreter.run(
                attrs.evolve(join, operations=tuple(without_appends(join.operations))), *pair
            )
        return [broadcast_to_clients(value, int(left[0].shape[0])) for value in self.parts.folded(flatten(joined))]

    def _with_rows(self, folded: Tensors, rows: Tensors, previous: Tensors | None = None) -> Tensors:
        """All leaves of a partial: those that the fold computes, and those to which each client only appends rows.

        A leaf of the second kind is the rows of all clients, one behind the other, up to its number `at_most`.

        Args:
            folded: the leaves that the fold computes.
            rows: for each of the other leaves the rows of each client, [clients, rows of a client, …].
            previous: all leaves of the partial of the clients before. Default: there are none.
        """
        folded_leaves, client_rows = iter(folded), iter(rows)
        partial = []
        for i, _ in enumerate(tensor_leaves(self.stage.partial_type)):
            if i not in self.parts.appended:
                partial.append(ops.identity(next(folded_leaves)))
                continue
            leaf, at_most = next(client_rows), self.parts.appended[i].at_most
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
            """The leaves of the partial, then the kept values and the bits of the present clients, in order.

            Args:
                tensors: of the broadcasts, then of the clients.
            """
            groups, lane_of = self._run_invariant_operations(list(tensors))
            lane_of = ops.reshape(lane_of, [blocks, block])
            reduction = self._reduction()
            # Blocks that lie within a group are summed there, if the fold only adds to each leaf of the partial.
            if self.groups.hold_blocks(block) and len(reduction.sum_only_leaves) == len(reduction.zeros):
                ((group, count),) = groups
                own_leaves: Tensors = []
                partial = sum_blocks_by_group(
                    functools.partial(group, factored_leaves=reduction.leaves_only_summed),
                    reduction,
                    lane_of,
                    count=count,
                    width=self._layout.width,
                    parallel=self.groups.parallel,
                    joined=self._layout.joins_blocks,
                )
            else:
                contributions, own_leaves = self._contributions(groups, reduction)
                partial = fold_blocks(reduction, contributions, lane_of)
            if own_leaves:
                lanes = ops.reshape(lane_of, [-1])
                present_lanes = ops.gather(lanes, ops.where(lanes >= 0)[:, 0])
                own_leaves = [ops.gather(leaf, present_lanes) for leaf in own_leaves]
            rows, kept_values = self.parts.split_own_leaves(own_leaves)
            return [*self._with_rows([t[0] for t in partial], rows), *kept_values]

        return self._realize(body, self.specs, self.stage.stacked_result_type(None))

    def next_client(self) -> Realized:
        """The function that adds one client to the partial of its block: (broadcasts, tensors of the client, partial
        after the previous clients, their joined factors, is_first, is_last) -> <partial, kept, bits, joined factors>.

        `is_first` and `is_last` are bools: whether the client is the first or the last of its block. The joined factors
        are those of leaves whose blocks are summed by one product, [r, n] and [r, m] for each.
        """
        flag = tf.TensorSpec([], tf.bool)
        partial = [spec(t) for t in tensor_leaves(self.stage.partial_type)]
        joined = self.joined_leaves
        sizes = tuple(size for shape in joined.values() for size in shape)
        types = [TensorType("float32", (None, size)) for size in sizes]

        def body(*operands: Value) -> list[Value]:
            """The leaves of the new partial, the kept values and the bits of the client, and the joined factors.

            Args:
                operands: of the broadcasts and the client, then the old partial, the joined factors, the flags.
            """
            *tensors, is_first, is_last = operands
            end_arguments, end_partial = len(tensors) - len(types) - len(partial), len(tensors) - len(types)
            previous = tensors[end_arguments:end_partial]
            factors = [t[None] for t in tensors[end_partial:]]
            old_partial = [t[None] for t in self.parts.folded(previous)]
            groups, _ = self._run_invariant_operations(tensors[:end_arguments])
            reduction = self._reduction()
            contributions, own_leaves = self._contributions(groups, reduction)
            pending = {j: (factors[2 * i], factors[2 * i + 1]) for i, j in enumerate(joined)}
            new_partial, pending = fold_next_client(
                reduction, contributions, old_partial, pending, is_first, is_last, self._layout.joined_rows
            )
            rows, kept_values = self.parts.split_own_leaves([leaf[:1] for leaf in own_leaves])  # of the only client
            return [
                *self._with_rows([t[0] for t in new_partial], rows, previous),
                *kept_values,
                *(ops.identity(t[0]) for j in joined for t in pending[j]),
            ]

        specs = [*self.specs, *partial, *map(spec, types), flag, flag]
        result = self.stage.stacked_result_type(1, StructType([(None, t) for t in types]))
        return attrs.evolve(self._realize(body, specs, result), from_partial=True, joined_sizes=sizes)

    @property
    def joined_leaves(self) -> dict[int, tuple[int, int]]:
        """Leaf of the contribution whose blocks may be summed by one product of joined factors -> its shape (n, m)."""
        shapes = {j: s.shape for j, s in enumerate(self.parts.contribution_specs) if s.dtype == tf.float32}
        return {j: (int(s[0]), int(s[1])) for j, s in shapes.items() if self._layout.joins_blocks and s.rank == 2}

    def _run_invariant_operations(self, tensors: list) -> tuple[list[tuple[Group, Value]], Value]:
        """Runs the client-invariant operations; returns what `ClientGroups.open` makes of the clients' tensors.

        That is (the functions of groups, each with the number of its groups; the lane of each client).

        Args:
            tensors: of the broadcasts, then of the clients; those of the broadcasts are removed.
        """
        parameters = self.stage.shared_parameters
        broadcasts = [unflatten([shared(tensors.pop(0)) for _ in leaves(p.type)], p.type) for p in parameters]
        self._invariant = dict(zip([p.name for p in parameters], broadcasts, strict=True))
        self._interpreter.operations(self.parts.invariant_operations, self._invariant, dict(self.parts.types))
        return self.groups.open(tensors, self._invariant)

    def _reduction(self) -> Reduction:
        """The reduction of contributions to a partial, in the graph being built."""
        return Reduction(self.fold, self.merge, self.zeros(), self.parts.contribution_specs)

    def _contributions(
        self, groups: SequenceOf[tuple[Group, Value]], reduction: Reduction
    ) -> tuple[list[Contribution], Tensors]:
        """Runs the groups: (the contributions that the fold reads, the own leaves of the clients, `own_specs`).

        Both are stored together, as leaves of one contribution, the own leaves behind those that the fold reads. An own
        leaf is a tensor [lanes + 1, …], the last entry of which belongs to no client.
        """
        specs = reduction.specs
        factored_leaves = reduction.leaves_only_summed if self.groups.have_factors else {}
        group_calls = [(functools.partial(group, factored_leaves=factored_leaves), count) for group, count in groups]
        leaf_specs = [*specs, *self.parts.own_specs]
        contributions = contributions_by_group(
            group_calls,
            self._layout.width,
            leaf_specs,
            parallel=self.groups.parallel,
            joined=self._layout.joins_blocks,
            joined_rows=self._layout.joined_rows,
            rows=self.groups.rows_of_lanes,
        )
        leaves_by_number: dict[int, Value] = {}
        for contribution in contributions:
            if max(contribution.leaves.positions) >= len(specs):
                assert isinstance(contribution, ClientContribution)
                leaves_by_number |= contribution.leaves.unpack(contribution.concatenate())
        return contributions, [leaves_by_number[i] for i in range(len(specs), len(leaf_specs))]

    def _realize(self, body: Callable, specs: list[tf.TensorSpec], result: Type) -> Realized:
        """Traces an executable of the stage.

        Args:
            body: (tensors of `specs`) -> tensors of `result`; it runs the groups.
        """
        name = profiler_name(self.stage.module, self.stage.name)
        function = realized_function(body, specs, name=name, without=self.parts.left_out)
        call = with_kernels_of(self.stage.function, function)
        # The groups note the witness leaves while `body` is traced, by their numbers among the leaves that are folded.
        leaf_numbers = self.parts.folded(list(range(len(tensor_leaves(self.stage.partial_type)))))
        assumes_finite = tuple(leaf_numbers[i] for i in sorted(self.groups.witness_leaves))
        return Realized(call, result, assumes_finite=assumes_finite, stacks_kept=True)


def realize_batched(
    stage: ClientStage,
    layout: PackedLayout,
    *,
    block: int,
    blocks: int,
    assumes: bool = False,
    parallel: int | None = None,
) -> Realized:
    """The function of a call; see `StageFold.whole_call`.

    Args:
        assumes: the function may assume that clients' work is finite, see `Realized.assumes_finite`.
        parallel: as in `ClientGroups`.
    """
    fold = StageFold(stage, layout, assumes=assumes, parallel=parallel)
    realized = fold.whole_call(block, blocks)
    if fold.groups.lacks_witness:
        fold = StageFold(stage, layout, parallel=parallel)
        realized = fold.whole_call(block, blocks)
    return fold.groups.with_products(realized)

"""A client stage whose clients are computed side by side, in groups along a leading client axis.

In:  broadcasts, then the tensors of `pack_clients`. Out: see `stage_fold`.

A group of `width` clients has the lanes first_lane … first_lane + width - 1 of the call. Its function computes what the
fold reads of these clients: tensors [width, …], or matrices as factors (left, right) where the fold only adds them.

Decision 0233.
"""

import functools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_sequence import BatchedSequence
from fedcore.graphs.batched.batched_value import Presence, batched
from fedcore.graphs.batched.block_reduction import MAX_SEQUENTIAL_TERMS
from fedcore.graphs.batched.client_contribution import PARALLEL_GROUPS_OF_LOOPS, Factors
from fedcore.graphs.batched.data_products import GivenProducts, data_products
from fedcore.graphs.batched.row_layouts import RowLayout
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.batched.stage_fold import Group, StageFold
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value, building
from fedcore.graphs.graphdef.form.operations import has_loops
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.stages.onednn import with_kernels_of
from fedcore.graphs.stages.realize import Products, Realized, profiler_name
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.ir.module import Parameter
from fedcore.types import SequenceType, TensorType, Type, leaves, tensor_leaves


def packed_specs(client_leaves: SequenceOf[Type], layout: PackedLayout) -> list[tf.TensorSpec]:
    """Specs of the tensors that `pack_clients` returns for arguments with the given leaves."""
    specs = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)]
    for leaf, sequence, batch_rows in zip(client_leaves, layout.layouts, layout.batch_rows, strict=True):
        if sequence is not None:
            specs.extend(layout.rows.specs(sequence, batch_rows))
            continue
        (tensor_spec,) = [spec(t) for t in tensor_leaves(leaf)]
        specs.append(tf.TensorSpec([None, *tensor_spec.shape], tensor_spec.dtype))
    return specs


class BatchedFold(StageFold):
    """The parts of a batched stage.

    Args:
        layout: of the packed clients.
        assumes: left factors may be taken to be finite, which `LowRank.finiteness_of_sum` then does.

    Attributes:
        lacks_witness: a left factor was taken for finite, and if it is not, no leaf of the partial shows it.
    """

    def __init__(
        self,
        stage: ClientStage,
        layout: PackedLayout,
        *,
        assumes: bool = False,
    ) -> None:
        """Groups of stages whose graphs have loops may run in greater number at a time, see the constants."""
        super().__init__(stage, layout.width, layout, joined=layout.joins_blocks)
        self.joined_rows = layout.joined_rows
        self._layout = layout
        self._assumes = assumes
        self.lacks_witness = False
        self._given: GivenProducts | None = None
        if has_loops(stage.module):
            self.parallel = PARALLEL_GROUPS_OF_LOOPS

    @property
    def client_specs(self) -> list[tf.TensorSpec]:
        product_specs = [tf.TensorSpec([None], tf.float32)] if self._layout.is_given_products else []
        return [*packed_specs(self.stage.client_leaves, self._layout), *product_specs]

    @property
    def has_factors(self) -> bool:
        """The matrix of a client that exceeds `low_rank_steps` is more than a product of factors."""
        is_low_rank = bool(self._layout.low_rank_steps)
        return is_low_rank and (not self._layout.exceeds_low_rank or self._layout.joins_blocks)

    def groups_hold_blocks(self, block: int) -> bool:
        layout = self._layout
        holds = layout.equal_steps and (layout.keeps_one_step or not layout.low_rank_steps)
        return holds and not self.width % block and block <= MAX_SEQUENTIAL_TERMS and not self.own_specs

    def groups(self, tensors: list) -> tuple[list[tuple[Group, Value]], Value]:
        """The functions of groups with the number of groups of each, and the lanes of clients; see `StageFold.groups`.

        There is one function for all groups, except where groups differ in the graph (`_functions_of_groups`).
        """
        seeds, lane_of = tensors.pop(0), tensors.pop(0)
        arguments = _client_arguments(self.stage.client_parameters, self._layout, tensors)
        if self._layout.products and self._layout.low_rank_steps:
            rows = self._rows(arguments)
            self.rows_of_lanes = rows.own_rows if self._layout.has_own_factors else rows.rows_of_batches
        if self._layout.is_given_products:
            self._given = GivenProducts(tensors.pop(0), self._rows(arguments), self.width)
        lanes = ops.size(seeds, tf.int64)

        def has_client() -> Value:
            """Bool [lanes]: the lanes with a client, computed once for all groups, where a rule asks for it."""
            with building(lane_of.block):  # absent clients have the lane -1, which is left out
                return ops.unsorted_segment_sum(lane_of * 0 + 1, lane_of, lanes) > 0

        group = functools.partial(self._run_group, arguments, seeds, has_client)
        return self._functions_of_groups(group, arguments, lanes // self.width), lane_of

    def _functions_of_groups(self, group: Callable, arguments: list, count: Value) -> list[tuple[Group, Value]]:
        """The functions of groups, in the order of the groups, each with the number of groups (int64) that it computes.

        With levels of padded batches there is one for each level, the largest first. If clients exceed `low_rank_steps`
        in a way that changes the graph, the groups of these clients come first, with a function of their own; their
        kernels are dense if kernels are kept low-rank for clients of one step only. Otherwise one serves all groups.

        Args:
            group: `_run_group` for the arguments.
            arguments: of all clients.
            count: int64, the number of groups.
        """
        layout = self._layout
        if layout.levels:
            largest = ops.reduce_max(ops.reshape(self._rows(arguments).sizes, [count, -1]), axis=1)  # of each group
            bounds = zip(layout.levels, [*layout.levels[1:], -1], strict=True)
            counts = [
                ops.reduce_sum(ops.cast((largest <= level) & (largest > below), tf.int64)) for level, below in bounds
            ]
            return list(zip([functools.partial(group, level=level) for level in layout.levels], counts, strict=True))
        if not layout.has_longer_groups:
            return [(group, count)]
        # A group is longer if its first lane, whose client takes most steps, has a batch behind the low-rank steps.
        sizes = self._rows(arguments).sizes[:: self.width, layout.low_rank_steps]
        longer = ops.reduce_sum(ops.cast(sizes > 0, tf.int64))
        longer_layout = attrs.evolve(layout, low_rank_steps=0) if layout.keeps_one_step else layout
        return [
            (functools.partial(group, layout=longer_layout), longer),
            (functools.partial(group, layout=attrs.evolve(layout, exceeds_low_rank=False)), count - longer),
        ]

    def _run_group(
        self,
        arguments: list,
        seeds: Value,
        has_client: Presence,
        first_lane: Value,
        factored_leaves: Mapping[int, int],
        layout: PackedLayout | None = None,
        level: int | None = None,
    ) -> list[Value | Factors]:
        """Builds the work of one group: contributions [width, …] or factors, then `own_leaves`, then measured sizes.

        With `assumes`, the interpreter collects left factors that it takes for finite instead of testing them.

        Args:
            arguments: of all clients of the call, as batched values and sequences.
            seeds: int64 [lanes].
            has_client: builds bool [lanes].
            first_lane: int64, the first lane of the group.
            factored_leaves: leaf of the contribution that may stay factors -> the leaf of the partial that adds it.
            layout: of the group's clients. Default: that of the call.
            level: the padded size of the group's batches; None: that of the layout.
        """
        layout = layout or self._layout
        factored_leaves = {} if layout.exceeds_low_rank else factored_leaves
        lanes = Window(first_lane, self.width)
        group_arguments = [_group_of(v, lanes, first_lane, level) for v in arguments]
        names = [p.name for p in self.stage.client_parameters]
        scope = {**self.invariant, **dict(zip(names, group_arguments, strict=True))}
        assumed_finite: list[Value] = []
        seed = tensor_seed(lanes.of(seeds))
        products = None if self._given is None else functools.partial(self._given.products_of_group, first_lane)
        assumptions = assumed_finite if self._assumes and factored_leaves else None
        with (
            self.interpreter.using(layout, assumptions, products),
            self.interpreter.occupying(lambda: lanes.of(has_client())),
        ):
            self.interpreter.operations(self.client_operations, scope, dict(self.types), seed)
        leaves = self.contribution(scope, factored_leaves)
        self._note_witnesses(assumed_finite, leaves, factored_leaves)
        return [*leaves, *self.own_leaves(scope), *self.sizes_of(scope)]

    def _note_witnesses(
        self, assumed_finite: list[Value], leaves: list[Value | Factors], factored_leaves: Mapping[int, int]
    ) -> None:
        """Notes for each left factor that was taken for finite the leaf of the partial that adds its product.

        If the factor is not finite, neither is that leaf, which the runtime tests. Without such a leaf nobody would
        notice, so the stage is built again without assumptions (`lacks_witness`).
        """
        witness_of = {id(f[0]): factored_leaves[i] for i, f in enumerate(leaves) if isinstance(f, tuple)}
        self.witness_leaves.update(witness_of[id(left)] for left in assumed_finite if id(left) in witness_of)
        self.lacks_witness |= any(id(left) not in witness_of for left in assumed_finite)

    @staticmethod
    def _rows(arguments: list) -> RowLayout:
        """The packed rows of the only sequence of the clients."""
        (sequence,) = [x for value in arguments for x in flatten(value) if isinstance(x, BatchedSequence)]
        return sequence.rows

    def with_products(self, realized: Realized) -> Realized:
        """The function of a call, with the function of the products that it takes as an operand, if its groups use any.

        That function's operands are the columns, the index and the sizes of the clients' sequence, which are operands
        of the call as well: `operands` has their numbers.
        """
        if self._given is None or self._given.layer_input is None:
            return realized
        layouts = enumerate(self._layout.layouts, 2)  # operands 0 and 1 are the seeds and the lanes
        ((first, sequence_layout),) = [(i, layout) for i, layout in layouts if layout is not None]
        operands = tuple(range(first, first + len(sequence_layout.column_specs()) + 2))
        specs = [packed_specs(self.stage.client_leaves, self._layout)[i] for i in operands]
        name = profiler_name(self.stage.module, "products")
        call = data_products(
            self._given,
            specs,
            has_own_products=bool(self._layout.products),
            name=name,
            without=self.left_out,
        )
        function = Realized(with_kernels_of(self.stage.function, call), TensorType("float32", (None,)))
        return attrs.evolve(realized, products=Products(function, operands))


def realize_batched(
    stage: ClientStage, layout: PackedLayout, *, block: int, blocks: int, assumes: bool = False
) -> Realized:
    """The function of a call; see `StageFold.whole_call`.

    Args:
        layout: of the packed clients.
        assumes: the function may assume that clients' work is finite, see `Realized.assumes_finite`.
    """
    fold = BatchedFold(stage, layout, assumes=assumes)
    realized = fold.whole_call(block, blocks)
    if fold.lacks_witness:
        fold = BatchedFold(stage, layout)
        realized = fold.whole_call(block, blocks)
    return fold.with_products(realized)


def _client_arguments(parameters: SequenceOf[Parameter], layout: PackedLayout, tensors: list) -> list:
    """The arguments of all clients, as batched values and sequences.

    Args:
        tensors: tensors of `pack_clients`, in order; they are removed from the list.
    """
    layouts = zip(layout.layouts, layout.batch_rows, strict=True)
    arguments = []
    for parameter in parameters:
        values: list = []
        for _, leaf in leaves(parameter.type):
            sequence, batch_rows = next(layouts)
            if sequence is None or not isinstance(leaf, SequenceType):
                values.append(batched(tensors.pop(0)))
                continue
            columns = tuple(tensors.pop(0) for _ in sequence.column_specs())
            index, sizes = tensors.pop(0), tensors.pop(0)
            values.append(BatchedSequence(sequence, layout.rows(columns, index, sizes, batch_rows)))
        arguments.append(unflatten(values, parameter.type))
    return arguments


def _group_of(value: Nested, lanes: Window, first_lane: Value, level: int | None) -> Nested:
    """A group's part of an argument of all clients; `level`, if not None, is the padded size of its batches."""
    if isinstance(value, tuple):
        return tuple(_group_of(part, lanes, first_lane, level) for part in value)
    if not isinstance(value, BatchedSequence):
        return batched(lanes.of(value.tensor))
    sequence = value.group(lanes, first_lane)
    return sequence if level is None else sequence.at_level(level)

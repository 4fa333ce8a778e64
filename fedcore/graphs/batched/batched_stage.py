"""A client stage whose clients are computed side by side, in groups along a leading client axis.

In:  broadcasts, then the tensors of `pack_clients`. Out: see `stage_fold`.

Decision 0233.
"""

import functools
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_sequence import BatchedSequence
from fedcore.graphs.batched.batched_value import batched, broadcast_to_clients
from fedcore.graphs.batched.block_reduction import MAX_SEQUENTIAL_TERMS
from fedcore.graphs.batched.client_contribution import PARALLEL_GROUPS_OF_LOOPS, Factors
from fedcore.graphs.batched.data_products import GivenProducts, data_products
from fedcore.graphs.batched.known_inputs import DataRows, KnownInputs
from fedcore.graphs.batched.row_layouts import RowLayout
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.batched.stage_fold import Group, StageFold, or_factors
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.form.parsed_graph import has_loops
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
        is_blind: of a left factor that was taken for finite, no leaf of the partial would tell that it is not.
    """

    def __init__(
        self,
        stage: ClientStage,
        layout: PackedLayout,
        *,
        assumes: bool = False,
    ) -> None:
        super().__init__(stage, layout.width, layout, joined=layout.joins_blocks)
        self.joined_rows = layout.joined_rows
        self._layout = layout
        self._assumes = assumes
        self.is_blind = False
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
        """There may be two functions if clients exceed `low_rank_steps`: the groups of these are the first ones. Their
        kernels are dense if kernels are kept low-rank for clients of one step only. There is a function for each level
        of padded batches, the largest first.
        """
        seeds, lane_of = tensors.pop(0), tensors.pop(0)
        arguments = _client_arguments(self.stage.client_parameters, self._layout, tensors)
        if self._layout.products and self._layout.low_rank_steps:
            rows = self._rows(arguments)
            self.rows_of_lanes = rows.own_rows if self._layout.has_own_factors else rows.rows_of_batches
            if rows.begins is not None and not self._layout.has_longer_groups:
                self.data_rows = DataRows(rows.columns, rows.begins)
        call_products = None
        if self._layout.is_given_products:
            self._given = call_products = GivenProducts(tensors.pop(0), self._rows(arguments), self.width)

        def group(
            first_lane: Value,
            in_factors: Mapping[int, int],
            layout: PackedLayout = self._layout,
            level: int | None = None,
        ) -> list[Value | Factors]:
            in_factors = {} if layout.exceeds_low_rank else in_factors
            lanes = Window(first_lane, self.width)
            group_arguments = [_group_of(v, lanes, first_lane, level) for v in arguments]
            names = [p.name for p in self.stage.client_parameters]
            scope = {**self.invariant, **dict(zip(names, group_arguments, strict=True))}
            seed = tensor_seed(lanes.of(seeds))
            assumed: list[Value] = []
            products = None if call_products is None else call_products.group_products(first_lane)
            assumes = assumed if self._assumes and in_factors else None
            with self.interpreter.using(layout, assumes, products) as known_inputs:
                self.interpreter.operations(self.client_operations, scope, dict(self.types), seed)
            contributions = enumerate(self.contribution(scope))
            leaves = [or_factors(value, self.width, may_be_factors=i in in_factors) for i, value in contributions]
            telling = {id(f[0]): in_factors[i] for i, f in enumerate(leaves) if isinstance(f, tuple)}
            self.telling.update(telling[id(left)] for left in assumed if id(left) in telling)
            self.is_blind |= any(id(left) not in telling for left in assumed)
            if self.data_rows is not None:
                leaves = [_with_input(leaf, known_inputs) for leaf in leaves]
            own_values = [broadcast_to_clients(value, self.width) for value in self.own_leaves(scope)]
            return [*leaves, *own_values, *self.sizes_of(scope)]

        count, layout = ops.size(seeds, tf.int64) // self.width, self._layout
        if layout.levels:
            largest = ops.reduce_max(ops.reshape(self._rows(arguments).sizes, [count, -1]), axis=1)
            below = [*layout.levels[1:], -1]
            each = zip(layout.levels, below, strict=True)
            counts = [ops.reduce_sum(ops.cast((largest <= a) & (largest > b), tf.int64)) for a, b in each]
            functions = [functools.partial(group, level=level) for level in layout.levels]
            return list(zip(functions, counts, strict=True)), lane_of
        if not layout.has_longer_groups:
            return [(group, count)], lane_of
        sizes = self._rows(arguments).sizes[:: self.width, layout.low_rank_steps]
        longer = ops.reduce_sum(ops.cast(sizes > 0, tf.int64))
        longer_layout = attrs.evolve(layout, low_rank_steps=0) if layout.keeps_one_step else layout
        layouts = longer_layout, attrs.evolve(layout, exceeds_low_rank=False)
        first, others = (functools.partial(group, layout=group_layout) for group_layout in layouts)
        return [(first, longer), (others, count - longer)], lane_of

    @staticmethod
    def _rows(arguments: list) -> RowLayout:
        """The packed rows of the only sequence of the clients."""
        (sequence,) = [x for value in arguments for x in flatten(value) if isinstance(x, BatchedSequence)]
        return sequence.rows

    def with_products(self, realized: Realized) -> Realized:
        """The function of a call, with that of the products which its groups have asked for."""
        if self._given is None or self._given.of is None:
            return realized
        layouts = enumerate(self._layout.layouts, 2)  # behind the seeds and the lanes
        ((first, sequence_layout),) = [(i, layout) for i, layout in layouts if layout is not None]
        operands = tuple(range(first, first + len(sequence_layout.column_specs()) + 2))
        specs = [packed_specs(self.stage.client_leaves, self._layout)[i] for i in operands]
        name = profiler_name(self.stage.module, "products")
        call = data_products(
            self._given,
            specs,
            has_own_products=bool(self._layout.products),
            name=name,
            without=self.stage_passes_left_out,
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
    if fold.is_blind:
        fold = BatchedFold(stage, layout)
        realized = fold.whole_call(block, blocks)
    return fold.with_products(realized)


def _with_input(leaf: Value | Factors, known_inputs: SequenceOf[KnownInputs]) -> Value | Factors:
    """The leaf, with an input in the place of the left factor, if that is one."""
    if not isinstance(leaf, tuple):
        return leaf
    left, right = leaf
    return next(
        (left_input for inputs in known_inputs if (left_input := inputs.input_of(left)) is not None), left
    ), right


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

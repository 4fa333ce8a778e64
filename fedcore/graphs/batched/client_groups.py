"""The client operations of a stage, in groups of clients.

In:  the tensors of the clients: those of `pack_clients`, or of clients alone the seed of each client, the lane of each
     client of a call, and the tensors of `pack_for_loop`.
Out: what the fold reads of the clients of a group: tensors [width, …], or matrices as factors (left, right) where the
     fold only adds them.

A group of `width` clients has the lanes first_lane … first_lane + width - 1 of the call, side by side along a leading
client axis. Clients *alone* are groups of one (`client_lane`): each trains over its own batches, of any number of rows,
with values without a client axis. Such a client has large kernels, whose changes stay factors.

Example: a block of 4 clients alone train a convolutional network. The change of the kernel [3136, 512] of a dense layer
stays two factors, and the block's sum is one product of the factors of all clients, so that no change is made.

Decision 0233.
"""

import functools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Protocol

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_interpreter import BatchedInterpreter
from fedcore.graphs.batched.batched_sequence import BatchedSequence
from fedcore.graphs.batched.batched_value import Presence, batched
from fedcore.graphs.batched.block_reduction import MAX_SEQUENTIAL_TERMS
from fedcore.graphs.batched.client_contribution import PARALLEL_GROUPS, PARALLEL_GROUPS_OF_LOOPS, Factors
from fedcore.graphs.batched.client_lane import as_values, call_graph
from fedcore.graphs.batched.data_products import DataProducts, data_products
from fedcore.graphs.batched.row_layouts import RowLayout
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.batched.stage_parts import StageParts
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value, building
from fedcore.graphs.graphdef.form.operations import has_loops
from fedcore.graphs.stages.client_loop import client_arguments, client_specs
from fedcore.graphs.stages.onednn import with_kernels_of
from fedcore.graphs.stages.realize import Products, Realized, profiler_name
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.ir.module import Parameter
from fedcore.types import SequenceType, TensorType, Type, leaves, tensor_leaves


class Group(Protocol):
    """The client operations of a group."""

    def __call__(self, first_lane: Value, factored_leaves: Mapping[int, int]) -> list[Value | Factors]:
        """The leaves [width, …], or factors, of the contributions of a group's clients.

        Args:
            first_lane: int64, the first lane of the group.
            factored_leaves: leaf of the contribution that may stay factors, since the fold only adds it -> the leaf of
                the partial to which it is added.
        """


def packed_specs(client_leaves: SequenceOf[Type], layout: PackedLayout) -> list[tf.TensorSpec]:
    """Specs of the tensors that `pack_clients` returns for arguments with the given leaves."""
    specs = [*_NUMBERS_OF_LANES]
    for leaf, sequence, batch_rows in zip(client_leaves, layout.layouts, layout.batch_rows, strict=True):
        if sequence is not None:
            specs.extend(layout.rows.specs(sequence, batch_rows))
            continue
        (tensor_spec,) = [spec(t) for t in tensor_leaves(leaf)]
        specs.append(tf.TensorSpec([None, *tensor_spec.shape], tensor_spec.dtype))
    return specs


class ClientGroups:
    """Functions that run the client operations of groups of clients.

    Args:
        layout: of the clients of a call.
        parts: the operations of the stage, split into those of clients and those of the fold.
        interpreter: has run the client-invariant operations, whose results may be functions that it has bound.
        assumes: left factors are taken to be finite without a test, see `LowRank.finiteness_of_sum`.
        parallel: groups that may run at once. Default: more if the stage's graphs have loops, see the constants.

    Attributes:
        witness_leaves: leaves of the partial: if a left factor that was taken for finite is not, one of them is not.
        lacks_witness: a left factor was taken for finite, and if it is not, no leaf of the partial shows it.
        rows_of_lanes: int64 [lanes]: rows of the factors of each lane, in the graph being built; None: all.
    """

    def __init__(
        self,
        parts: StageParts,
        layout: PackedLayout,
        interpreter: BatchedInterpreter,
        *,
        assumes: bool = False,
        parallel: int | None = None,
    ) -> None:
        self._parts = parts
        self._stage = parts.stage
        self._layout = layout
        self._interpreter = interpreter
        self._assumes = assumes
        self._data_products: DataProducts | None = None  # a group that is built notes in it the input that it reads
        self.parallel = parallel or (PARALLEL_GROUPS_OF_LOOPS if has_loops(parts.stage.module) else PARALLEL_GROUPS)
        self.witness_leaves: set[int] = set()
        self.lacks_witness = False
        self.rows_of_lanes: Value | None = None

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Specs of the clients' tensors."""
        layout = self._layout
        if layout.is_alone:
            return [*_NUMBERS_OF_LANES, *(s for leaf in client_specs(self._stage, layout.layouts) for s in leaf)]
        product_specs = [tf.TensorSpec([None], tf.float32)] if layout.takes_products else []
        return [*packed_specs(self._stage.client_leaves, layout), *product_specs]

    @property
    def have_factors(self) -> bool:
        """Whether matrices that the fold only adds may stay factors.

        The matrix of a client that exceeds `low_rank_steps` is more than a product of factors.
        """
        if self._layout.table_rows:
            return True
        is_low_rank = bool(self._layout.low_rank_steps)
        return is_low_rank and (not self._layout.exceeds_low_rank or self._layout.joins_blocks)

    def hold_blocks(self, block: int) -> bool:
        """Whether a group holds whole blocks, so that it may add them up."""
        layout = self._layout
        holds = layout.equal_steps and (layout.keeps_one_step or not layout.low_rank_steps)
        return holds and not layout.width % block and block <= MAX_SEQUENTIAL_TERMS and not self._parts.own_specs

    def open(self, tensors: list, invariant: Mapping[str, object]) -> tuple[list[tuple[Group, Value]], Value]:
        """Functions that run the client operations of a group.

        There is one function for all groups, except where groups differ in the graph (`_functions_of_groups`).

        Args:
            tensors: of the clients.
            invariant: names of broadcasts and of client-invariant operations -> values.
        Returns:
            groups: functions, and for how many groups (int64) each is called, in the order of the lanes.
            lane_of: int64 [clients], the lane of each client of the call.
        """
        seeds, lane_of, *tensors = tensors
        lanes = ops.size(seeds, tf.int64)
        if self._layout.is_alone:
            run_client = functools.partial(self._run_client, tensors, seeds, dict(invariant))
            return [(run_client, lanes)], lane_of
        arguments = _client_arguments(self._stage.client_parameters, self._layout, tensors)
        if self._layout.products and self._layout.low_rank_steps:
            rows = self._rows(arguments)
            self.rows_of_lanes = rows.own_rows if self._layout.has_own_factors else rows.rows_of_batches
        if self._layout.takes_products:
            self._data_products = DataProducts(tensors.pop(0), self._rows(arguments), self._layout.width)

        def has_client() -> Value:
            """bool [lanes]: the lanes with a client, computed once for all groups, where a rule asks for it."""
            with building(lane_of.block):  # absent clients have the lane -1, which a segment sum leaves out
                return ops.unsorted_segment_sum(lane_of * 0 + 1, lane_of, lanes) > 0

        group = functools.partial(self._run_group, arguments, seeds, dict(invariant), has_client)
        return self._functions_of_groups(group, arguments, lanes // self._layout.width), lane_of

    def _functions_of_groups(self, group: Callable, arguments: list, count: Value) -> list[tuple[Group, Value]]:
        """The functions of groups, in the order of the groups, each with the number of groups (int64) that it computes.

        Schedules sort groups by level, then by number of steps, so those of one function are neighbours. With levels of
        padded batches there is one function for each level, the largest first. If clients exceed `low_rank_steps` in a
        way that changes the graph, the groups of these clients come first, with a function of their own; their kernels
        are dense if kernels are kept low-rank for clients of one step only. Otherwise one serves all groups.

        Args:
            group: `_run_group` for the arguments.
            arguments: of all clients.
            count: int64, the number of groups.
        """
        layout = self._layout
        if layout.levels:
            largest = ops.reduce_max(ops.reshape(self._rows(arguments).sizes, [count, -1]), axis=1)  # of each group
            # A group has the smallest level into which its largest batch fits.
            bounds = zip(layout.levels, [*layout.levels[1:], -1], strict=True)
            counts = [
                ops.reduce_sum(ops.cast((largest <= level) & (largest > smaller_level), tf.int64))
                for level, smaller_level in bounds
            ]
            return list(zip([functools.partial(group, level=level) for level in layout.levels], counts, strict=True))
        if not layout.has_longer_groups:
            return [(group, count)]
        # A group is longer if its first lane, whose client takes most steps, has a batch behind the low-rank steps.
        sizes = self._rows(arguments).sizes[:: layout.width, layout.low_rank_steps]
        longer_count = ops.reduce_sum(ops.cast(sizes > 0, tf.int64))
        longer_layout = attrs.evolve(layout, low_rank_steps=0) if layout.keeps_one_step else layout
        return [
            (functools.partial(group, layout=longer_layout), longer_count),
            (functools.partial(group, layout=attrs.evolve(layout, exceeds_low_rank=False)), count - longer_count),
        ]

    def _run_client(
        self, tensors: list, seeds: Value, invariant: dict, first_lane: Value, factored_leaves: Mapping[int, int]
    ) -> list[Value | Factors]:
        """Builds the work of a client alone, the only one of its group; see `_run`.

        Args:
            tensors: of all clients of the call, as `pack_for_loop` gives them.
            seeds: int64 [lanes].
            invariant: as for `open`.
            first_lane: int64, its lane.
            factored_leaves: as in `Group`.
        """
        layouts, remaining = self._layout.layouts, iter(tensors)
        leaf_tensors = [[next(remaining) for _ in leaf] for leaf in client_specs(self._stage, layouts)]
        arguments = client_arguments(self._stage, layouts, leaf_tensors, first_lane, call_graph)
        with self._interpreter.using(self._layout, None):
            return self._run(list(map(as_values, arguments)), seeds[first_lane], invariant, factored_leaves)

    def _run_group(
        self,
        arguments: list,
        seeds: Value,
        invariant: dict,
        has_client: Presence,
        first_lane: Value,
        factored_leaves: Mapping[int, int],
        layout: PackedLayout | None = None,
        level: int | None = None,
    ) -> list[Value | Factors]:
        """Builds the work of one group of packed clients; see `_run`.

        With `assumes`, the interpreter collects left factors that it takes for finite instead of testing them.

        Args:
            arguments: of all clients of the call, as batched values and sequences.
            seeds: int64 [lanes].
            invariant: as for `open`.
            has_client: builds bool [lanes].
            first_lane: int64, the first lane of the group.
            factored_leaves: as in `Group`.
            layout: of the group's clients. Default: that of the call.
            level: the padded size of the group's batches; None: that of the layout.
        """
        layout = layout or self._layout
        factored_leaves = {} if layout.exceeds_low_rank else factored_leaves
        lanes = Window(first_lane, layout.width)
        group_arguments = [_slice_group(v, lanes, first_lane, level) for v in arguments]
        assumed_finite: list[Value] = []
        products = (
            None
            if self._data_products is None
            else functools.partial(self._data_products.products_of_group, first_lane)
        )
        assumptions = assumed_finite if self._assumes and factored_leaves else None
        with (
            self._interpreter.using(layout, assumptions, products),
            self._interpreter.occupying(lambda: lanes.of(has_client())),
        ):
            leaves = self._run(group_arguments, lanes.of(seeds), invariant, factored_leaves)
        self._note_witnesses(assumed_finite, leaves, factored_leaves)
        return leaves

    def _run(
        self, arguments: list, seed: Value, invariant: dict, factored_leaves: Mapping[int, int]
    ) -> list[Value | Factors]:
        """Builds the work of a group: contributions [width, …] or factors, then the leaves that pass by the fold
        (`StageParts.own_leaves`): appended rows, kept values, sizes of messages.

        Args:
            arguments: of the group's clients.
            seed: int64, [width], or [] for a client alone.
            invariant: as for `open`.
            factored_leaves: as in `Group`.
        """
        parts, width = self._parts, self._layout.width
        names = [p.name for p in self._stage.client_parameters]
        scope = {**invariant, **dict(zip(names, arguments, strict=True))}
        self._interpreter.operations(parts.client_operations, scope, dict(parts.types), tensor_seed(seed))
        return [*parts.contribution_leaves(scope, width, factored_leaves), *parts.own_leaves(scope, width)]

    def _note_witnesses(
        self, assumed_finite: list[Value], leaves: list[Value | Factors], factored_leaves: Mapping[int, int]
    ) -> None:
        """Notes for each left factor that was taken for finite the leaf of the partial that adds its product.

        If the factor is not finite, neither is that leaf, which the runtime tests. Without such a leaf nobody would
        notice, so the stage is built again without assumptions (`lacks_witness`).

        Args:
            leaves: of the group's contributions.
            factored_leaves: as in `Group`.
        """
        # id of a left factor -> leaf of the partial
        witness_of = {id(f[0]): factored_leaves[i] for i, f in enumerate(leaves) if isinstance(f, tuple)}
        self.witness_leaves.update(witness_of[id(left)] for left in assumed_finite if id(left) in witness_of)
        self.lacks_witness |= any(id(left) not in witness_of for left in assumed_finite)

    @staticmethod
    def _rows(arguments: list) -> RowLayout:
        """The packed rows of the only sequence of the clients."""
        (sequence,) = [x for value in arguments for x in flatten(value) if isinstance(x, BatchedSequence)]
        return sequence.rows

    def with_products(self, realized: Realized) -> Realized:
        """The function of a call, with the function that computes its last operand: products of a first layer's inputs.

        A runtime computes these products once, and keeps them while it keeps the clients' data. Their function's
        operands are the columns, the index and the sizes of the clients' sequence, which are operands of the call as
        well: `Products.operands` has their numbers. Called once the groups are built; if none reads such products, the
        function of the call is returned as it is.
        """
        if self._data_products is None or self._data_products.layer_input is None:
            return realized
        layouts = enumerate(self._layout.layouts, 2)  # operands 0 and 1 are the seeds and the lanes
        ((first, sequence_layout),) = [(i, layout) for i, layout in layouts if layout is not None]
        operands = tuple(range(first, first + len(sequence_layout.column_specs()) + 2))
        specs = [packed_specs(self._stage.client_leaves, self._layout)[i] for i in operands]
        name = profiler_name(self._stage.module, "products")
        call = data_products(
            self._data_products,
            specs,
            has_own_products=bool(self._layout.products),
            name=name,
            without=self._parts.left_out,
        )
        function = Realized(with_kernels_of(self._stage.function, call), TensorType("float32", (None,)))
        return attrs.evolve(realized, products=Products(function, operands))


_NUMBERS_OF_LANES = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)]
"""Specs of the seeds, and of the lane of each client."""


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


def _slice_group(value: Nested, lanes: Window, first_lane: Value, level: int | None) -> Nested:
    """The part of an argument of all clients that belongs to the clients of a group.

    Args:
        value: a batched value or sequence, or a nested tuple of these.
        level: the padded size of the group's batches; None: that of the call.
    """
    if isinstance(value, tuple):
        return tuple(_slice_group(part, lanes, first_lane, level) for part in value)
    if not isinstance(value, BatchedSequence):
        return batched(lanes.of(value.tensor))
    sequence = value.group(lanes, first_lane)
    return sequence if level is None else sequence.at_level(level)

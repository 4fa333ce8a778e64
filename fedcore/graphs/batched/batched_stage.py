"""A client stage for the clients of one call, as one TensorFlow function that returns their partial.

In:  the broadcasts, then the tensors of `pack_clients`.
Out: the leaves of the partial; where sizes are measured, also the bits that each client sends.

The function has three parts:

1. Client-invariant operations (they depend on broadcasts only) run once, before the loop over groups.
2. Client operations run once for each group of `width` clients, batched. The values that the fold reads are the
   contribution of a client.
3. The fold runs over the clients of each block, all blocks side by side. The merge then runs over the tree of blocks.

Example: 1,000 clients of FedAvg with weights [7, 3], width 32, blocks of 8, 64 blocks a call. The first call has 512
clients in 16 groups. A group trains weights [32, 7, 3] and contributes <weighted change [32, 7, 3], weight [32]>. The
block sums are [64, 7, 3] and [64]; the merge tree reduces them to [7, 3] and [].
"""

import functools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf

import attrs
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.batched.batched_interpreter import BatchedInterpreter
from fedcore.graphs.batched.batched_sequence import BatchedSequence, Window
from fedcore.graphs.batched.batched_value import batched, broadcast_to_clients, shared
from fedcore.graphs.batched.block_reduction import (
    MAX_SEQUENTIAL_TERMS,
    fold_blocks,
    fold_next_client,
    leaves_only_summed,
    sum_blocks_by_group,
    sum_only_leaves,
)
from fedcore.graphs.batched.client_contribution import (
    PARALLEL_GROUPS,
    PARALLEL_GROUPS_OF_LOOPS,
    ClientContribution,
    Contribution,
    Factors,
    Tensors,
    contributions_by_group,
)
from fedcore.graphs.batched.packing import PackedLayout
from fedcore.graphs.graphdef.grappler import without_function_optimisation
from fedcore.graphs.graphdef.parsed_graph import has_loops
from fedcore.graphs.stages.realize import Realized, profiler_name
from fedcore.graphs.tensors.sizes import bits_of, unsized
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.module import Function, Module, Operation, Ref, Symbol
from fedcore.ir.operations import lookup
from fedcore.ir.purity import seeded_symbols
from fedcore.types import SequenceType, StructType, TensorType, Type, leaves, tensor_leaves


def packed_specs(types: SequenceOf[Type], layout: PackedLayout) -> list[tf.TensorSpec]:
    """Specs of the tensors that `pack_clients` returns for arguments of the given types."""
    specs = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)]
    flat = [leaf for t in types for _, leaf in leaves(t)]
    for leaf, of_sequence, batch_rows in zip(flat, layout.layouts, layout.batch_rows, strict=True):
        if of_sequence is None:
            (of_tensor,) = [spec(t) for t in tensor_leaves(leaf)]
            specs.append(tf.TensorSpec([None, *of_tensor.shape], of_tensor.dtype))
            continue
        if layout.rows_in_order:
            columns, of_lane = of_sequence.column_specs(), [batch_rows] if layout.single_step else []
            specs.extend(tf.TensorSpec([None, *of_lane, *s.shape[1:]], s.dtype) for s in columns)
            rows: list[int | None] = [None]
        else:
            specs.extend(of_sequence.column_specs())
            rows = [None, None, batch_rows] if of_sequence.batched else [None, None]
        specs.extend([tf.TensorSpec(rows, tf.int64), tf.TensorSpec([None, None], tf.int64)])
    return specs


def split_stage(stage: Function) -> tuple[list[Operation], list[Operation], list[str]]:
    """(client operations, fold operations, contribution) of a stage.

    Fold operations depend on the partial; client operations do not. The contribution is the names of the values that
    fold operations read from client operations and parameters.
    """
    dependent = {stage.parameters[0].name}
    client_operations: list[Operation] = []
    fold_operations: list[Operation] = []
    contribution: dict[str, None] = {}  # in order
    for op in stage.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if not dependent.intersection(names):
            client_operations.append(op)
            continue
        dependent.add(op.name)
        fold_operations.append(op)
        contribution.update(dict.fromkeys(n for n in names if n not in dependent))
    return client_operations, fold_operations, list(contribution)


def _split_invariant(
    module: Module, operations: list[Operation], broadcasts: list[str]
) -> tuple[list[Operation], list[Operation]]:
    """(client-invariant operations, other operations). The former depend on broadcasts only, and on no seed."""
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


class _BatchedFold:
    """The parts of a batched stage: zero, client operations by group, and fold.

    Args:
        width: clients of a group.
        measured: names of values in the stage whose sizes are measured.
        assumes: left factors may be taken to be finite, which `LowRank.finite_if_sum_is` then does.

    Attributes:
        parallel: groups of a call that may run in parallel.
        telling: leaves of the partial; one of them is not finite if a left factor is not that was taken for finite.
        is_blind: of another left factor that was taken for finite, no leaf would tell.
    """

    def __init__(
        self,
        module: Module,
        zero: str,
        stage: str,
        broadcasts: int,
        layout: PackedLayout,
        width: int,
        measured: SequenceOf[str],
        *,
        assumes: bool = False,
    ):
        self._module = module
        self._zero = module.function(zero)
        self._stage = function = module.function(stage)
        self._broadcasts = function.parameters[1 : 1 + broadcasts]
        self._client_parameters = function.parameters[1 + broadcasts :]
        self._layout = layout
        self._width = width
        self._measured = measured
        client_operations, self._fold_operations, self._contribution = split_stage(function)
        self._invariant_operations, self._client_operations = _split_invariant(
            module, client_operations, [p.name for p in self._broadcasts]
        )
        self._types = function.types()
        self.interpreter = BatchedInterpreter(module, layout, xla=bool(function.attributes.get("xla")))
        self._invariant: dict[str, object] = {}
        self.parallel = PARALLEL_GROUPS_OF_LOOPS if has_loops(module) else PARALLEL_GROUPS
        self._assumes = assumes
        self.telling: set[int] = set()
        self.is_blind = False

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Specs of the broadcasts and of the packed clients."""
        specs = [spec(t) for p in self._broadcasts for t in tensor_leaves(p.type)]
        return specs + packed_specs([p.type for p in self._client_parameters], self._layout)

    @property
    def contribution_specs(self) -> list[tf.TensorSpec]:
        """Specs of the leaves of one client's contribution."""
        return [spec(t) for name in self._contribution for t in tensor_leaves(self._types[name])]

    @property
    def sizes(self) -> int:
        """Number of measured leaves; their sizes are one more leaf of the contribution, int64 [sizes], if there are."""
        return sum(len(unsized(self._types[name])) for name in self._measured)

    def contributions(
        self, groups: SequenceOf[tuple[Callable, tf.Tensor]], zeros: Tensors
    ) -> tuple[list[Contribution], tf.Tensor | None]:
        """The contributions that the fold reads, and the measured sizes of each lane, int64 [lanes + 1, sizes].

        Matrices that the fold only adds stay factors, unless a client of the call exceeds `low_rank_steps`: its matrix
        is more than a product of factors.
        """
        specs = self.contribution_specs
        has_factors = self._layout.low_rank_steps and not self._layout.exceeds_low_rank
        in_factors = leaves_only_summed(self.fold, zeros, specs) if has_factors else {}
        sizes = [tf.TensorSpec([self.sizes], tf.int64)] if self.sizes else []
        given = [(functools.partial(group, in_factors=in_factors), count) for group, count in groups]
        found = contributions_by_group(given, self._width, [*specs, *sizes], parallel=self.parallel)
        if not sizes:
            return found, None
        (of_sizes,) = [c for c in found if len(specs) in c.leaves.positions]
        assert isinstance(of_sizes, ClientContribution)
        return found, of_sizes.leaves.unpack(of_sizes.concatenated())[len(specs)]

    @property
    def partial_type(self) -> Type:
        return self._zero.result_type

    def open(self, tensors: list) -> tuple[list[tuple[Callable, tf.Tensor]], tf.Tensor]:
        """Runs the client-invariant operations, and returns functions that run the client operations of a group.

        There are two if kernels are kept low-rank for clients of one step only, and clients take more: the groups of
        these, which are the first ones, have dense kernels.

        Args:
            tensors: broadcasts, then packed clients; they are removed from the list.
        Returns:
            groups: functions, and for how many groups (int64) each is called, in the order of the lanes. A function
                maps (first lane of a group, leaves that may stay factors, as of `leaves_only_summed`) to leaves
                [width, …], or factors, of the contributions of its clients.
            lane_of: int64 [clients], the lane of each client of the call.
        """
        broadcast = [unflatten([shared(tensors.pop(0)) for _ in leaves(p.type)], p.type) for p in self._broadcasts]
        self._invariant = dict(zip([p.name for p in self._broadcasts], broadcast, strict=True))
        self.interpreter.operations(self._invariant_operations, self._invariant, dict(self._types))
        seeds, lane_of = tensors.pop(0), tensors.pop(0)
        arguments = _client_arguments(self._client_parameters, self._layout, tensors)

        def group(
            first_lane: tf.Tensor, in_factors: Mapping[int, int], layout: PackedLayout = self._layout
        ) -> list[tf.Tensor | Factors]:
            lanes = Window(first_lane, self._width)
            of_group = [_group_of(v, lanes, first_lane) for v in arguments]
            names = [p.name for p in self._client_parameters]
            scope = {**self._invariant, **dict(zip(names, of_group, strict=True))}
            seed = tensor_seed(lanes.of(seeds))
            assumed: list[tf.Tensor] = []
            with self.interpreter.using(layout, assumed if self._assumes and in_factors else None):
                self.interpreter.operations(self._client_operations, scope, dict(self._types), seed)
            contribution = [value for name in self._contribution for value in flatten(scope[name])]
            leaves = [
                (i in in_factors and value.low_rank is not None and value.low_rank.only_factors)
                or broadcast_to_clients(value, self._width)
                for i, value in enumerate(contribution)
            ]
            telling = {id(f[0]): in_factors[i] for i, f in enumerate(leaves) if isinstance(f, tuple)}
            self.telling.update(telling[id(left)] for left in assumed if id(left) in telling)
            self.is_blind |= any(id(left) not in telling for left in assumed)
            return [*leaves, *self._sizes_of(scope)]

        count, layout = tf.size(seeds, tf.int64) // self._width, self._layout
        if not layout.has_dense_groups:
            return [(group, count)], lane_of
        (sequence,) = [x for value in arguments for x in flatten(value) if isinstance(x, BatchedSequence)]
        longer = tf.reduce_sum(tf.cast(sequence.sizes[:: self._width, 1] > 0, tf.int64))
        layouts = attrs.evolve(layout, low_rank_steps=0), attrs.evolve(layout, exceeds_low_rank=False)
        dense, low_rank = (functools.partial(group, layout=of_groups) for of_groups in layouts)
        return [(dense, longer), (low_rank, count - longer)], lane_of

    def _sizes_of(self, scope: dict) -> Tensors:
        """The sizes of the measured leaves of a group's clients, int64 [width, sizes]; nothing if none is measured."""
        sizes = []
        for name in self._measured:
            values, types = flatten(scope[name]), leaves(self._types[name])
            for i in unsized(self._types[name]):
                sizes.append(bits_of(broadcast_to_clients(values[i], self._width), types[i][1]))
        return [tf.stack(sizes, 1)] if sizes else []

    def zeros(self) -> Tensors:
        """The initial partial, leaves [1, …]."""
        broadcast = [self._invariant[p.name] for p in self._broadcasts]
        return [broadcast_to_clients(value, 1) for value in flatten(self.interpreter.run(self._zero, *broadcast))]

    def fold(self, contributions: Tensors, before: Tensors) -> Tensors:
        """The partials after one client of each block; leaves [blocks, …]."""
        partial = unflatten([batched(t) for t in before], self.partial_type)
        scope = {**self._invariant, self._stage.parameters[0].name: partial}
        values = iter([batched(t) for t in contributions])
        for name in self._contribution:
            scope[name] = unflatten([next(values) for _ in tensor_leaves(self._types[name])], self._types[name])
        self.interpreter.operations(self._fold_operations, scope, dict(self._types))
        blocks = int(before[0].shape[0])
        return [broadcast_to_clients(value, blocks) for value in flatten(scope[self._stage.result.name])]

    def realized(self, body: Callable, specs: list[tf.TensorSpec], clients: int) -> Realized:
        """The function of a body that returns the partial and the sizes that `clients` clients send."""
        sizes = TensorType("int64", (clients, self.sizes))
        result = StructType([(None, self.partial_type), (None, sizes)]) if self.sizes else self.partial_type
        name = profiler_name(self._module, self._stage.name)
        with without_function_optimisation(), private_api.quick_operations():
            call = private_api.unordered_function(body, specs, name=name)
        return Realized(call, result, optimised=True, assumes_finite=tuple(sorted(self.telling)))


def realize_batched(
    module: Module,
    zero: str,
    stage: str,
    join: str,
    broadcasts: int,
    layout: PackedLayout,
    *,
    width: int,
    block: int,
    blocks: int,
    measured: SequenceOf[str] = (),
    assumes: bool = False,
) -> Realized:
    """The function of a call: (broadcasts, tensors of `pack_clients`) -> partial of all blocks.

    If sizes are measured, it returns <partial,bits>, with bits int64 [places, sizes].

    Args:
        zero, join: names of the functions that make and merge partials.
        broadcasts: number of the stage's parameters that all clients share.
        width: clients of a group.
        block: clients of a block.
        blocks: blocks of a call, a power of two; blocks without clients are skipped.
        measured: names of values in the stage whose sizes are measured.
        assumes: the function may assume that clients' work is finite, see `Realized.assumes_finite`.
    """
    stage_fold = _BatchedFold(module, zero, stage, broadcasts, layout, width, measured, assumes=assumes)
    groups_hold_blocks = (
        layout.equal_steps
        and (layout.keeps_one_step or not layout.low_rank_steps)
        and not width % block
        and block <= MAX_SEQUENTIAL_TERMS
        and not measured
    )

    def merge(left: Tensors, right: Tensors) -> Tensors:
        pair = [unflatten([batched(t) for t in side], stage_fold.partial_type) for side in (left, right)]
        joined = stage_fold.interpreter.run(module.function(join), *pair)
        return [broadcast_to_clients(value, int(left[0].shape[0])) for value in flatten(joined)]

    def body(*tensors):
        groups, lane_of = stage_fold.open(list(tensors))
        lane_of, zeros = tf.reshape(lane_of, [blocks, block]), stage_fold.zeros()
        specs = stage_fold.contribution_specs
        addends = sum_only_leaves(stage_fold.fold, zeros, specs) if groups_hold_blocks else {}
        if len(addends) == len(zeros):
            ((group, count),) = groups
            in_factors = leaves_only_summed(stage_fold.fold, zeros, specs)
            of_group = functools.partial(group, in_factors=in_factors)
            sizes = None
            partial = sum_blocks_by_group(
                *(of_group, merge, zeros, addends, specs, lane_of),
                count=count,
                width=width,
                parallel=stage_fold.parallel,
            )
        else:
            contributions, sizes = stage_fold.contributions(groups, zeros)
            partial = fold_blocks(stage_fold.fold, merge, zeros, specs, contributions, lane_of)
        of_clients = [] if sizes is None else [tf.gather(sizes, tf.maximum(tf.reshape(lane_of, [-1]), 0))]
        return [*(tf.identity(t[0]) for t in partial), *of_clients]

    realized = stage_fold.realized(body, stage_fold.specs, blocks * block)
    if stage_fold.is_blind:
        return realize_batched(
            module, zero, stage, join, broadcasts, layout, width=width, block=block, blocks=blocks, measured=measured
        )
    return realized


def realize_next_client(
    module: Module,
    zero: str,
    stage: str,
    broadcasts: int,
    layout: PackedLayout,
    *,
    width: int,
    measured: SequenceOf[str] = (),
) -> Realized:
    """The function that adds one client to the partial of its block: (is_first, is_last, broadcasts, tensors of
    `pack_clients` for this client, partial after the previous clients) -> partial, or <partial,bits>.

    `is_first` and `is_last` are bools: whether the client is the first or the last of its block.
    """
    stage_fold = _BatchedFold(module, zero, stage, broadcasts, layout, width, measured)
    flag = tf.TensorSpec([], tf.bool)
    partial = [spec(t) for t in tensor_leaves(stage_fold.partial_type)]

    def body(is_first, is_last, *tensors):
        count = len(tensors) - len(partial)
        before = [t[None] for t in tensors[count:]]
        groups, _ = stage_fold.open(list(tensors[:count]))
        specs = stage_fold.contribution_specs
        zeros = stage_fold.zeros()
        contributions, sizes = stage_fold.contributions(groups, zeros)
        after = fold_next_client(stage_fold.fold, zeros, specs, contributions, before, is_first, is_last)
        return [*(tf.identity(t[0]) for t in after), *([] if sizes is None else [sizes[:1]])]

    return stage_fold.realized(body, [flag, flag, *stage_fold.specs, *partial], 1)


def _client_arguments(parameters, layout: PackedLayout, tensors: list) -> list:
    """The arguments of all clients, as batched values and sequences.

    Args:
        tensors: tensors of `pack_clients`, in order; they are removed from the list.
    """
    layouts = zip(layout.layouts, layout.batch_rows, strict=True)
    arguments = []
    for parameter in parameters:
        values: list = []
        for _, leaf in leaves(parameter.type):
            of_sequence, batch_rows = next(layouts)
            if of_sequence is None or not isinstance(leaf, SequenceType):
                values.append(batched(tensors.pop(0)))
                continue
            columns = tuple(tensors.pop(0) for _ in of_sequence.column_specs())
            rows, sizes = tensors.pop(0), tensors.pop(0)
            in_order, single = layout.rows_in_order, layout.single_step
            values.append(
                BatchedSequence(
                    of_sequence, columns, rows, sizes, batch_rows, rows_in_order=in_order, single_step=single
                )
            )
        arguments.append(unflatten(values, parameter.type))
    return arguments


def _group_of(value, lanes: Window, first_lane: tf.Tensor):
    """A group's part of an argument of all clients."""
    if isinstance(value, tuple):
        return tuple(_group_of(part, lanes, first_lane) for part in value)
    return value.group(lanes, first_lane) if isinstance(value, BatchedSequence) else batched(lanes.of(value.tensor))

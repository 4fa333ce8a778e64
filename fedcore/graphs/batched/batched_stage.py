"""A client stage for many clients at once: a group of lanes after the other, their folds in the order of their indices.

What a client hands to the fold goes back into its place; then the blocks of the call fold side by side, client by
client, and merge as a tree.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_call import batched_call
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, shared, stacked
from fedcore.graphs.batched.block_reduction import (
    IN_ORDER,
    contributions_by_group,
    fold_blocks,
    fold_one,
    merge_sums,
    sum_only_leaves,
    sums_by_group,
)
from fedcore.graphs.batched.counted_loop import counted_loop
from fedcore.graphs.batched.packing import CallShape
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.graphdef.grappler import without_function_optimisation
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.stages.kernels import kernels
from fedcore.graphs.stages.realize import Realized, profiler_name
from fedcore.graphs.stages.xla import can_compile
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.interpret import Callee, Interpreter
from fedcore.ir.module import Function, Module, Operation, Ref, Symbol
from fedcore.ir.operations import lookup
from fedcore.ir.purity import seeded_symbols
from fedcore.types import SequenceType, Type, leaves, tensor_leaves

BATCHABLE = ("struct", "item", "call", "bind", "literal", "generic_zero", "sequence_reduce", "sequence_map")
"""The operations that a stacked stage may hold; fusing leaves no others."""


def call_specs(types: SequenceOf[Type], shape: CallShape) -> list[tf.TensorSpec]:
    """Of the tensors that `pack_clients` gives."""
    found = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)]
    flat = [leaf for t in types for _, leaf in leaves(t)]
    for leaf, layout, width in zip(flat, shape.layouts, shape.rows, strict=True):
        if layout is None:
            (one,) = [spec(t) for t in tensor_leaves(leaf)]
            found.append(tf.TensorSpec([None, *one.shape], one.dtype))
            continue
        if shape.in_slots:
            found.extend(tf.TensorSpec([None, width, *s.shape[1:]], s.dtype) for s in layout.column_specs())
            rows: list[int | None] = [None]
        else:
            found.extend(layout.column_specs())
            rows = [None, None, width] if layout.batched else [None, None]
        found.extend([tf.TensorSpec(rows, tf.int64), tf.TensorSpec([None, None], tf.int64)])
    return found


@attrs.frozen
class BatchedSequence:
    """The sequences of a group of clients, inside a graph.

    Args:
        columns: of all clients of the call: their examples, or slots of whole batches.
        rows: [clients, steps(, width)] into the examples; or [steps], the slot of each step's first lane.
        sizes: [clients, steps]: rows of each batch, 0 behind a client's end; 1 for elements that are no batches.
        begin: the group's first lane, where columns are slots.
        maps: functions over lanes, in order.
    """

    layout: Layout
    columns: tuple
    rows: tf.Tensor
    sizes: tf.Tensor
    begin: tf.Tensor | None = None
    maps: tuple[Callable, ...] = ()

    def group(self, lanes: "_Window", begin: tf.Tensor) -> "BatchedSequence":
        """That of some lanes, of which `begin` is the first."""
        rows = self.rows if self.rows.shape.rank == 1 else lanes.of(self.rows)
        return attrs.evolve(self, rows=rows, sizes=lanes.of(self.sizes), begin=begin)

    def taken(self, step: tf.Tensor) -> tf.Tensor:
        """int64 [clients]: rows of each client's batch; 1 for an element that is no batch, 0 behind the end."""
        return tf.gather(self.sizes, step, axis=1)

    def element(self, step: tf.Tensor, taken: tf.Tensor):
        """Lanes of the elements of one step."""
        layout = self.layout
        if self.begin is not None and self.rows.shape.rank == 1:
            begins = tf.reshape(self.rows + self.begin, [-1, 1])
            width = int(self.sizes.shape[0])
            slots = _Window(tf.gather(begins, step), tf.gather(begins + width, step), width)
            leaves_ = [slots.of(c) for c in self.columns]
        else:
            picked = tf.gather(self.rows, step, axis=1)
            leaves_ = [tf.gather(c, picked) for c in self.columns]
        if layout.before:
            leaves_ = _mapped_rows(layout, leaves_) if layout.batched else _mapped(layout.before, leaves_)
        padded_axis = 0 if layout.batched else None
        lanes = [stacked(t, padded_axis) for t in leaves_]
        value_type = layout.element if not layout.before else layout.before[-1].type.result
        for graph in layout.after:
            lanes = batched_call(graph.named("map"), graph.data, lanes, taken if layout.batched else None)
            value_type = graph.type.result
        value = unflatten(lanes, value_type)
        for fn in self.maps:
            value = _at_element(fn, step)(value)
        return value


def _at_element(fn: Callable, index: tf.Tensor) -> Callable:
    """An element draws by its index."""
    return fn.for_element(index) if isinstance(fn, Callee) else fn


def _mapped(graphs: tuple[TracedGraph, ...], leaves_: list[tf.Tensor]) -> list[tf.Tensor]:
    lanes = [stacked(t) for t in leaves_]
    for graph in graphs:
        lanes = batched_call(graph.named("map"), graph.data, lanes)
    count = int(leaves_[0].shape[0])
    return [_stack(lane, count) for lane in lanes]


def _mapped_rows(layout: Layout, leaves_: list[tf.Tensor]) -> list[tf.Tensor]:
    """Maps over single examples: every row of every batch is a lane of its own."""
    clients, width = leaves_[0].shape[:2]
    flat = [tf.reshape(t, [clients * width, *t.shape[2:]]) for t in leaves_]
    return [tf.reshape(t, [clients, width, *t.shape[1:]]) for t in _mapped(layout.before, flat)]


def _stack(lane: BatchedValue, clients: int) -> tf.Tensor:
    if lane.stacked:
        return lane.tensor
    with lane.tensor.graph.as_default():  # once, where the value was made, rather than in every turn of a loop
        return tf.broadcast_to(lane.tensor, [clients, *lane.tensor.shape])


class _Stage:
    """Evaluates local functions over lanes; a batch's sizes hold while a step is evaluated.

    Args:
        xla: graphs that XLA may compile are compiled by it.
    """

    def __init__(self, module: Module, shape: CallShape, *, xla: bool):
        self.sizes: tf.Tensor | None = None
        self._shape = shape
        self._xla = xla
        self.run = Interpreter(module, self._evaluate, self._graph)

    def _graph(self, graph, data: bytes) -> Callable:
        by_xla = self._xla and can_compile(graph, data)

        def call(*arguments, seed=None):
            lanes = flatten(arguments)
            sizes = self.sizes if any(lane.padded_axis is not None for lane in lanes) else None
            build = functools.partial(batched_call, graph, data, lanes, sizes, seed)
            return unflatten(compiled(build) if by_xla else build(), graph.type.result)

        return call

    def _evaluate(self, op: Operation, types, values, seed):
        if op.kind not in BATCHABLE:
            raise NoBatchingRule(op.kind, "the operation stands outside of graphs")
        if op.kind == "sequence_map":
            function, sequence = values
            return attrs.evolve(sequence, maps=(*sequence.maps, function))
        if op.kind == "sequence_reduce":
            sequence, zero, function = values
            return self._reduce(sequence, zero, function, op.type)
        if op.kind in kernels:
            return unflatten([shared(t) for t in flatten(kernels[op.kind](op))], op.type)
        declared = lookup(op.kind)
        return declared.meaning(*values, **declared.variables(op, types))

    def _reduce(self, sequence: BatchedSequence, zero, function: Callable, type_: Type):
        """Steps until all clients have ended; one that has keeps what it had. Where all end together, what is made of
        a lane without a client is of no use."""
        clients = int(sequence.sizes.shape[0])

        def step(s, *carry):
            taken = sequence.taken(s)
            self.sizes = taken if sequence.layout.batched else None
            value = sequence.element(s, taken)
            after = flatten(_at_element(function, s)(unflatten([stacked(t) for t in carry], type_), value))
            self.sizes = None
            return [_stack(lane, clients) for lane in after], None if self._shape.alike else taken > 0

        start = [_stack(lane, clients) for lane in flatten(zero)]
        if self._shape.single:
            state, _ = step(tf.constant(0, tf.int64), *start)
        else:
            last = tf.reduce_sum(tf.cast(tf.reduce_any(sequence.sizes > 0, axis=0), tf.int64))
            state = counted_loop(step, last, start)
        return unflatten([stacked(t) for t in state], type_)


def split(stage: Function) -> tuple[list[Operation], list[Operation], list[str]]:
    """A stage's operations: a client's own, those that need the partial, and the values that pass between."""
    dependent = {stage.parameters[0].name}
    own: list[Operation] = []
    folding: list[Operation] = []
    sent: list[str] = []
    for op in stage.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if not dependent.intersection(names):
            own.append(op)
            continue
        dependent.add(op.name)
        folding.append(op)
        sent.extend(n for n in names if n not in dependent and n not in sent)
    return own, folding, sent


def _shared_by_all(module: Module, own: list[Operation], known: list[str]) -> tuple[list[Operation], list[Operation]]:
    """Of a client's own operations those that are the same for all clients, and the others."""
    drawing, same, others = seeded_symbols(module), set(known), []
    shared_by_all = []
    for op in own:
        names = {o.name for o in op.operands if isinstance(o, Ref)}
        draws = lookup(op.kind).draws or any(isinstance(o, Symbol) and o.name in drawing for o in op.operands)
        if names <= same and not draws:
            same.add(op.name)
            shared_by_all.append(op)
        else:
            others.append(op)
    return shared_by_all, others


class _Fold:
    """The graph of a stacked fold: what all its calls have in common.

    Args:
        width: clients that run side by side.
    """

    def __init__(self, module: Module, zero: str, stage: str, broadcasts: int, shape: CallShape, width: int):
        self.module = module
        self.zero = module.function(zero)
        self.stage = function = module.function(stage)
        self.common = function.parameters[1 : 1 + broadcasts]
        self.mine = function.parameters[1 + broadcasts :]
        self.shape = shape
        self.width = width
        own, self.folding, self.sent = split(function)
        self.shared, self.own = _shared_by_all(module, own, [p.name for p in self.common])
        self.types = function.types()
        self.specs = [spec(t) for p in self.common for t in tensor_leaves(p.type)]
        self.specs += call_specs([p.type for p in self.mine], shape)
        self.evaluator = _Stage(module, shape, xla=bool(function.attributes.get("xla")))
        self.known: dict[str, object] = {}

    def begin(self, rest: list) -> tuple[Callable, tf.Tensor, tf.Tensor]:
        """What a group hands to the fold, by its first lane; how many lanes there are, and the clients' places.

        Takes the broadcasts and the clients from the list.
        """
        broadcast = [unflatten([shared(rest.pop(0)) for _ in leaves(p.type)], p.type) for p in self.common]
        self.known = dict(zip([p.name for p in self.common], broadcast, strict=True))
        self.evaluator.run.operations(self.shared, self.known, dict(self.types))
        seeds, place = rest.pop(0), rest.pop(0)
        values = _client_values(self.mine, self.shape, rest)

        def group(begin: tf.Tensor) -> list[tf.Tensor]:
            lanes = _Window.at(begin, self.width)
            of_group = [_sliced(v, lanes, begin) for v in values]
            scope = {**self.known, **dict(zip([p.name for p in self.mine], of_group, strict=True))}
            self.evaluator.run.operations(self.own, scope, dict(self.types), tensor_seed(lanes.of(seeds)))
            return [_stack(lane, self.width) for name in self.sent for lane in flatten(scope[name])]

        return group, tf.size(seeds, tf.int64), place

    @property
    def handed(self) -> list[tf.TensorSpec]:
        """What a client hands to the fold."""
        return [spec(t) for name in self.sent for t in tensor_leaves(self.types[name])]

    def zeros(self, blocks: int) -> list[tf.Tensor]:
        broadcast = [self.known[p.name] for p in self.common]
        return [_stack(lane, blocks) for lane in flatten(self.evaluator.run.run(self.zero, *broadcast))]

    def fold(self, mine: list[tf.Tensor], before: list[tf.Tensor]) -> list[tf.Tensor]:
        partial = unflatten([stacked(t) for t in before], self.zero.result_type)
        scope = {**self.known, self.stage.parameters[0].name: partial}
        parts = iter([stacked(t) for t in mine])
        for name in self.sent:
            scope[name] = unflatten([next(parts) for _ in tensor_leaves(self.types[name])], self.types[name])
        self.evaluator.run.operations(self.folding, scope, dict(self.types))
        return [_stack(lane, int(before[0].shape[0])) for lane in flatten(scope[self.stage.result.name])]

    def realized(self, body: Callable, specs: list[tf.TensorSpec]) -> Realized:
        body.__name__ = profiler_name(self.module, self.stage.name)
        traced = tf.function(body, autograph=False, input_signature=specs)
        with without_function_optimisation():
            return Realized(traced.get_concrete_function(), self.zero.result_type, optimised=True)


def realize_batched(
    module: Module,
    zero: str,
    stage: str,
    join: str,
    broadcasts: int,
    shape: CallShape,
    *,
    width: int,
    block: int,
    blocks: int,
) -> Realized:
    """A call of several blocks: takes the broadcasts, then the tensors of `pack_clients`.

    Args:
        width: clients that run side by side.
        block: clients that are folded one after the other.
        blocks: of a call, a power of two; those without clients add nothing.
    Returns:
        A function whose result is the one partial of all its blocks.
    """
    graph = _Fold(module, zero, stage, broadcasts, shape, width)
    partial_type = graph.zero.result_type
    whole_blocks = shape.alike and not width % block and block <= IN_ORDER

    def merge(left: list[tf.Tensor], right: list[tf.Tensor]) -> list[tf.Tensor]:
        pair = [unflatten([stacked(t) for t in side], partial_type) for side in (left, right)]
        joined = graph.evaluator.run.run(module.function(join), *pair)
        return [_stack(lane, int(left[0].shape[0])) for lane in flatten(joined)]

    def body(*tensors):
        group, lanes, place = graph.begin(list(tensors))
        place, zeros = tf.reshape(place, [blocks, block]), graph.zeros(blocks)
        sums = sum_only_leaves(graph.fold, zeros, graph.handed) if whole_blocks else {}
        if len(sums) == len(zeros):
            added = sums_by_group(group, lanes, width, graph.handed, place)
            partial = merge_sums(merge, zeros, [added[sums[i]] for i in range(len(zeros))], place)
        else:
            handed = contributions_by_group(group, lanes, width, graph.handed)
            partial = fold_blocks(graph.fold, merge, zeros, graph.handed, handed, place)
        return [tf.identity(t[0]) for t in partial]

    return graph.realized(body, graph.specs)


def realize_one_more(
    module: Module, zero: str, stage: str, broadcasts: int, shape: CallShape, *, width: int
) -> Realized:
    """One client of a block after the others: a call of one client for `fold_one`.

    Takes two bools, whether the client is the block's first and its last; then the broadcasts, the tensors of
    `pack_clients` and those of the partial before.
    """
    graph = _Fold(module, zero, stage, broadcasts, shape, width)
    flag = tf.TensorSpec([], tf.bool)
    partial = [spec(t) for t in tensor_leaves(graph.zero.result_type)]

    def body(begins, ends, *tensors):
        own = len(tensors) - len(partial)
        rest, before = list(tensors[:own]), tensors[own:]
        group, lanes, _ = graph.begin(rest)
        handed = contributions_by_group(group, lanes, width, graph.handed)
        after = fold_one(graph.fold, graph.zeros(1), graph.handed, handed, [t[None] for t in before], begins, ends)
        return [tf.identity(t[0]) for t in after]

    return graph.realized(body, [flag, flag, *graph.specs, *partial])


def _client_values(parameters, shape: CallShape, tensors: list) -> list:
    """Each argument of all clients: lanes, and sequences with their rows."""
    layouts = iter(shape.layouts)
    values = []
    for parameter in parameters:
        parts: list = []
        for _, leaf in leaves(parameter.type):
            layout = next(layouts)
            if layout is None or not isinstance(leaf, SequenceType):
                parts.append(stacked(tensors.pop(0)))
                continue
            columns = tuple(tensors.pop(0) for _ in layout.column_specs())
            rows, sizes = tensors.pop(0), tensors.pop(0)  # as in `pack_clients`
            parts.append(BatchedSequence(layout, columns, rows, sizes))
        values.append(unflatten(parts, parameter.type))
    return values


def _sliced(value, lanes: "_Window", begin: tf.Tensor):
    if isinstance(value, tuple):
        return tuple(_sliced(part, lanes, begin) for part in value)
    return value.group(lanes, begin) if isinstance(value, BatchedSequence) else stacked(lanes.of(value.tensor))


class _Window:
    """So many places in a row of the first dimension, from one known in the graph only.

    Args:
        begins, ends: the first place, and the one behind the last; int64 [1].
    """

    def __init__(self, begins: tf.Tensor, ends: tf.Tensor, width: int):
        self._from = begins
        self._to = ends
        self._by = tf.constant([1], begins.dtype)
        self._width = width

    @classmethod
    def at(cls, begin: tf.Tensor, width: int) -> "_Window":
        begins = tf.reshape(begin, [1])
        return cls(begins, begins + width, width)

    def of(self, tensor: tf.Tensor) -> tf.Tensor:
        """Those of a tensor; TensorFlow takes them without a copy."""
        found = tf.raw_ops.StridedSlice(input=tensor, begin=self._from, end=self._to, strides=self._by)
        found.set_shape([self._width, *tensor.shape[1:]])
        return found


def compiled(build: Callable[[], list[BatchedValue]]) -> list[BatchedValue]:
    """What `build` puts into the graph being built, as one function that XLA compiles when it first runs."""
    found: list[BatchedValue] = []

    def body() -> list[tf.Tensor]:
        found[:] = build()
        return [lane.tensor for lane in found]

    tensors = tf.function(body, autograph=False, jit_compile=True)()
    return [attrs.evolve(lane, tensor=t) for lane, t in zip(found, tensors, strict=True)]

"""A client stage for many clients at once: their values stacked, their folds in the order of their indices.

Clients of one call are sorted by how many steps they take and run in groups of one width. What a client hands to the
fold goes back into its place; then the blocks of the call fold side by side, client by client, and merge as a tree.
"""

import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.columns import Columns, Rows
from fedcore.graphs.kernels import kernels
from fedcore.graphs.realize import Realized
from fedcore.graphs.sequences import Layout
from fedcore.graphs.trace import TracedGraph, spec
from fedcore.graphs.values import flatten, unflatten
from fedcore.graphs.vectorise import Lane, NoRule, shared, stacked, vectorised_call
from fedcore.ir.interpret import Interpreter
from fedcore.ir.module import Function, Module, Operation, Ref
from fedcore.ir.operations import lookup
from fedcore.seeds import fold_in
from fedcore.types import SequenceType, Type, leaves, tensor_leaves

STACKABLE = ("struct", "item", "call", "bind", "literal", "generic_zero", "sequence_reduce", "sequence_map")
"""The operations that a stacked stage may hold; fusing leaves no others."""


@attrs.frozen
class CallShape:
    """What of a call decides its graph.

    Args:
        clients: how many, absent ones at the end included; a multiple of the block.
        layouts: of each leaf of a client's arguments; None for a tensor.
        rows: the padded size of batches, for each leaf; 0 where a leaf is no batched sequence.
        full: every place holds a client.
        first_full: every client's first batches are whole, so that the first step needs no mask.
    """

    clients: int
    layouts: tuple[Layout | None, ...]
    rows: tuple[int, ...]
    full: bool
    first_full: bool


class PackedColumns:
    """What was packed for the same columns before, up to `max_bytes`, those used last.

    Guarantees:
      - An entry holds the columns that it was made of, so their identities are not given to others meanwhile.
      - Columns are not changed after they were given to a dataset, so an entry never goes stale.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple, tuple] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, kind: str, columns: SequenceOf[Columns], make: Callable[[], tuple]) -> tuple:
        """The tensors that `make` gives (numpy arrays, and numbers beside them), kept as tensors."""
        key = (kind, *map(id, columns))
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][1]
        made = tuple(tf.convert_to_tensor(m) if isinstance(m, np.ndarray) else m for m in make())
        size_bytes = sum(m.dtype.size * math.prod(m.shape) for m in made if isinstance(m, tf.Tensor))
        with self._lock:
            if size_bytes <= self._max_bytes and key not in self._entries:
                self._entries[key] = (tuple(columns), made, size_bytes)
                self._bytes += size_bytes
                while self._bytes > self._max_bytes:
                    _, (_, _, freed) = self._entries.popitem(last=False)
                    self._bytes -= freed
        return made


def pack_clients(
    clients: list[tuple], seeds: np.ndarray, numbers: SequenceOf[int], *, block: int, call: int, kept: PackedColumns
) -> tuple[CallShape, list]:
    """The flat tensors of a call: stacked values, and for sequences joined columns and the rows that each client draws.

    The first tensors are the order in which the clients run (those with fewer steps first) and how many there are.

    Args:
        numbers: of each leaf of a client, among the leaves of the call's arguments; see `pack`.
        block, call: clients of a block, and of a call that is not the last.
    """
    leaves_of = [flatten(client) for client in clients]
    count = len(clients)
    places = _places(count, block)
    full = count == call
    first = [leaf for leaf in leaves_of[0] if isinstance(leaf, Columns)]
    steady = len(first) == 1 and not any(c.is_random for leaf in leaves_of for c in leaf if isinstance(c, Columns))
    if steady:  # nothing of the rows depends on a seed
        position = next(i for i, leaf in enumerate(leaves_of[0]) if isinstance(leaf, Columns))
        columns = [leaf[position] for leaf in leaves_of]
        order, place, *rest = kept.get("rows", columns, lambda: _rows(leaves_of, seeds, numbers, places))
        rows = {position: tuple(rest)}
    else:
        order, place, *rest = _rows(leaves_of, seeds, numbers, places)
        positions = [i for i, leaf in enumerate(leaves_of[0]) if isinstance(leaf, Columns)]
        rows = {p: tuple(rest[4 * i : 4 * i + 4]) for i, p in enumerate(positions)}
    tensors: list = [place, np.int64(count)]
    layouts: list[Layout | None] = []
    widths: list[int] = []
    first_full = full
    for position in range(len(leaves_of[0])):
        values = [leaf[position] for leaf in leaves_of]
        if position not in rows:
            layouts.append(None)
            widths.append(0)
            stack = np.stack([np.asarray(v) for v in values] + [np.asarray(values[0])] * (places - count))
            tensors.append(stack[np.asarray(order)])
            continue
        drawn, sizes, width, whole = rows[position]
        columns = [values[i] for i in range(count)]
        joined = kept.get("columns", columns, functools.partial(_all_together, columns))
        layouts.append(values[0].layout)
        widths.append(width)
        first_full = first_full and whole
        tensors.extend([*joined, drawn, sizes])
    return CallShape(places, tuple(layouts), tuple(widths), full, first_full), tensors


def _rows(leaves_of: list[list], seeds: np.ndarray, numbers: SequenceOf[int], places: int) -> tuple:
    """The clients' order and its inverse; for each sequence: rows, sizes, width, whether first steps are whole."""
    count = len(leaves_of)
    drawn = _drawn(leaves_of, seeds, numbers)
    steps = np.zeros(places, np.int64)
    for of_clients in drawn.values():
        steps[:count] = np.maximum(steps[:count], [len(r) for r in of_clients])
    order = np.argsort(steps, kind="stable")
    place = np.argsort(order).astype(np.int64)
    found: list = [order, place]
    for position, of_clients in drawn.items():
        found.extend(_joined([leaf[position] for leaf in leaves_of], of_clients, place))
    return tuple(found)


def _places(count: int, block: int) -> int:
    blocks = 1
    while blocks * block < count:
        blocks *= 2
    return blocks * block


def _drawn(clients: list[list], seeds: np.ndarray, numbers: SequenceOf[int]) -> dict[int, list[Rows]]:
    found: dict[int, list[Rows]] = {}
    for position, leaf in enumerate(clients[0]):
        if isinstance(leaf, Columns):
            number, pairs = numbers[position], zip(clients, seeds, strict=True)
            found[position] = [c[position].draw(fold_in(int(s), number)) for c, s in pairs]
    return found


def _joined(values: list[Columns], drawn: list[Rows], place: np.ndarray) -> tuple:
    """int64 rows [places, steps, width] into the columns of all clients one after the other; their sizes."""
    lengths = np.array([len(c.arrays[0]) for c in values])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    batched = values[0].layout.batched
    steps = max(map(len, drawn))
    width = _width(drawn, values) if batched else 0
    rows = np.zeros((len(place), steps, width) if batched else (len(place), steps), np.int64)
    sizes = np.zeros((len(place), steps), np.int64)
    last = max(int(lengths.sum()) - 1, 0)
    for k, (start, one) in enumerate(zip(starts.tolist(), drawn, strict=True)):
        at, count = place[k], len(one)
        if count < steps:
            rows[at] = min(start, last)
        if count:
            rows[at, :count] = _widened(one.rows, width) + start if batched else one.rows + start
            sizes[at, :count] = one.sizes if one.sizes is not None else 1
    whole = bool(steps and (sizes[:, 0] == (width if batched else 1)).all())
    return rows, sizes, width, whole


def _widened(rows: np.ndarray, width: int) -> np.ndarray:
    missing = width - rows.shape[1]
    return rows[:, :width] if missing <= 0 else np.concatenate([rows, np.repeat(rows[:, -1:], missing, axis=1)], axis=1)


def _width(drawn: list[Rows], columns: list[Columns]) -> int:
    """The padded size of a batch: few different ones, so that few graphs are made."""
    longest = max((int(r.sizes.max()) for r in drawn if r.sizes is not None and len(r.sizes)), default=1)
    asked = max(next((s.number for s in c.steps if s.kind == "batch"), longest) for c in columns)
    return min(asked, 1 << (max(longest, 1) - 1).bit_length())


def _all_together(columns: list[Columns]) -> tuple:
    """The columns of all clients, one client after the other."""
    return tuple(_together([c.arrays[i] for c in columns]) for i in range(len(columns[0].arrays)))


def _together(arrays: list):
    joined = np.concatenate([np.asarray(a) for a in arrays]) if len(arrays) > 1 else np.asarray(arrays[0])
    return joined if len(joined) else np.zeros((1, *joined.shape[1:]), joined.dtype)


def call_specs(types: SequenceOf[Type], shape: CallShape) -> list[tf.TensorSpec]:
    found = [tf.TensorSpec([shape.clients], tf.int64), tf.TensorSpec([], tf.int64)]
    flat = [leaf for t in types for _, leaf in leaves(t)]
    for leaf, layout, width in zip(flat, shape.layouts, shape.rows, strict=True):
        if layout is None:
            (one,) = [spec(t) for t in tensor_leaves(leaf)]
            found.append(tf.TensorSpec([shape.clients, *one.shape], one.dtype))
            continue
        rows = [shape.clients, None, width] if layout.batched else [shape.clients, None]
        found.extend(layout.column_specs())
        found.extend([tf.TensorSpec(rows, tf.int64), tf.TensorSpec([shape.clients, None], tf.int64)])
    return found


@attrs.frozen
class StackedSequence:
    """The sequences of a group of clients, inside a graph.

    Args:
        columns: of all clients of the call.
        rows: [clients, steps(, width)] into the columns.
        sizes: [clients, steps]: rows of each batch, 0 behind a client's end; 1 for elements that are no batches.
        maps: functions over lanes, in order.
    """

    layout: Layout
    columns: tuple
    rows: tf.Tensor
    sizes: tf.Tensor
    maps: tuple[Callable, ...] = ()

    def element(self, step: tf.Tensor, *, masked: bool):
        """Lanes of the elements of one step."""
        picked = self.rows[:, step]
        leaves_ = [tf.gather(c, picked) for c in self.columns]
        layout = self.layout
        if layout.before:
            leaves_ = _mapped_rows(layout, leaves_) if layout.batched else _mapped(layout.before, leaves_)
        ragged = 0 if layout.batched and masked else None
        lanes = [stacked(t, ragged) for t in leaves_]
        value_type = layout.element if not layout.before else layout.before[-1].type.result
        sizes = self.sizes[:, step] if ragged is not None else None
        for graph in layout.after:
            lanes = vectorised_call(graph.named("map"), graph.data, lanes, sizes)
            value_type = graph.type.result
        value = unflatten(lanes, value_type)
        for fn in self.maps:
            value = fn(value)
        return value, sizes


def _mapped(graphs: tuple[TracedGraph, ...], leaves_: list[tf.Tensor]) -> list[tf.Tensor]:
    lanes = [stacked(t) for t in leaves_]
    for graph in graphs:
        lanes = vectorised_call(graph.named("map"), graph.data, lanes)
    count = int(leaves_[0].shape[0])
    return [_stack(lane, count) for lane in lanes]


def _mapped_rows(layout: Layout, leaves_: list[tf.Tensor]) -> list[tf.Tensor]:
    """Maps over single examples: every row of every batch is a lane of its own."""
    clients, width = leaves_[0].shape[:2]
    flat = [tf.reshape(t, [clients * width, *t.shape[2:]]) for t in leaves_]
    return [tf.reshape(t, [clients, width, *t.shape[1:]]) for t in _mapped(layout.before, flat)]


def _stack(lane: Lane, clients: int) -> tf.Tensor:
    if lane.stacked:
        return lane.tensor
    return tf.broadcast_to(lane.tensor[None], [clients, *lane.tensor.shape])


class _Stage:
    """Evaluates local functions over lanes; a batch's sizes hold while a step is evaluated."""

    def __init__(self, module: Module):
        self.sizes: tf.Tensor | None = None
        self.run = Interpreter(module, self._evaluate, self._graph)
        self.first_full = False

    def _graph(self, graph, data: bytes) -> Callable:
        def call(*arguments):
            lanes = flatten(arguments)
            sizes = self.sizes if any(lane.ragged is not None for lane in lanes) else None
            return unflatten(vectorised_call(graph, data, lanes, sizes), graph.type.result)

        return call

    def _evaluate(self, op: Operation, types, values, seed):
        if op.kind not in STACKABLE:
            raise NoRule(op.kind, "the operation stands outside of graphs")
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

    def _reduce(self, sequence: StackedSequence, zero, function: Callable, type_: Type):
        """Whole steps without a mask while all clients have them, then masked ones until all have ended."""
        clients = int(sequence.rows.shape[0])
        specs = [tf.TensorShape([clients, *t.sizes]) for t in tensor_leaves(type_)]
        width = int(sequence.rows.shape[2]) if sequence.layout.batched else 1
        whole = tf.cast(tf.reduce_all(sequence.sizes == width, axis=0), tf.int64)
        full = tf.reduce_sum(tf.math.cumprod(whole))
        last = tf.reduce_sum(tf.cast(tf.reduce_any(sequence.sizes > 0, axis=0), tf.int64))

        def step(carry: list[Lane], s, *, masked: bool) -> list[tf.Tensor]:
            value, self.sizes = sequence.element(s, masked=masked)
            after = flatten(function(unflatten(carry, type_), value))
            self.sizes = None
            return [_stack(lane, clients) for lane in after]

        def whole_step(s, *carry):
            return (s + 1, *step([stacked(t) for t in carry], s, masked=False))

        def masked_step(s, *carry):
            after = step([stacked(t) for t in carry], s, masked=True)
            active = sequence.sizes[:, s] > 0
            kept = [_where(active, new, old) for new, old in zip(after, carry, strict=True)]
            return (s + 1, *kept)

        start = tf.constant(0, tf.int64)
        lanes = flatten(zero)
        if self.first_full:
            tensors = step(lanes, start, masked=False)
            start = tf.constant(1, tf.int64)
        else:
            tensors = [_stack(lane, clients) for lane in lanes]
        shapes = (tf.TensorShape([]), *specs)
        state = tf.while_loop(lambda s, *_: s < full, whole_step, (start, *tensors), shape_invariants=shapes)
        state = tf.while_loop(lambda s, *_: s < last, masked_step, tuple(state), shape_invariants=shapes)
        return unflatten([stacked(t) for t in state[1:]], type_)


def _where(condition: tf.Tensor, yes: tf.Tensor, no: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.reshape(condition, [-1] + [1] * (yes.shape.rank - 1)), yes, no)


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


def realize_stacked(
    module: Module, zero: str, stage: str, join: str, broadcasts: int, shape: CallShape, *, width: int, block: int
) -> Realized:
    """A call of several blocks: takes seeds [clients], the broadcasts, then the tensors of `pack_clients`.

    Returns:
        A function whose result is the one partial of all its blocks.
    """
    function = module.function(stage)
    common = function.parameters[1 : 1 + broadcasts]
    mine = function.parameters[1 + broadcasts :]
    own, folding, sent = split(function)
    specs = [spec(t) for p in common for t in tensor_leaves(p.type)]
    specs += call_specs([p.type for p in mine], shape)
    partial_type = module.function(zero).result_type
    types = function.types()

    def body(seeds, *tensors):
        rest = list(tensors)
        broadcast = [unflatten([shared(rest.pop(0)) for _ in leaves(p.type)], p.type) for p in common]
        place, count = rest.pop(0), rest.pop(0)
        groups = _groups(shape, width)
        values = _client_values(mine, shape, rest)
        evaluator = _Stage(module)
        evaluator.first_full = shape.first_full
        known = dict(zip([p.name for p in common], broadcast, strict=True))
        handed = []
        for begin, end in groups:
            group = {**known, **{p.name: _sliced(v, begin, end) for p, v in zip(mine, values, strict=True)}}
            evaluator.run.operations(own, group, dict(types))
            handed.append([_stack(lane, end - begin) for name in sent for lane in flatten(group[name])])
        evaluator.first_full = False
        together = [tf.gather(tf.concat(parts, 0), place) for parts in zip(*handed, strict=True)]
        blocks = shape.clients // block
        by_block = [tf.reshape(t, [blocks, block, *t.shape[1:]]) for t in together]
        here = tf.reshape(tf.range(shape.clients, dtype=tf.int64) < count, [blocks, block])
        zeros = evaluator.run.run(module.function(zero), *broadcast)
        partial = [_stack(lane, blocks) for lane in flatten(zeros)]
        for b in range(block):
            scope = {**known, function.parameters[0].name: unflatten([stacked(t) for t in partial], partial_type)}
            mine_now = iter([stacked(t[:, b]) for t in by_block])
            for name in sent:
                scope[name] = unflatten([next(mine_now) for _ in tensor_leaves(types[name])], types[name])
            evaluator.run.operations(folding, scope, dict(types))
            after = [_stack(lane, blocks) for lane in flatten(scope[function.result.name])]
            partial = after if shape.full else [_where(here[:, b], a, p) for a, p in zip(after, partial, strict=True)]
        present = here[:, 0]
        while blocks > 1:
            partial, present = _merged(
                evaluator.run, module.function(join), partial, present, partial_type, full=shape.full
            )
            blocks //= 2
        return [tf.identity(t[0]) for t in partial]

    body.__name__ = stage
    signature = [tf.TensorSpec([None], tf.int64), *specs]
    traced = tf.function(body, autograph=False, input_signature=signature)
    return Realized(traced.get_concrete_function(), partial_type)


def _groups(shape: CallShape, width: int) -> list[tuple[int, int]]:
    width = min(width, shape.clients)
    return [(i, i + width) for i in range(0, shape.clients, width)]


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
            rows, sizes = tensors.pop(0), tensors.pop(0)
            parts.append(StackedSequence(layout, columns, rows, sizes))
        values.append(unflatten(parts, parameter.type))
    return values


def _sliced(value, begin: int, end: int):
    if isinstance(value, tuple):
        return tuple(_sliced(part, begin, end) for part in value)
    if isinstance(value, StackedSequence):
        return attrs.evolve(value, rows=value.rows[begin:end], sizes=value.sizes[begin:end])
    return stacked(value.tensor[begin:end])


def _merged(run: Interpreter, join: Function, partial: list, present: tf.Tensor, type_: Type, *, full: bool):
    """Neighbouring blocks joined; where the second of a pair is absent, the first goes on as it is."""
    left, right = [t[0::2] for t in partial], [t[1::2] for t in partial]
    pairs = [unflatten([stacked(t) for t in side], type_) for side in (left, right)]
    count = int(left[0].shape[0]) if left else 0
    joined = [_stack(lane, count) for lane in flatten(run.run(join, *pairs))]
    if not full:
        joined = [_where(present[1::2], j, first) for j, first in zip(joined, left, strict=True)]
    return joined, present[0::2]

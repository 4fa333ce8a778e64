"""Evaluates a graph for K clients at once, operation by operation, into the graph being built."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, Known, NoBatchingRule, Padding, batching_rules
from fedcore.graphs.batched.known_values import MAX_ENTRIES, fold
from fedcore.graphs.graphdef.parsed_graph import Body, Node, emit

PACKET_BYTES = 64
"""What one instruction of a vector loop takes at most; the rest at the end of a tensor takes other instructions."""

_CONTROL_FLOW = frozenset(
    {"PartitionedCall", "StatefulPartitionedCall", "StatelessWhile", "While", "StatelessIf", "If", "Assert"}
)

# What is known of a list's elements is known by these rules alone.
_LISTS = frozenset(
    {
        *("TensorListReserve", "EmptyTensorList", "TensorListFromTensor"),
        *("TensorListPushBack", "TensorListPopBack", "TensorListSetItem"),
    }
)


class BatchedEvaluation:
    """One evaluation: the clients, their batches, and what rules need to compute with lanes.

    Guarantees:
      - Isolation: a graph with a variable or another operation that has effects or state is refused, so it runs
        client by client, where variables start fresh.

    Args:
        clients: K, how many values are stacked.
        rows: the padded size of the batch; None where nothing is padded.
        sizes: int64 [K], the rows that client k really has; None where nothing is padded.
    """

    def __init__(self, clients: int, rows: int | None = None, sizes: tf.Tensor | None = None):
        self.clients = clients
        self.rows = rows
        self.sizes = sizes
        self.probes = (0, 0, 0) if rows is None else (rows, 2 * rows + 1, 3 * rows + 2)
        self._made: dict = {}

    def inside(self) -> "BatchedEvaluation":
        """The same for a function within the graph being built: it makes its own constants and masks."""
        return BatchedEvaluation(self.clients, self.rows, self.sizes)

    # --- evaluating ---

    def run(self, body: Body, lanes: Sequence[BatchedValue]) -> list[BatchedValue]:
        """The results of a body for its arguments."""
        found = {(name, 0): lane for name, lane in zip(body.arguments, lanes, strict=True)}
        for node in body.nodes:
            if node.stateful and node.op not in _CONTROL_FLOW:
                raise NoBatchingRule(node.op, "it has effects or state, which clients would share")
        for node in body.nodes:
            outputs = self.evaluate(node, [found[i] for i in node.inputs], body)
            found.update(((node.name, i), lane) for i, lane in enumerate(outputs))
        return [found[r] for r in body.results]

    def evaluate(self, node: Node, lanes: list[BatchedValue], body: Body | None = None) -> list[BatchedValue]:
        """The results of one operation."""
        if node.op in _CONTROL_FLOW:
            return batching_rules[node.op](self, node, body, *lanes) if node.op in batching_rules else self._none(node)
        if node.op == "Const":
            return [_constant(node)]
        if node.op == "NoOp":
            return []
        known = fold(node, lanes)
        if known is not None and all(k.constant or k.affine(self.probes) for k in known):
            return [BatchedValue(None, not k.constant, known=k) for k in known]
        if all(lane.plain for lane in lanes) and node.op not in _LISTS:
            return [BatchedValue(t) for t in emit(node.op, [self.tensor(x) for x in lanes], node.attributes)]
        try:
            outputs = self._by_rule(node, lanes)
        except NoBatchingRule as error:
            if known is None:
                raise
            return [BatchedValue(None, True, known=k, missing=error) for k in known]
        if known is None:
            return outputs
        return [
            BatchedValue(x.tensor, x.stacked, x.padded_axis, x.times, known=k, padding=x.padding)
            for x, k in zip(outputs, known, strict=True)
        ]

    def _by_rule(self, node: Node, lanes: list[BatchedValue]) -> list[BatchedValue]:
        if node.op not in batching_rules:
            self._none(node)
        try:
            outputs = batching_rules[node.op](self, node, *lanes)
        except (TypeError, ValueError) as error:  # TensorFlow's, for shapes that a rule did not think of
            raise NoBatchingRule(node.op, f"{error}") from error
        return outputs if isinstance(outputs, list) else [outputs]

    def _none(self, node: Node):
        raise NoBatchingRule(node.op, "the operation has no rule")

    # --- lanes as tensors ---

    def tensor(self, lane: BatchedValue) -> tf.Tensor:
        """The tensor of a lane, with the leading axis of clients where it is stacked."""
        if lane.tensor is not None:
            return lane.tensor
        if lane.missing is not None:
            raise lane.missing
        known = lane.known
        assert known is not None
        first = known.values[0]
        key = (first.dtype.str, first.shape, *(v.tobytes() for v in known.values))
        if first.dtype == object:
            return tf.constant(first)
        if key not in self._made:
            self._made[key] = tf.constant(first) if known.constant else self._from_sizes(known)
        return self._made[key]

    def _from_sizes(self, known: Known) -> tf.Tensor:
        affine = known.affine(self.probes)
        assert affine is not None
        assert self.sizes is not None
        slope, start = affine
        dtype = tf.as_dtype(known.values[0].dtype)
        key = ("sizes", dtype)
        if key not in self._made:
            self._made[key] = tf.cast(self.sizes, dtype)
        sizes = self._made[key]
        if slope.ndim:
            sizes = tf.reshape(sizes, [self.clients] + [1] * slope.ndim)
        if (slope != 1).any():
            sizes = sizes * tf.constant(slope.astype(dtype.as_numpy_dtype))
        if start.any():
            sizes = sizes + tf.constant(start.astype(dtype.as_numpy_dtype))
        return sizes

    def stack(self, lane: BatchedValue) -> tf.Tensor:
        """The tensor with the leading axis of clients, made by copying where it has none."""
        tensor = self.tensor(lane)
        if lane.stacked or tensor.dtype == tf.variant:
            return tensor
        shape = tf.concat([[self.clients], tf.shape(tensor)], 0)
        if tensor.shape.is_fully_defined():
            shape = [self.clients, *tensor.shape]
        return tf.broadcast_to(tensor, shape)

    def shape(self, lane: BatchedValue) -> tf.TensorShape:
        """The shape of one client's value, the batch padded."""
        if lane.tensor is None:
            assert lane.known is not None
            return tf.TensorShape(lane.known.values[0].shape)
        shape = lane.tensor.shape[1:] if lane.stacked else lane.tensor.shape
        if shape.rank is None:
            raise NoBatchingRule("a tensor", "its number of axes is unknown")
        return shape

    def rank(self, lane: BatchedValue) -> int:
        return len(self.shape(lane))

    # --- operands known while building ---

    def constant(self, node: Node, lane: BatchedValue) -> np.ndarray:
        """An operand that has to be the same for every client and known now: axes, paddings, slices."""
        value = self.known(lane)
        if value is None or not value.constant:
            raise NoBatchingRule(node.op, "an operand that has to be constant is not")
        return value.values[0]

    def known(self, lane: BatchedValue) -> Known | None:
        """What is known of a value now."""
        if lane.known is not None:
            return lane.known
        if not lane.plain or lane.tensor is None:
            return None
        value = tf.get_static_value(lane.tensor)
        return None if value is None else Known.always(value)

    # --- the batch ---

    def mask(self, rank: int, axis: int, times: int = 1) -> tf.Tensor:
        """Which entries are of real rows: bool [K,1…,rows,1…] for values of a rank."""
        if self.sizes is None or self.rows is None:
            raise NoBatchingRule("a batch", "it has no sizes")
        key: tuple = ("mask", times)
        if key not in self._made:
            lengths = self.sizes if times == 1 else self.sizes * times
            self._made[key] = tf.expand_dims(lengths, 1) > np.arange(self.rows * times)
        shape = [self.clients] + [1] * rank
        shape[axis + 1] = self.rows * times
        key = ("mask", times, axis, rank)
        if key not in self._made:
            rows = self._made["mask", times]
            self._made[key] = rows if shape == rows.shape else tf.reshape(rows, shape)
        return self._made[key]

    def masked(self, lane: BatchedValue, fill=0) -> tf.Tensor:
        """The stacked tensor with `fill` in all padded rows; as it is where nothing is padded."""
        tensor = self.tensor(lane)
        if lane.padded_axis is None or (not fill and lane.padding is Padding.ZEROS):
            return tensor
        key = ("masked", id(tensor), lane.padded_axis, fill)
        if key not in self._made:
            self._made[key] = (self._filled(lane, tensor, tf.constant(fill, tensor.dtype)), tensor)
        return self._made[key][0]

    def _filled(self, lane: BatchedValue, tensor: tf.Tensor, fill: tf.Tensor) -> tf.Tensor:
        """Row by row where the rows come first: choosing with broadcasting takes TensorFlow several times as long."""
        assert lane.padded_axis is not None
        if lane.padded_axis or not lane.stacked or not tensor.shape.is_fully_defined():
            return tf.where(self.mask(self.rank(lane), lane.padded_axis, lane.times), tensor, fill)
        rows = self.mask(1, 0, lane.times)
        if self.rank(lane) == 1:
            return tf.raw_ops.Select(condition=rows, x=tensor, y=tf.fill(tensor.shape, fill))
        rows, flat = tf.reshape(rows, [-1]), _reshaped(tensor, [math.prod(tensor.shape[:2]), *tensor.shape[2:]])
        return tf.reshape(tf.raw_ops.Select(condition=rows, x=flat, y=tf.fill(flat.shape, fill)), tensor.shape)

    def batch_axis(self, node: Node, shapes: Known) -> tuple[int | None, int]:
        """Which axis of a shape is the batch, and how many entries of it a row has."""
        if shapes.constant:
            return None, 1
        first, second, third = (np.asarray(v, np.int64).reshape(-1) for v in shapes.values)
        axes = np.nonzero((first != second) | (first != third))[0]
        if len(axes) != 1:
            raise NoBatchingRule(node.op, "a shape has the batch in several axes")
        (axis,) = axes
        times = first[axis] // self.probes[0]
        sized = [v[axis] == times * p for v, p in zip((first, second, third), self.probes, strict=True)]
        if not all(sized):
            raise NoBatchingRule(node.op, "an axis is neither the batch nor of constant size")
        return int(axis), int(times)

    def shape_known(self, lane: BatchedValue) -> Known | None:
        """The shape of one client's value for each of the three sizes, if it is static."""
        if lane.tensor is not None and lane.tensor.shape.rank is None:
            return None
        shape = self.shape(lane)
        if not shape.is_fully_defined():
            return None
        sizes = [np.asarray(shape.as_list(), np.int64) for _ in range(3)]
        if lane.padded_axis is not None:
            for size, probe in zip(sizes, self.probes, strict=True):
                size[lane.padded_axis] = probe * lane.times
        return Known.of(sizes)

    # --- the same bits at every number of clients ---

    def even(self, fn: Callable, *tensors: tf.Tensor) -> tf.Tensor:
        """An elementwise function of stacked tensors of one shape, such that no entry is left over at the end.

        The last entries of a buffer, those that fill no vector register, take a scalar path with other last bits;
        which client they belong to would depend on K.
        """
        shape = tensors[0].shape
        total = shape.num_elements()
        extra = _missing(total, tensors[0].dtype)
        if not extra:
            return fn(*tensors)
        flat = [tf.pad(tf.reshape(t, [-1]), [[0, extra]], constant_values=1) for t in tensors]
        out = fn(*flat)[:-extra]
        return tf.reshape(out, tf.shape(tensors[0]) if total is None else shape)

    def even_rows(self, fn: Callable, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """The same for a function of rows, whose results have the rows as leading axis."""
        extra = _missing(tensors[0].shape[0], tensors[0].dtype)
        if not extra:
            return fn(*tensors)
        padded = [tf.pad(t, [[0, extra]] + [[0, 0]] * (t.shape.rank - 1)) for t in tensors]
        return [t[:-extra] for t in fn(*padded)]


def _reshaped(tensor: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """As tf.reshape; what only had this shape before is taken from there."""
    before = tensor.op.inputs[0] if tensor.op.type == "Reshape" else tensor
    return before if before.shape == shape else tf.reshape(tensor, shape)


def _missing(entries: int | None, dtype: tf.DType) -> int:
    """How many more entries fill the last packet; a whole one where it is not known how many there are."""
    packet = PACKET_BYTES // dtype.size
    return packet if entries is None else -entries % packet


def _constant(node: Node) -> BatchedValue:
    value = tf.make_ndarray(node["value"])
    if value.size <= MAX_ENTRIES and node["dtype"] != tf.string:
        return BatchedValue(None, known=Known.always(value))
    (tensor,) = emit("Const", [], node.attributes)
    return BatchedValue(tensor)

"""Shapes read off values, and values given new shapes."""

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, Known, NoBatchingRule, Padding, batching_rule
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Node


@batching_rule("Shape")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    dtype = node.get("out_type", tf.int32)
    known = call.shape_known(x)
    if known is not None:
        values = [v.astype(dtype.as_numpy_dtype) for v in known.values]
        return BatchedValue(None, not known.constant, known=Known.of(values))
    if x.padded_axis is not None:
        raise NoBatchingRule("Shape", "another axis than the batch is of unknown size")
    return BatchedValue(tf.shape(call.tensor(x), dtype)[int(x.stacked) :])


@batching_rule("ShapeN")
def _(call: BatchedEvaluation, node: Node, *lanes: BatchedValue) -> list[BatchedValue]:
    single = Node(node.name, "Shape", (), {"out_type": node.get("out_type", tf.int32)})
    return [lane for x in lanes for lane in call.evaluate(single, [x])]


@batching_rule("Size")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    dtype = node.get("out_type", tf.int32)
    known = call.shape_known(x)
    if known is None:
        if x.padded_axis is not None:
            raise NoBatchingRule("Size", "another axis than the batch is of unknown size")
        return BatchedValue(tf.reduce_prod(tf.shape(call.tensor(x), dtype)[int(x.stacked) :]))
    values = [np.prod(v).astype(dtype.as_numpy_dtype) for v in known.values]
    sizes = Known.of(values)
    return BatchedValue(None, not sizes.constant, known=sizes)


@batching_rule("Rank")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    return BatchedValue(None, known=Known.always(np.int32(call.rank(x))))


def target(call: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue) -> Known | None:
    """The shape that a Reshape gives one client's value, -1 resolved; None where it is not static."""
    wanted, have = call.known(shape), call.shape_known(x)
    if wanted is None:
        return None
    if have is None:
        return wanted if wanted.constant and (wanted.values[0] >= 0).all() else None
    return Known.of([_resolved(w, h) for w, h in zip(wanted.values, have.values, strict=True)])


def _resolved(wanted: np.ndarray, have: np.ndarray) -> np.ndarray:
    wanted = np.asarray(wanted, np.int64).reshape(-1)
    rest = int(np.prod(wanted[wanted >= 0]))
    return np.where(wanted < 0, int(np.prod(have)) // max(rest, 1), wanted)


@batching_rule("Reshape")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue) -> BatchedValue:
    known = target(call, node, x, shape)
    if known is None:
        if x.padded_axis is not None or not shape.plain:
            raise NoBatchingRule("Reshape", "a shape is not known")
        wanted = call.tensor(shape)
        return BatchedValue(_reshaped(call, x, wanted), x.stacked)
    axis, times = call.batch_axis(node, known)
    if (axis is None) != (x.padded_axis is None):
        raise NoBatchingRule("Reshape", "the batch is no axis of its own afterwards")
    sizes = known.values[0]
    if axis is not None and x.padded_axis is not None:
        before = np.prod(call.shape(x).as_list()[: x.padded_axis])
        if before != np.prod(sizes[:axis]):
            raise NoBatchingRule("Reshape", "the batch is mixed with an axis before it")
    tensor = tf.reshape(call.tensor(x), [call.clients, *sizes] if x.stacked else sizes)
    return BatchedValue(tensor, x.stacked, axis, times, padding=x.padding)


def _reshaped(call: BatchedEvaluation, x: BatchedValue, wanted) -> tf.Tensor:
    tensor = call.tensor(x)
    if not x.stacked:
        return tf.reshape(tensor, wanted)
    static = tf.get_static_value(wanted)
    if static is not None:
        return tf.reshape(tensor, [call.clients, *static])
    return tf.reshape(tensor, tf.concat([tf.constant([call.clients], wanted.dtype), wanted], 0))


@batching_rule("Fill")
def _(call: BatchedEvaluation, node: Node, dims: BatchedValue, value: BatchedValue) -> BatchedValue:
    known = call.known(dims)
    if known is None:
        if not dims.plain:
            raise NoBatchingRule("Fill", "a shape is not known")
        return broadcast(call, value, call.tensor(dims), None, 1)
    axis, times = call.batch_axis(node, known)
    return broadcast(call, value, known.values[0], axis, times)


@batching_rule("BroadcastTo")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue) -> BatchedValue:
    known = call.known(shape)
    if known is None:
        if not shape.plain or x.padded_axis is not None:
            raise NoBatchingRule("BroadcastTo", "a shape is not known")
        return broadcast(call, x, call.tensor(shape), None, 1)
    axis, times = call.batch_axis(node, known)
    if x.padded_axis is not None and x.padded_axis + len(known.values[0]) - call.rank(x) != axis:
        raise NoBatchingRule("BroadcastTo", "the batch becomes another axis")
    return broadcast(call, x, known.values[0], axis, times)


def broadcast(call: BatchedEvaluation, x: BatchedValue, shape, axis: int | None, times: int) -> BatchedValue:
    """One client's value broadcast to a shape; values alike for all clients stay so."""
    tensor = call.tensor(x)
    if not x.stacked:
        return BatchedValue(tf.broadcast_to(tensor, shape), False, axis, times, padding=_repeated(x))
    rank = len(shape) if isinstance(shape, np.ndarray) else shape.shape[0]
    if rank is None:
        raise NoBatchingRule("BroadcastTo", "its number of axes is unknown")
    tensor = tf.reshape(tensor, [call.clients, *[1] * (rank - call.rank(x)), *_sizes(call, x)])
    whole = [call.clients, *shape] if isinstance(shape, np.ndarray) else tf.concat([[call.clients], shape], 0)
    return BatchedValue(tf.broadcast_to(tensor, whole), True, axis, times, padding=_repeated(x))


def _repeated(x: BatchedValue) -> Padding:
    """Rows that are made by repeating one are all alike."""
    return Padding.COPIES if x.padded_axis is None else x.padding


def _sizes(call: BatchedEvaluation, x: BatchedValue) -> list:
    shape = call.shape(x)
    if shape.is_fully_defined():
        return shape.as_list()
    dynamic = tf.shape(call.tensor(x))[int(x.stacked) :]
    return [dynamic[i] if s is None else s for i, s in enumerate(shape)]


@batching_rule("Tile")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, multiples: BatchedValue) -> BatchedValue:
    known, have = call.known(multiples), call.shape_known(x)
    if known is None or (have is None and x.padded_axis is not None):
        if not multiples.plain or x.padded_axis is not None:
            raise NoBatchingRule("Tile", "a shape is not known")
        counts = call.tensor(multiples)
        counts = tf.concat([tf.ones([1], counts.dtype), counts], 0) if x.stacked else counts
        return BatchedValue(tf.tile(call.tensor(x), counts), x.stacked)
    counts = known.values[0]
    if x.padded_axis is not None and counts[x.padded_axis] != 1:
        raise NoBatchingRule("Tile", "the batch is repeated")
    axis, times = x.padded_axis, x.times
    if not known.constant:
        axis, times = call.batch_axis(node, known)
        if have is None or x.padded_axis is not None or have.values[0][axis] != 1:
            raise NoBatchingRule("Tile", "an axis is repeated for each row of a batch")
    tensor = tf.tile(call.tensor(x), [1, *counts] if x.stacked else counts)
    return BatchedValue(tensor, x.stacked, axis, times, padding=_repeated(x))


@batching_rule("ExpandDims")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    at = int(call.constant(node, axis).reshape(()))
    at = at + call.rank(x) + 1 if at < 0 else at
    padded_axis = None if x.padded_axis is None else x.padded_axis + int(at <= x.padded_axis)
    return BatchedValue(
        tf.expand_dims(call.tensor(x), at + int(x.stacked)), x.stacked, padded_axis, x.times, padding=x.padding
    )


@batching_rule("Squeeze")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    rank = call.rank(x)
    shape = call.shape(x)
    axes = sorted(int(a) % rank for a in node.get("squeeze_dims") or [])
    axes = axes or [i for i, s in enumerate(shape) if s == 1 and i != x.padded_axis]
    if x.padded_axis in axes or any(shape[a] not in (1, None) for a in axes):
        raise NoBatchingRule("Squeeze", "the batch would be taken away")
    if not axes:
        return x
    padded_axis = None if x.padded_axis is None else x.padded_axis - sum(a < x.padded_axis for a in axes)
    tensor = tf.squeeze(call.tensor(x), [a + int(x.stacked) for a in axes])
    return BatchedValue(tensor, x.stacked, padded_axis, x.times, padding=x.padding)


@batching_rule("BroadcastGradientArgs")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> list[BatchedValue]:
    raise NoBatchingRule("BroadcastGradientArgs", "shapes that differ between clients, or are not known")


@batching_rule("Range")
def _(
    call: BatchedEvaluation, node: Node, start: BatchedValue, limit: BatchedValue, delta: BatchedValue
) -> BatchedValue:
    """0, 1, … up to the size of the batch has an entry for each row."""
    first, step, known = call.constant(node, start), call.constant(node, delta), call.known(limit)
    if known is None or first != 0 or step != 1:
        raise NoBatchingRule("Range", "its limits differ between clients")
    axis, times = call.batch_axis(node, Known.of([v.reshape(1) for v in known.values]))
    return BatchedValue(tf.range(0, known.values[0], 1, node["Tidx"]), False, axis, times)

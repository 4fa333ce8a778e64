"""Shapes read off values, and values given new shapes."""

import numpy as np
import tensorflow as tf

from fedcore.graphs.vectorise.call import Call
from fedcore.graphs.vectorise.lanes import Known, Lane, NoRule, Padding, rule
from fedcore.graphs.vectorise.nodes import Node


@rule("Shape")
def _(call: Call, node: Node, x: Lane) -> Lane:
    dtype = node.get("out_type", tf.int32)
    known = call.shape_known(x)
    if known is not None:
        values = [v.astype(dtype.as_numpy_dtype) for v in known.values]
        return Lane(None, not known.constant, known=Known.of(values))
    if x.ragged is not None:
        raise NoRule("Shape", "another axis than the batch is of unknown size")
    return Lane(tf.shape(call.tensor(x), dtype)[int(x.stacked) :])


@rule("ShapeN")
def _(call: Call, node: Node, *lanes: Lane) -> list[Lane]:
    single = Node(node.name, "Shape", (), {"out_type": node.get("out_type", tf.int32)})
    return [lane for x in lanes for lane in call.evaluate(single, [x])]


@rule("Size")
def _(call: Call, node: Node, x: Lane) -> Lane:
    dtype = node.get("out_type", tf.int32)
    known = call.shape_known(x)
    if known is None:
        if x.ragged is not None:
            raise NoRule("Size", "another axis than the batch is of unknown size")
        return Lane(tf.reduce_prod(tf.shape(call.tensor(x), dtype)[int(x.stacked) :]))
    values = [np.prod(v).astype(dtype.as_numpy_dtype) for v in known.values]
    sizes = Known.of(values)
    return Lane(None, not sizes.constant, known=sizes)


@rule("Rank")
def _(call: Call, node: Node, x: Lane) -> Lane:
    return Lane(None, known=Known.always(np.int32(call.rank(x))))


def target(call: Call, node: Node, x: Lane, shape: Lane) -> Known | None:
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


@rule("Reshape")
def _(call: Call, node: Node, x: Lane, shape: Lane) -> Lane:
    known = target(call, node, x, shape)
    if known is None:
        if x.ragged is not None or not shape.plain:
            raise NoRule("Reshape", "a shape is not known")
        wanted = call.tensor(shape)
        return Lane(_reshaped(call, x, wanted), x.stacked)
    axis, times = call.batch_axis(node, known)
    if (axis is None) != (x.ragged is None):
        raise NoRule("Reshape", "the batch is no axis of its own afterwards")
    sizes = known.values[0]
    if axis is not None and x.ragged is not None:
        before = np.prod(call.shape(x).as_list()[: x.ragged])
        if before != np.prod(sizes[:axis]):
            raise NoRule("Reshape", "the batch is mixed with an axis before it")
    tensor = tf.reshape(call.tensor(x), [call.clients, *sizes] if x.stacked else sizes)
    return Lane(tensor, x.stacked, axis, times, padding=x.padding)


def _reshaped(call: Call, x: Lane, wanted) -> tf.Tensor:
    tensor = call.tensor(x)
    if not x.stacked:
        return tf.reshape(tensor, wanted)
    static = tf.get_static_value(wanted)
    if static is not None:
        return tf.reshape(tensor, [call.clients, *static])
    return tf.reshape(tensor, tf.concat([tf.constant([call.clients], wanted.dtype), wanted], 0))


@rule("Fill")
def _(call: Call, node: Node, dims: Lane, value: Lane) -> Lane:
    known = call.known(dims)
    if known is None:
        if not dims.plain:
            raise NoRule("Fill", "a shape is not known")
        return broadcast(call, value, call.tensor(dims), None, 1)
    axis, times = call.batch_axis(node, known)
    return broadcast(call, value, known.values[0], axis, times)


@rule("BroadcastTo")
def _(call: Call, node: Node, x: Lane, shape: Lane) -> Lane:
    known = call.known(shape)
    if known is None:
        if not shape.plain or x.ragged is not None:
            raise NoRule("BroadcastTo", "a shape is not known")
        return broadcast(call, x, call.tensor(shape), None, 1)
    axis, times = call.batch_axis(node, known)
    if x.ragged is not None and x.ragged + len(known.values[0]) - call.rank(x) != axis:
        raise NoRule("BroadcastTo", "the batch becomes another axis")
    return broadcast(call, x, known.values[0], axis, times)


def broadcast(call: Call, x: Lane, shape, axis: int | None, times: int) -> Lane:
    """One client's value broadcast to a shape; values alike for all clients stay so."""
    tensor = call.tensor(x)
    if not x.stacked:
        return Lane(tf.broadcast_to(tensor, shape), False, axis, times, padding=_repeated(x))
    rank = len(shape) if isinstance(shape, np.ndarray) else shape.shape[0]
    if rank is None:
        raise NoRule("BroadcastTo", "its number of axes is unknown")
    tensor = tf.reshape(tensor, [call.clients, *[1] * (rank - call.rank(x)), *_sizes(call, x)])
    whole = [call.clients, *shape] if isinstance(shape, np.ndarray) else tf.concat([[call.clients], shape], 0)
    return Lane(tf.broadcast_to(tensor, whole), True, axis, times, padding=_repeated(x))


def _repeated(x: Lane) -> Padding:
    """Rows that are made by repeating one are all alike."""
    return Padding.COPIES if x.ragged is None else x.padding


def _sizes(call: Call, x: Lane) -> list:
    shape = call.shape(x)
    if shape.is_fully_defined():
        return shape.as_list()
    dynamic = tf.shape(call.tensor(x))[int(x.stacked) :]
    return [dynamic[i] if s is None else s for i, s in enumerate(shape)]


@rule("Tile")
def _(call: Call, node: Node, x: Lane, multiples: Lane) -> Lane:
    known, have = call.known(multiples), call.shape_known(x)
    if known is None or (have is None and x.ragged is not None):
        if not multiples.plain or x.ragged is not None:
            raise NoRule("Tile", "a shape is not known")
        counts = call.tensor(multiples)
        counts = tf.concat([tf.ones([1], counts.dtype), counts], 0) if x.stacked else counts
        return Lane(tf.tile(call.tensor(x), counts), x.stacked)
    counts = known.values[0]
    if x.ragged is not None and counts[x.ragged] != 1:
        raise NoRule("Tile", "the batch is repeated")
    axis, times = x.ragged, x.times
    if not known.constant:
        axis, times = call.batch_axis(node, known)
        if have is None or x.ragged is not None or have.values[0][axis] != 1:
            raise NoRule("Tile", "an axis is repeated for each row of a batch")
    tensor = tf.tile(call.tensor(x), [1, *counts] if x.stacked else counts)
    return Lane(tensor, x.stacked, axis, times, padding=_repeated(x))


@rule("ExpandDims")
def _(call: Call, node: Node, x: Lane, axis: Lane) -> Lane:
    at = int(call.constant(node, axis).reshape(()))
    at = at + call.rank(x) + 1 if at < 0 else at
    ragged = None if x.ragged is None else x.ragged + int(at <= x.ragged)
    return Lane(tf.expand_dims(call.tensor(x), at + int(x.stacked)), x.stacked, ragged, x.times, padding=x.padding)


@rule("Squeeze")
def _(call: Call, node: Node, x: Lane) -> Lane:
    rank = call.rank(x)
    shape = call.shape(x)
    axes = sorted(int(a) % rank for a in node.get("squeeze_dims") or [])
    axes = axes or [i for i, s in enumerate(shape) if s == 1 and i != x.ragged]
    if x.ragged in axes or any(shape[a] not in (1, None) for a in axes):
        raise NoRule("Squeeze", "the batch would be taken away")
    if not axes:
        return x
    ragged = None if x.ragged is None else x.ragged - sum(a < x.ragged for a in axes)
    tensor = tf.squeeze(call.tensor(x), [a + int(x.stacked) for a in axes])
    return Lane(tensor, x.stacked, ragged, x.times, padding=x.padding)


@rule("BroadcastGradientArgs")
def _(call: Call, node: Node, x: Lane, y: Lane) -> list[Lane]:
    raise NoRule("BroadcastGradientArgs", "shapes that differ between clients, or are not known")


@rule("Range")
def _(call: Call, node: Node, start: Lane, limit: Lane, delta: Lane) -> Lane:
    """0, 1, … up to the size of the batch has an entry for each row."""
    first, step, known = call.constant(node, start), call.constant(node, delta), call.known(limit)
    if known is None or first != 0 or step != 1:
        raise NoRule("Range", "its limits differ between clients")
    axis, times = call.batch_axis(node, Known.of([v.reshape(1) for v in known.values]))
    return Lane(tf.range(0, known.values[0], 1, node["Tidx"]), False, axis, times)

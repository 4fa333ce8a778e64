"""Operations that move entries: slices, joins, transposes, gathers and their gradients."""

import numpy as np
import tensorflow as tf

from fedcore.graphs.vectorise.call import Call
from fedcore.graphs.vectorise.lanes import Lane, NoRule, row_by_row, rule
from fedcore.graphs.vectorise.nodes import Node, emit


@rule("Transpose")
def _(call: Call, node: Node, x: Lane, order: Lane) -> Lane:
    axes = [int(a) for a in call.constant(node, order)]
    ragged = None if x.ragged is None else axes.index(x.ragged)
    moved = [0, *(a + 1 for a in axes)] if x.stacked else axes
    return Lane(tf.transpose(call.tensor(x), moved), x.stacked, ragged, x.times, padding=x.padding)


def same_axes(call: Call, node: Node, lanes: tuple[Lane, ...]) -> tuple[list[tf.Tensor], Lane]:
    """Tensors that are all stacked if one is, and a lane with their common batch (without a tensor)."""
    axes = {(x.ragged, x.times) for x in lanes if x.ragged is not None}
    if len(axes) > 1:
        raise NoRule(node.op, "batches lie along different axes")
    ragged, times = next(iter(axes), (None, 1))
    if ragged is not None and any(x.ragged is None for x in lanes):
        raise NoRule(node.op, "a batch is joined with an axis of constant size")
    stacked = any(x.stacked for x in lanes)
    joined = Lane(None, stacked, ragged, times, padding=row_by_row(lanes))
    return [call.stack(x) if stacked else call.tensor(x) for x in lanes], joined


@rule("Pack")
def _(call: Call, node: Node, *lanes: Lane) -> Lane:
    tensors, axes = same_axes(call, node, lanes)
    at = node.get("axis", 0)
    at = at + call.rank(lanes[0]) + 1 if at < 0 else at
    ragged = None if axes.ragged is None else axes.ragged + int(at <= axes.ragged)
    return Lane(tf.stack(tensors, at + int(axes.stacked)), axes.stacked, ragged, axes.times)


@rule("ConcatV2")
def _(call: Call, node: Node, *operands: Lane) -> Lane:
    *lanes, axis = operands
    tensors, axes = same_axes(call, node, tuple(lanes))
    at = int(call.constant(node, axis)) % call.rank(lanes[0])
    if at == axes.ragged:
        raise NoRule("ConcatV2", "rows are joined along the batch")
    return axes.like(tf.concat(tensors, at + int(axes.stacked)))


@rule("Unpack")
def _(call: Call, node: Node, x: Lane) -> list[Lane]:
    at = node.get("axis", 0) % call.rank(x)
    if at == x.ragged:
        raise NoRule("Unpack", "rows are taken apart along the batch")
    ragged = None if x.ragged is None else x.ragged - int(at < x.ragged)
    parts = tf.unstack(call.tensor(x), node["num"], at + int(x.stacked))
    return [Lane(t, x.stacked, ragged, x.times) for t in parts]


@rule("Split")
def _(call: Call, node: Node, axis: Lane, x: Lane) -> list[Lane]:
    return _split(call, node, x, axis, node["num_split"])


@rule("SplitV")
def _(call: Call, node: Node, x: Lane, sizes: Lane, axis: Lane) -> list[Lane]:
    return _split(call, node, x, axis, [int(s) for s in call.constant(node, sizes)])


def _split(call: Call, node: Node, x: Lane, axis: Lane, parts) -> list[Lane]:
    at = int(call.constant(node, axis)) % call.rank(x)
    if at == x.ragged:
        raise NoRule(node.op, "rows are taken apart along the batch")
    return [x.like(t) for t in tf.split(call.tensor(x), parts, at + int(x.stacked))]


@rule("StridedSlice")
def _(call: Call, node: Node, x: Lane, begin: Lane, end: Lane, strides: Lane) -> Lane:
    ragged = _kept(call, node, x, call.rank(x), begin, end, strides)
    if not x.stacked:
        bounds = [(v, call.known(v)) for v in (begin, end, strides)]
        tensors = [call.tensor(v) if k is None else tf.constant(k.values[0]) for v, k in bounds]
        return Lane(emit(node.op, [call.tensor(x), *tensors], node.attributes)[0], False, ragged, x.times)
    operands, attributes = _shifted(call, node, begin, end, strides)
    return Lane(emit(node.op, [call.tensor(x), *operands], attributes)[0], True, ragged, x.times)


@rule("StridedSliceGrad")
def _(call: Call, node: Node, shape: Lane, begin: Lane, end: Lane, strides: Lane, dy: Lane) -> Lane:
    known = call.known(shape)
    operands, attributes = _shifted(call, node, begin, end, strides)
    if known is None:
        if not shape.plain or dy.ragged is not None:
            raise NoRule(node.op, "a shape is not known")
        sizes = call.tensor(shape)
        whole = tf.concat([tf.constant([call.clients], sizes.dtype), sizes], 0)
        return Lane(emit(node.op, [whole, *operands, call.stack(dy)], attributes)[0], True)
    axis, times = call.batch_axis(node, known)
    like = Lane(None, ragged=axis, times=times)
    if _kept(call, node, like, len(known.values[0]), begin, end, strides) != dy.ragged:
        raise NoRule(node.op, "the batch becomes another axis")
    sizes = known.values[0]
    whole = tf.constant(np.concatenate([[call.clients], sizes]).astype(sizes.dtype))
    return Lane(emit(node.op, [whole, *operands, call.stack(dy)], attributes)[0], True, axis, times)


def _shifted(call: Call, node: Node, *bounds: Lane) -> tuple[list, dict]:
    """The bounds of a strided slice behind one more axis, which is kept whole."""
    operands = []
    for bound, first in zip(bounds, (0, 0, 1), strict=True):
        known = call.known(bound)
        if known is not None:
            value = known.values[0]
            operands.append(tf.constant(np.concatenate([[first], value]).astype(value.dtype)))
            continue
        if not bound.plain:
            raise NoRule(node.op, "where it is cut differs between clients")
        tensor = call.tensor(bound)
        operands.append(tf.concat([tf.constant([first], tensor.dtype), tensor], 0))
    attributes = dict(node.attributes)
    for mask in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"):
        attributes[mask] = (node.get(mask, 0) << 1) | int(mask in ("begin_mask", "end_mask"))
    return operands, attributes


def _kept(call: Call, node: Node, x: Lane, rank: int, begin: Lane, end: Lane, strides: Lane) -> int | None:
    """The position after a strided slice of the batch axis, which must be kept whole; other cuts are alike for all."""
    if x.ragged is None:
        if not (begin.plain and end.plain and strides.plain):
            raise NoRule(node.op, "where it is cut differs between clients")
        return None
    steps = call.constant(node, strides)
    starts, stops = call.known(begin), call.known(end)
    if starts is None or stops is None:
        raise NoRule(node.op, "where it is cut is not known")
    if not (starts.polynomial and stops.polynomial):
        raise NoRule(node.op, "where it is cut differs between clients")
    count = len(steps)
    masks = {m: node.get(f"{m}_mask", 0) for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}

    def has(mask: str, i: int) -> bool:
        return bool(masks[mask] >> i & 1)

    indexed = sum(not has("new_axis", i) and not has("ellipsis", i) for i in range(count))
    ragged, axis, position = x.ragged, 0, 0
    for i in range(count):
        if has("ellipsis", i):
            skipped = rank - indexed
            if axis <= ragged < axis + skipped:
                return position + ragged - axis
            axis, position = axis + skipped, position + skipped
        elif has("new_axis", i):
            position += 1
        elif axis != ragged:
            if any(len({int(v[i]) for v in k.values}) > 1 for k in (starts, stops)):
                raise NoRule(node.op, "where it is cut differs between clients")
            axis, position = axis + 1, position + int(not has("shrink_axis", i))
        else:
            whole_start = has("begin", i) or all(v[i] == 0 for v in starts.values)
            ends = zip(stops.values, call.probes, strict=True)
            whole_end = has("end", i) or all(v[i] == p * x.times for v, p in ends)
            if has("shrink_axis", i) or steps[i] != 1 or not whole_start or not whole_end:
                raise NoRule(node.op, "rows are taken from the batch")
            return position
    return position + ragged - axis


@rule("Slice")
def _(call: Call, node: Node, x: Lane, begin: Lane, size: Lane) -> Lane:
    starts, sizes = call.constant(node, begin), call.known(size)
    if sizes is None:
        raise NoRule("Slice", "its size is not known")
    if x.ragged is None:
        if not sizes.constant:
            raise NoRule("Slice", "its size differs between clients")
    else:
        wanted = [v[x.ragged] in (-1, p * x.times) for v, p in zip(sizes.values, call.probes, strict=True)]
        if starts[x.ragged] != 0 or not all(wanted) or not sizes.polynomial:
            raise NoRule("Slice", "rows are taken from the batch")
        if any((np.delete(v, x.ragged) != np.delete(sizes.values[0], x.ragged)).any() for v in sizes.values):
            raise NoRule("Slice", "its size differs between clients")
    first = sizes.values[0]
    if x.stacked:
        starts, first = np.concatenate([[0], starts]), np.concatenate([[-1], first])
    return x.like(tf.slice(call.tensor(x), starts, first))


@rule("Pad", "PadV2", "MirrorPad")
def _(call: Call, node: Node, x: Lane, paddings: Lane, *value: Lane) -> Lane:
    amounts = call.constant(node, paddings)
    if x.ragged is not None and amounts[x.ragged].any():
        raise NoRule(node.op, "the batch gets more rows")
    if any(not v.plain for v in value):
        raise NoRule(node.op, "what it is padded with differs between clients")
    whole = np.concatenate([[[0, 0]], amounts]).astype(amounts.dtype) if x.stacked else amounts
    operands = [call.tensor(x), tf.constant(whole), *(call.tensor(v) for v in value)]
    return x.like(*emit(node.op, operands, node.attributes))


@rule("ReverseV2")
def _(call: Call, node: Node, x: Lane, axis: Lane) -> Lane:
    axes = [int(a) % call.rank(x) for a in call.constant(node, axis)]
    if x.ragged in axes:
        raise NoRule("ReverseV2", "the rows of the batch change places")
    return x.like(tf.reverse(call.tensor(x), [a + int(x.stacked) for a in axes]))


@rule("OneHot")
def _(call: Call, node: Node, indices: Lane, depth: Lane, on: Lane, off: Lane) -> Lane:
    if not on.plain or not off.plain:
        raise NoRule("OneHot", "its values differ between clients")
    rank = call.rank(indices)
    at = node.get("axis", -1)
    at = rank if at < 0 else at
    ragged = None if indices.ragged is None else indices.ragged + int(at <= indices.ragged)
    classes = int(call.constant(node, depth))
    tensor = tf.one_hot(
        call.tensor(indices), classes, call.tensor(on), call.tensor(off), at + int(indices.stacked), node["T"]
    )
    return Lane(tensor, indices.stacked, ragged, indices.times)

"""Operations that move entries: slices, joins, transposes, gathers and their gradients."""

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, batching_rule, row_by_row
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Node, emit


@batching_rule("Transpose")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, order: BatchedValue) -> BatchedValue:
    axes = [int(a) for a in call.constant(node, order)]
    padded_axis = None if x.padded_axis is None else axes.index(x.padded_axis)
    moved = [0, *(a + 1 for a in axes)] if x.stacked else axes
    return BatchedValue(tf.transpose(call.tensor(x), moved), x.stacked, padded_axis, x.times, padding=x.padding)


def same_axes(
    call: BatchedEvaluation, node: Node, lanes: tuple[BatchedValue, ...]
) -> tuple[list[tf.Tensor], BatchedValue]:
    """Tensors that are all stacked if one is, and a lane with their common batch (without a tensor)."""
    axes = {(x.padded_axis, x.times) for x in lanes if x.padded_axis is not None}
    if len(axes) > 1:
        raise NoBatchingRule(node.op, "batches lie along different axes")
    padded_axis, times = next(iter(axes), (None, 1))
    if padded_axis is not None and any(x.padded_axis is None for x in lanes):
        raise NoBatchingRule(node.op, "a batch is joined with an axis of constant size")
    stacked = any(x.stacked for x in lanes)
    joined = BatchedValue(None, stacked, padded_axis, times, padding=row_by_row(lanes))
    return [call.stack(x) if stacked else call.tensor(x) for x in lanes], joined


@batching_rule("Pack")
def _(call: BatchedEvaluation, node: Node, *lanes: BatchedValue) -> BatchedValue:
    tensors, axes = same_axes(call, node, lanes)
    at = node.get("axis", 0)
    at = at + call.rank(lanes[0]) + 1 if at < 0 else at
    padded_axis = None if axes.padded_axis is None else axes.padded_axis + int(at <= axes.padded_axis)
    return BatchedValue(tf.stack(tensors, at + int(axes.stacked)), axes.stacked, padded_axis, axes.times)


@batching_rule("ConcatV2")
def _(call: BatchedEvaluation, node: Node, *operands: BatchedValue) -> BatchedValue:
    *lanes, axis = operands
    tensors, axes = same_axes(call, node, tuple(lanes))
    at = int(call.constant(node, axis)) % call.rank(lanes[0])
    if at == axes.padded_axis:
        raise NoBatchingRule("ConcatV2", "rows are joined along the batch")
    return axes.like(tf.concat(tensors, at + int(axes.stacked)))


@batching_rule("Unpack")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> list[BatchedValue]:
    at = node.get("axis", 0) % call.rank(x)
    if at == x.padded_axis:
        raise NoBatchingRule("Unpack", "rows are taken apart along the batch")
    padded_axis = None if x.padded_axis is None else x.padded_axis - int(at < x.padded_axis)
    parts = tf.unstack(call.tensor(x), node["num"], at + int(x.stacked))
    return [BatchedValue(t, x.stacked, padded_axis, x.times) for t in parts]


@batching_rule("Split")
def _(call: BatchedEvaluation, node: Node, axis: BatchedValue, x: BatchedValue) -> list[BatchedValue]:
    return _split(call, node, x, axis, node["num_split"])


@batching_rule("SplitV")
def _(
    call: BatchedEvaluation, node: Node, x: BatchedValue, sizes: BatchedValue, axis: BatchedValue
) -> list[BatchedValue]:
    return _split(call, node, x, axis, [int(s) for s in call.constant(node, sizes)])


def _split(call: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue, parts) -> list[BatchedValue]:
    at = int(call.constant(node, axis)) % call.rank(x)
    if at == x.padded_axis:
        raise NoBatchingRule(node.op, "rows are taken apart along the batch")
    return [x.like(t) for t in tf.split(call.tensor(x), parts, at + int(x.stacked))]


@batching_rule("StridedSlice")
def _(
    call: BatchedEvaluation, node: Node, x: BatchedValue, begin: BatchedValue, end: BatchedValue, strides: BatchedValue
) -> BatchedValue:
    padded_axis = _kept(call, node, x, call.rank(x), begin, end, strides)
    if not x.stacked:
        bounds = [(v, call.known(v)) for v in (begin, end, strides)]
        tensors = [call.tensor(v) if k is None else tf.constant(k.values[0]) for v, k in bounds]
        return BatchedValue(emit(node.op, [call.tensor(x), *tensors], node.attributes)[0], False, padded_axis, x.times)
    operands, attributes = _shifted(call, node, begin, end, strides)
    return BatchedValue(emit(node.op, [call.tensor(x), *operands], attributes)[0], True, padded_axis, x.times)


@batching_rule("StridedSliceGrad")
def _(
    call: BatchedEvaluation,
    node: Node,
    shape: BatchedValue,
    begin: BatchedValue,
    end: BatchedValue,
    strides: BatchedValue,
    dy: BatchedValue,
) -> BatchedValue:
    known = call.known(shape)
    operands, attributes = _shifted(call, node, begin, end, strides)
    if known is None:
        if not shape.plain or dy.padded_axis is not None:
            raise NoBatchingRule(node.op, "a shape is not known")
        sizes = call.tensor(shape)
        whole = tf.concat([tf.constant([call.clients], sizes.dtype), sizes], 0)
        return BatchedValue(emit(node.op, [whole, *operands, call.stack(dy)], attributes)[0], True)
    axis, times = call.batch_axis(node, known)
    like = BatchedValue(None, padded_axis=axis, times=times)
    if _kept(call, node, like, len(known.values[0]), begin, end, strides) != dy.padded_axis:
        raise NoBatchingRule(node.op, "the batch becomes another axis")
    sizes = known.values[0]
    whole = tf.constant(np.concatenate([[call.clients], sizes]).astype(sizes.dtype))
    return BatchedValue(emit(node.op, [whole, *operands, call.stack(dy)], attributes)[0], True, axis, times)


def _shifted(call: BatchedEvaluation, node: Node, *bounds: BatchedValue) -> tuple[list, dict]:
    """The bounds of a strided slice behind one more axis, which is kept whole."""
    operands = []
    for bound, first in zip(bounds, (0, 0, 1), strict=True):
        known = call.known(bound)
        if known is not None:
            value = known.values[0]
            operands.append(tf.constant(np.concatenate([[first], value]).astype(value.dtype)))
            continue
        if not bound.plain:
            raise NoBatchingRule(node.op, "where it is cut differs between clients")
        tensor = call.tensor(bound)
        operands.append(tf.concat([tf.constant([first], tensor.dtype), tensor], 0))
    attributes = dict(node.attributes)
    for mask in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"):
        attributes[mask] = (node.get(mask, 0) << 1) | int(mask in ("begin_mask", "end_mask"))
    return operands, attributes


def _kept(
    call: BatchedEvaluation,
    node: Node,
    x: BatchedValue,
    rank: int,
    begin: BatchedValue,
    end: BatchedValue,
    strides: BatchedValue,
) -> int | None:
    """The position after a strided slice of the batch axis, which must be kept whole; other cuts are alike for all."""
    if x.padded_axis is None:
        if not (begin.plain and end.plain and strides.plain):
            raise NoBatchingRule(node.op, "where it is cut differs between clients")
        return None
    steps = call.constant(node, strides)
    starts, stops = call.known(begin), call.known(end)
    if starts is None or stops is None:
        raise NoBatchingRule(node.op, "where it is cut is not known")
    if not (starts.polynomial and stops.polynomial):
        raise NoBatchingRule(node.op, "where it is cut differs between clients")
    count = len(steps)
    masks = {m: node.get(f"{m}_mask", 0) for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}

    def has(mask: str, i: int) -> bool:
        return bool(masks[mask] >> i & 1)

    indexed = sum(not has("new_axis", i) and not has("ellipsis", i) for i in range(count))
    padded_axis, axis, position = x.padded_axis, 0, 0
    for i in range(count):
        if has("ellipsis", i):
            skipped = rank - indexed
            if axis <= padded_axis < axis + skipped:
                return position + padded_axis - axis
            axis, position = axis + skipped, position + skipped
        elif has("new_axis", i):
            position += 1
        elif axis != padded_axis:
            if any(len({int(v[i]) for v in k.values}) > 1 for k in (starts, stops)):
                raise NoBatchingRule(node.op, "where it is cut differs between clients")
            axis, position = axis + 1, position + int(not has("shrink_axis", i))
        else:
            whole_start = has("begin", i) or all(v[i] == 0 for v in starts.values)
            ends = zip(stops.values, call.probes, strict=True)
            whole_end = has("end", i) or all(v[i] == p * x.times for v, p in ends)
            if has("shrink_axis", i) or steps[i] != 1 or not whole_start or not whole_end:
                raise NoBatchingRule(node.op, "rows are taken from the batch")
            return position
    return position + padded_axis - axis


@batching_rule("Slice")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, begin: BatchedValue, size: BatchedValue) -> BatchedValue:
    starts, sizes = call.constant(node, begin), call.known(size)
    if sizes is None:
        raise NoBatchingRule("Slice", "its size is not known")
    if x.padded_axis is None:
        if not sizes.constant:
            raise NoBatchingRule("Slice", "its size differs between clients")
    else:
        wanted = [v[x.padded_axis] in (-1, p * x.times) for v, p in zip(sizes.values, call.probes, strict=True)]
        if starts[x.padded_axis] != 0 or not all(wanted) or not sizes.polynomial:
            raise NoBatchingRule("Slice", "rows are taken from the batch")
        if any((np.delete(v, x.padded_axis) != np.delete(sizes.values[0], x.padded_axis)).any() for v in sizes.values):
            raise NoBatchingRule("Slice", "its size differs between clients")
    first = sizes.values[0]
    if x.stacked:
        starts, first = np.concatenate([[0], starts]), np.concatenate([[-1], first])
    return x.like(tf.slice(call.tensor(x), starts, first))


@batching_rule("Pad", "PadV2", "MirrorPad")
def _(
    call: BatchedEvaluation, node: Node, x: BatchedValue, paddings: BatchedValue, *value: BatchedValue
) -> BatchedValue:
    amounts = call.constant(node, paddings)
    if x.padded_axis is not None and amounts[x.padded_axis].any():
        raise NoBatchingRule(node.op, "the batch gets more rows")
    if any(not v.plain for v in value):
        raise NoBatchingRule(node.op, "what it is padded with differs between clients")
    whole = np.concatenate([[[0, 0]], amounts]).astype(amounts.dtype) if x.stacked else amounts
    operands = [call.tensor(x), tf.constant(whole), *(call.tensor(v) for v in value)]
    return x.like(*emit(node.op, operands, node.attributes))


@batching_rule("ReverseV2")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    axes = [int(a) % call.rank(x) for a in call.constant(node, axis)]
    if x.padded_axis in axes:
        raise NoBatchingRule("ReverseV2", "the rows of the batch change places")
    return x.like(tf.reverse(call.tensor(x), [a + int(x.stacked) for a in axes]))


@batching_rule("OneHot")
def _(
    call: BatchedEvaluation, node: Node, indices: BatchedValue, depth: BatchedValue, on: BatchedValue, off: BatchedValue
) -> BatchedValue:
    if not on.plain or not off.plain:
        raise NoBatchingRule("OneHot", "its values differ between clients")
    rank = call.rank(indices)
    at = node.get("axis", -1)
    at = rank if at < 0 else at
    padded_axis = None if indices.padded_axis is None else indices.padded_axis + int(at <= indices.padded_axis)
    classes = int(call.constant(node, depth))
    tensor = tf.one_hot(
        call.tensor(indices), classes, call.tensor(on), call.tensor(off), at + int(indices.stacked), node["T"]
    )
    return BatchedValue(tensor, indices.stacked, padded_axis, indices.times)

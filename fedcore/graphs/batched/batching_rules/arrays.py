"""Operations that move entries: slices, concatenations, transposes, padding, and their gradients."""

import numpy as np

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, batching_rule, common_padding
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.checked_operations import emit
from fedcore.graphs.graphdef.parsed_graph import Node


@batching_rule("Transpose")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, order: BatchedValue) -> BatchedValue:
    axes = [int(a) for a in evaluation.constant_operand(node, order)]
    padded_axis = None if x.padded_axis is None else axes.index(x.padded_axis)
    moved = [0, *(a + 1 for a in axes)] if x.batched else axes
    tensor = transposed(evaluation.tensor(x), moved)
    return BatchedValue(tensor, x.batched, padded_axis, x.entries_per_row, padding=x.padding)


def transposed(tensor: Value, order: list[int]) -> Value:
    """ops.transpose; transposes in a row become one, or none."""
    node = ops.computed_by(tensor, "Transpose")
    inner_order = None if node is None else ops.static_value(node.inputs[1])
    if node is not None and inner_order is not None:
        tensor, order = node.inputs[0], [int(inner_order[a]) for a in order]
    return tensor if order == [*range(len(order))] else ops.transpose(tensor, order)


def common_axes(
    evaluation: BatchedEvaluation, node: Node, values: tuple[BatchedValue, ...]
) -> tuple[list[Value], BatchedValue]:
    """(tensors, axes): all tensors have a client axis if one operand is batched; `axes` has no tensor."""
    axes = {(x.padded_axis, x.entries_per_row) for x in values if x.padded_axis is not None}
    if len(axes) > 1:
        raise NoBatchingRule(node.op, "the operands have their batches along different axes")
    padded_axis, entries_per_row = next(iter(axes), (None, 1))
    if padded_axis is not None and any(x.padded_axis is None for x in values):
        raise NoBatchingRule(node.op, "one operand has a batch where another has an axis of constant size")
    batched = any(x.batched for x in values)
    joined = BatchedValue(None, batched, padded_axis, entries_per_row, padding=common_padding(values))
    return [evaluation.with_client_axis(x) if batched else evaluation.tensor(x) for x in values], joined


@batching_rule("Pack")
def _(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> BatchedValue:
    tensors, axes = common_axes(evaluation, node, values)
    at = node.get("axis", 0)
    at = at + evaluation.rank(values[0]) + 1 if at < 0 else at
    padded_axis = None if axes.padded_axis is None else axes.padded_axis + int(at <= axes.padded_axis)
    stacked = ops.stack(tensors, at + int(axes.batched))
    return BatchedValue(stacked, axes.batched, padded_axis, axes.entries_per_row, padding=axes.padding)


@batching_rule("ConcatV2")
def _(evaluation: BatchedEvaluation, node: Node, *operands: BatchedValue) -> BatchedValue:
    *values, axis = operands
    tensors, axes = common_axes(evaluation, node, tuple(values))
    at = int(evaluation.constant_operand(node, axis)) % evaluation.rank(values[0])
    if at == axes.padded_axis:
        raise NoBatchingRule("ConcatV2", "it concatenates along the batch")
    return axes.with_tensor(ops.concat(tensors, at + int(axes.batched)), padding=axes.padding)


@batching_rule("Unpack")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> list[BatchedValue]:
    at = node.get("axis", 0) % evaluation.rank(x)
    if at == x.padded_axis:
        raise NoBatchingRule("Unpack", "it splits the batch")
    padded_axis = None if x.padded_axis is None else x.padded_axis - int(at < x.padded_axis)
    parts = ops.unstack(evaluation.tensor(x), node["num"], at + int(x.batched))
    return [BatchedValue(t, x.batched, padded_axis, x.entries_per_row, padding=x.padding) for t in parts]


@batching_rule("Split")
def _(evaluation: BatchedEvaluation, node: Node, axis: BatchedValue, x: BatchedValue) -> list[BatchedValue]:
    return _split(evaluation, node, x, axis, node["num_split"])


@batching_rule("SplitV")
def _(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, sizes: BatchedValue, axis: BatchedValue
) -> list[BatchedValue]:
    return _split(evaluation, node, x, axis, [int(s) for s in evaluation.constant_operand(node, sizes)])


def _split(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue, parts) -> list[BatchedValue]:
    at = int(evaluation.constant_operand(node, axis)) % evaluation.rank(x)
    if at == x.padded_axis:
        raise NoBatchingRule(node.op, "it splits the batch")
    return [x.with_tensor(t, padding=x.padding) for t in ops.split(evaluation.tensor(x), parts, at + int(x.batched))]


@batching_rule("StridedSlice")
def _(
    evaluation: BatchedEvaluation,
    node: Node,
    x: BatchedValue,
    begin: BatchedValue,
    end: BatchedValue,
    strides: BatchedValue,
) -> BatchedValue:
    padded_axis = _padded_axis_after_slice(evaluation, node, x, evaluation.rank(x), begin, end, strides)
    if not x.batched:
        bounds = [(v, evaluation.known_value(v)) for v in (begin, end, strides)]
        tensors = [evaluation.tensor(v) if k is None else ops.constant(k.values[0]) for v, k in bounds]
        (part,) = emit(node.op, [evaluation.tensor(x), *tensors], node.attributes)
    else:
        operands, attributes = _bounds_with_client_axis(evaluation, node, begin, end, strides)
        (part,) = emit(node.op, [evaluation.tensor(x), *operands], attributes)
    return BatchedValue(part, x.batched, padded_axis, x.entries_per_row, padding=x.padding)


@batching_rule("StridedSliceGrad")
def _(
    evaluation: BatchedEvaluation,
    node: Node,
    shape: BatchedValue,
    begin: BatchedValue,
    end: BatchedValue,
    strides: BatchedValue,
    dy: BatchedValue,
) -> BatchedValue:
    known = evaluation.known_value(shape)
    operands, attributes = _bounds_with_client_axis(evaluation, node, begin, end, strides)
    if known is None:
        if not shape.client_invariant or dy.padded_axis is not None:
            raise NoBatchingRule(node.op, "its shape is not known")
        of_client = evaluation.tensor(shape)
        whole = ops.concat([ops.constant([evaluation.clients], of_client.dtype), of_client], 0)
        return BatchedValue(emit(node.op, [whole, *operands, evaluation.with_client_axis(dy)], attributes)[0], True)
    axis, entries_per_row = evaluation.batch_axis(node, known)
    axes_of_shape = BatchedValue(None, padded_axis=axis, entries_per_row=entries_per_row)
    if (
        _padded_axis_after_slice(evaluation, node, axes_of_shape, len(known.values[0]), begin, end, strides)
        != dy.padded_axis
    ):
        raise NoBatchingRule(node.op, "the batch is along another axis in the gradient")
    sizes = known.values[0]
    whole = ops.constant(np.concatenate([[evaluation.clients], sizes]).astype(sizes.dtype))
    (tensor,) = emit(node.op, [whole, *operands, evaluation.with_client_axis(dy)], attributes)
    return BatchedValue(tensor, True, axis, entries_per_row, padding=dy.padding)


def _bounds_with_client_axis(evaluation: BatchedEvaluation, node: Node, *bounds: BatchedValue) -> tuple[list, dict]:
    """Operands and attributes of a strided slice of a tensor with a client axis, which is taken whole."""
    operands = []
    for bound, first in zip(bounds, (0, 0, 1), strict=True):
        known = evaluation.known_value(bound)
        if known is not None:
            value = known.values[0]
            operands.append(ops.constant(np.concatenate([[first], value]).astype(value.dtype)))
            continue
        if not bound.client_invariant:
            raise NoBatchingRule(node.op, "the bounds of the slice differ between clients")
        tensor = evaluation.tensor(bound)
        operands.append(ops.concat([ops.constant([first], tensor.dtype), tensor], 0))
    attributes = dict(node.attributes)
    for mask in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"):
        attributes[mask] = (node.get(mask, 0) << 1) | int(mask in ("begin_mask", "end_mask"))
    return operands, attributes


def _padded_axis_after_slice(
    evaluation: BatchedEvaluation,
    node: Node,
    x: BatchedValue,
    rank: int,
    begin: BatchedValue,
    end: BatchedValue,
    strides: BatchedValue,
) -> int | None:
    """The padded axis after a strided slice. The slice takes the whole batch, and all clients have the same bounds."""
    if x.padded_axis is None:
        if not (begin.client_invariant and end.client_invariant and strides.client_invariant):
            raise NoBatchingRule(node.op, "the bounds of the slice differ between clients")
        return None
    steps = evaluation.constant_operand(node, strides)
    starts, stops = evaluation.known_value(begin), evaluation.known_value(end)
    if starts is None or stops is None:
        raise NoBatchingRule(node.op, "the bounds of the slice are not known")
    if not (starts.polynomial and stops.polynomial):
        raise NoBatchingRule(node.op, "the bounds of the slice differ between clients")
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
                raise NoBatchingRule(node.op, "the bounds of the slice differ between clients")
            axis, position = axis + 1, position + int(not has("shrink_axis", i))
        else:
            whole_start = has("begin", i) or all(v[i] == 0 for v in starts.values)
            ends = zip(stops.values, evaluation.probes, strict=True)
            whole_end = has("end", i) or all(v[i] == p * x.entries_per_row for v, p in ends)
            if has("shrink_axis", i) or steps[i] != 1 or not whole_start or not whole_end:
                raise NoBatchingRule(node.op, "it takes some rows of the batch")
            return position
    return position + padded_axis - axis


@batching_rule("Slice")
def _(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, begin: BatchedValue, size: BatchedValue
) -> BatchedValue:
    starts, sizes = evaluation.constant_operand(node, begin), evaluation.known_value(size)
    if sizes is None:
        raise NoBatchingRule("Slice", "the size of the slice is not known")
    if x.padded_axis is None:
        if not sizes.is_constant:
            raise NoBatchingRule("Slice", "the size of the slice differs between clients")
    else:
        wanted = [
            v[x.padded_axis] in (-1, p * x.entries_per_row)
            for v, p in zip(sizes.values, evaluation.probes, strict=True)
        ]
        if starts[x.padded_axis] != 0 or not all(wanted) or not sizes.polynomial:
            raise NoBatchingRule("Slice", "it takes some rows of the batch")
        if any((np.delete(v, x.padded_axis) != np.delete(sizes.values[0], x.padded_axis)).any() for v in sizes.values):
            raise NoBatchingRule("Slice", "the size of the slice differs between clients")
    first = sizes.values[0]
    if x.batched:
        starts, first = np.concatenate([[0], starts]), np.concatenate([[-1], first])
    return x.with_tensor(ops.slice_(evaluation.tensor(x), starts, first), padding=x.padding)


@batching_rule("Pad", "PadV2", "MirrorPad")
def _(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, paddings: BatchedValue, *value: BatchedValue
) -> BatchedValue:
    amounts = evaluation.constant_operand(node, paddings)
    if x.padded_axis is not None and amounts[x.padded_axis].any():
        raise NoBatchingRule(node.op, "it adds rows to the batch")
    if any(not v.client_invariant for v in value):
        raise NoBatchingRule(node.op, "the padding value differs between clients")
    whole = np.concatenate([[[0, 0]], amounts]).astype(amounts.dtype) if x.batched else amounts
    operands = [evaluation.tensor(x), ops.constant(whole), *(evaluation.tensor(v) for v in value)]
    return x.with_tensor(*emit(node.op, operands, node.attributes))


@batching_rule("ReverseV2")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    if not evaluation.rank(x):
        return x
    axes = [int(a) % evaluation.rank(x) for a in evaluation.constant_operand(node, axis)]
    if x.padded_axis in axes:
        raise NoBatchingRule("ReverseV2", "it reverses the batch")
    return x.with_tensor(ops.reverse(evaluation.tensor(x), [a + int(x.batched) for a in axes]), padding=x.padding)


@batching_rule("OneHot")
def _(
    evaluation: BatchedEvaluation,
    node: Node,
    indices: BatchedValue,
    depth: BatchedValue,
    on: BatchedValue,
    off: BatchedValue,
) -> BatchedValue:
    if not on.client_invariant or not off.client_invariant:
        raise NoBatchingRule("OneHot", "its on and off values differ between clients")
    rank = evaluation.rank(indices)
    at = node.get("axis", -1)
    at = rank if at < 0 else at
    padded_axis = None if indices.padded_axis is None else indices.padded_axis + int(at <= indices.padded_axis)
    classes = int(evaluation.constant_operand(node, depth))
    tensor = ops.one_hot(
        evaluation.tensor(indices),
        classes,
        evaluation.tensor(on),
        evaluation.tensor(off),
        at + int(indices.batched),
        node["T"],
    )
    return BatchedValue(tensor, indices.batched, padded_axis, indices.entries_per_row)


@batching_rule("Cumsum")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    at = int(evaluation.constant_operand(node, axis)) % evaluation.rank(x)
    if at == x.padded_axis:
        raise NoBatchingRule("Cumsum", "it adds along the batch")
    along = ops.constant(at + int(x.batched), evaluation.tensor(axis).dtype)
    return x.with_tensor(*emit("Cumsum", [evaluation.tensor(x), along], node.attributes))


@batching_rule("TopKV2")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, count: BatchedValue) -> list[BatchedValue]:
    if x.padded_axis == evaluation.rank(x) - 1:
        raise NoBatchingRule("TopKV2", "it takes from the batch")
    evaluation.constant_operand(node, count)
    out = emit("TopKV2", [evaluation.tensor(x), evaluation.tensor(count)], node.attributes)
    return [x.with_tensor(t) for t in out]

"""Operations that move entries: slices, concatenations, transposes, padding, and their gradients.

Words: see `batched_value`.
"""

import numpy as np

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, batching_rule, common_padding
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.graphdef.form.checked_operations import emit


@batching_rule("Transpose")
def transpose_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, order: BatchedValue) -> BatchedValue:
    """A transpose of each client's value; the client axis stays in front, and the padded axis moves with its
    entries.
    """
    axes = [int(a) for a in evaluation.constant_operand(node, order)]
    padded_axis = None if x.padded_axis is None else axes.index(x.padded_axis)
    batched_order = [0, *(a + 1 for a in axes)] if x.batched else axes
    tensor = fuse_transposes(evaluation.tensor(x), batched_order)
    return BatchedValue(tensor, x.batched, padded_axis, x.entries_per_row, padding=x.padding)


def fuse_transposes(tensor: Value, order: list[int]) -> Value:
    """`ops.transpose`, where transposes in a row become one transpose, or none if they cancel.

    Args:
        order: the axes of the tensor in their new order.
    """
    node = ops.computed_by(tensor, "Transpose")
    inner_order = None if node is None else ops.static_value(node.inputs[1])
    if node is not None and inner_order is not None:
        tensor, order = node.inputs[0], [int(inner_order[a]) for a in order]
    return tensor if order == [*range(len(order))] else ops.transpose(tensor, order)


def common_axes(
    evaluation: BatchedEvaluation, node: Node, values: tuple[BatchedValue, ...]
) -> tuple[list[Value], BatchedValue]:
    """(the tensors of operands that are put side by side, the axes that the operands have in common).

    The axes are a `BatchedValue` without a tensor: client axis, padded axis, entries per row and padding of one
    operand. If one operand has a client axis, all tensors get one.

    Args:
        node: is named in errors.
    Raises:
        NoBatchingRule: the operands have their batches along different axes or with different entries per row, or only
            some operands have a batch.
    """
    axes = {(x.padded_axis, x.entries_per_row) for x in values if x.padded_axis is not None}
    if len(axes) > 1:
        raise NoBatchingRule(node.op, "the operands have their batches along different axes")
    padded_axis, entries_per_row = next(iter(axes), (None, 1))
    if padded_axis is not None and any(x.padded_axis is None for x in values):
        raise NoBatchingRule(node.op, "one operand has a batch where another has an axis of constant size")
    batched = any(x.batched for x in values)
    result_axes = BatchedValue(None, batched, padded_axis, entries_per_row, padding=common_padding(values))
    return [evaluation.with_client_axis(x) if batched else evaluation.tensor(x) for x in values], result_axes


@batching_rule("Pack")
def pack_rule(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> BatchedValue:
    """The values stacked along a new axis, behind which a padded axis moves by one."""
    tensors, axes = common_axes(evaluation, node, values)
    position = node.get("axis", 0)
    position = position + evaluation.rank(values[0]) + 1 if position < 0 else position
    padded_axis = axes.padded_axis_after_insertion(position)
    stacked = ops.stack(tensors, position + int(axes.batched))
    return BatchedValue(stacked, axes.batched, padded_axis, axes.entries_per_row, padding=axes.padding)


@batching_rule("ConcatV2")
def concat_rule(evaluation: BatchedEvaluation, node: Node, *operands: BatchedValue) -> BatchedValue:
    """The values side by side along an axis, which is not the batch.

    Raises:
        NoBatchingRule: the axis is the batch, whose padding would stand between the operands' rows.
    """
    *values, axis = operands
    tensors, axes = common_axes(evaluation, node, tuple(values))
    position = evaluation.axis_operand(node, axis, values[0])
    if position == axes.padded_axis:
        raise NoBatchingRule("ConcatV2", "it concatenates along the batch")
    return axes.with_tensor(ops.concat(tensors, position + int(axes.batched)), padding=axes.padding)


@batching_rule("Unpack")
def unpack_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> list[BatchedValue]:
    """The slices along an axis, which is not the batch: clients would have different numbers of slices."""
    position = node.get("axis", 0) % evaluation.rank(x)
    if position == x.padded_axis:
        raise NoBatchingRule("Unpack", "it splits the batch")
    padded_axis = x.padded_axis_after_removal(position)
    parts = ops.unstack(evaluation.tensor(x), node["num"], position + int(x.batched))
    return [BatchedValue(t, x.batched, padded_axis, x.entries_per_row, padding=x.padding) for t in parts]


@batching_rule("Split")
def split_rule(evaluation: BatchedEvaluation, node: Node, axis: BatchedValue, x: BatchedValue) -> list[BatchedValue]:
    """Equal parts along an axis, see `_split`."""
    return _split(evaluation, node, x, axis, node["num_split"])


@batching_rule("SplitV")
def split_v_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, sizes: BatchedValue, axis: BatchedValue
) -> list[BatchedValue]:
    """Parts of given sizes along an axis, see `_split`."""
    return _split(evaluation, node, x, axis, [int(s) for s in evaluation.constant_operand(node, sizes)])


def _split(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue, parts: int | list[int]
) -> list[BatchedValue]:
    """The parts of a value along an axis, which is not the batch.

    Args:
        parts: the number of equal parts, or the size of each part.
    """
    position = evaluation.axis_operand(node, axis, x)
    if position == x.padded_axis:
        raise NoBatchingRule(node.op, "it splits the batch")
    return [
        x.with_tensor(t, padding=x.padding) for t in ops.split(evaluation.tensor(x), parts, position + int(x.batched))
    ]


@batching_rule("StridedSlice")
def strided_slice_rule(
    evaluation: BatchedEvaluation,
    node: Node,
    x: BatchedValue,
    begin: BatchedValue,
    end: BatchedValue,
    strides: BatchedValue,
) -> BatchedValue:
    """A slice whose bounds are the same for all clients; along the padded axis it takes all rows of the batch."""
    padded_axis = _padded_axis_after_slice(evaluation, node, x, evaluation.rank(x), begin, end, strides)
    if not x.batched:
        # A bound may be computed from the batch size. A shared tensor has the padded size, so the bound is that for a
        # batch of the padded size: `evaluation.tensor` would give each client's own bound, [K, …].
        known_bounds = [(bound, evaluation.known_value(bound)) for bound in (begin, end, strides)]
        tensors = [
            evaluation.tensor(bound) if bound_value is None else ops.constant(bound_value.at_padded_size)
            for bound, bound_value in known_bounds
        ]
        (part,) = emit(node.op, [evaluation.tensor(x), *tensors], node.attributes)
    else:
        operands, attributes = _bounds_with_client_axis(evaluation, node, begin, end, strides)
        (part,) = emit(node.op, [evaluation.tensor(x), *operands], attributes)
    return BatchedValue(part, x.batched, padded_axis, x.entries_per_row, padding=x.padding)


@batching_rule("StridedSliceGrad")
def strided_slice_grad_rule(
    evaluation: BatchedEvaluation,
    node: Node,
    shape: BatchedValue,
    begin: BatchedValue,
    end: BatchedValue,
    strides: BatchedValue,
    dy: BatchedValue,
) -> BatchedValue:
    """The gradient of a slice: zeros of the operand's shape, with the gradient in the place of the slice.

    The shape gets the client axis in front, and the bounds take all clients. Without a padded axis the shape may be
    computed by the graph; with one it has to be known, since it tells which axis is the batch.

    Args:
        shape: of the sliced operand of one client.
        dy: the gradient of the slice.
    Raises:
        NoBatchingRule: the shape depends on a client's data, or the batch is along another axis in the gradient.
    """
    known_shape = evaluation.known_value(shape)
    operands, attributes = _bounds_with_client_axis(evaluation, node, begin, end, strides)
    if known_shape is None:
        if not shape.client_invariant or dy.padded_axis is not None:
            raise NoBatchingRule(node.op, "its shape is not known")
        client_shape = evaluation.tensor(shape)
        batched_shape = ops.concat([ops.constant([evaluation.clients], client_shape.dtype), client_shape], 0)
        (tensor,) = emit(node.op, [batched_shape, *operands, evaluation.with_client_axis(dy)], attributes)
        return BatchedValue(tensor, True)
    axis, entries_per_row = evaluation.batch_axis(node, known_shape)
    sliced = BatchedValue(None, padded_axis=axis, entries_per_row=entries_per_row)
    sizes = known_shape.at_padded_size
    if _padded_axis_after_slice(evaluation, node, sliced, len(sizes), begin, end, strides) != dy.padded_axis:
        raise NoBatchingRule(node.op, "the batch is along another axis in the gradient")
    batched_shape = ops.constant(np.concatenate([[evaluation.clients], sizes]).astype(sizes.dtype))
    (tensor,) = emit(node.op, [batched_shape, *operands, evaluation.with_client_axis(dy)], attributes)
    return BatchedValue(tensor, True, axis, entries_per_row, padding=dy.padding)


def _bounds_with_client_axis(evaluation: BatchedEvaluation, node: Node, *bounds: BatchedValue) -> tuple[list, dict]:
    """(operands, attributes) of a strided slice of a tensor [K, …]; the slice takes all K clients.

    The bounds get an entry for the client axis in front: begin 0, end 0, which the end mask overrules, stride 1. Each
    mask has a bit for each entry, so it is shifted by one.

    Args:
        bounds: begin, end and strides of the slice of one client's value.
    Raises:
        NoBatchingRule: the bounds differ between clients.
    """
    operands = []
    for bound, first in zip(bounds, (0, 0, 1), strict=True):
        known_bound = evaluation.known_value(bound)
        if known_bound is not None:
            value = known_bound.at_padded_size
            operands.append(ops.constant(np.concatenate([[first], value]).astype(value.dtype)))
            continue
        if not bound.client_invariant:
            raise NoBatchingRule(node.op, "the bounds of the slice differ between clients", bound)
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
    """The padded axis after a strided slice that takes all rows of the batch, with equal bounds for all clients.

    The bounds have an entry for each part of the index, such as `x[:, None, ..., 0]`: an indexed axis, a new axis, or
    an ellipsis, which stands for all axes that no other part indexes. Parts are read in order; `axis` is the next axis
    of the operand, and `position` its place in the result, until `axis` is the padded axis.

    Args:
        x: its padded axis is that before the slice; it needs no tensor.
        rank: number of axes of one client's value before the slice.
    Raises:
        NoBatchingRule: the slice takes a part of the batch, or its bounds differ between clients.
    """
    if x.padded_axis is None:
        for bound in (begin, end, strides):
            if not bound.client_invariant:
                raise NoBatchingRule(node.op, "the bounds of the slice differ between clients", bound)
        return None
    steps = evaluation.constant_operand(node, strides)  # with an entry for each entry of the bounds
    starts, stops = evaluation.known_value(begin), evaluation.known_value(end)
    if starts is None or stops is None:
        raise NoBatchingRule(node.op, "the bounds of the slice are not known", begin if starts is None else end)
    if not (starts.polynomial and stops.polynomial):
        raise NoBatchingRule(node.op, "the bounds of the slice differ between clients")
    masks = {m: node.get(f"{m}_mask", 0) for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}

    def has(mask: str, i: int) -> bool:
        """Whether bit i of a mask is set."""
        return bool(masks[mask] >> i & 1)

    def takes_whole_batch(i: int) -> bool:
        """Whether the i-th entry of the bounds takes all rows of the batch, in order, at each sampled batch size."""
        begins_at_start = has("begin", i) or all(v[i] == 0 for v in starts.samples)
        ends = zip(stops.samples, evaluation.sampled_sizes, strict=True)
        ends_at_end = has("end", i) or all(v[i] == size * x.entries_per_row for v, size in ends)
        return begins_at_start and ends_at_end and steps[i] == 1 and not has("shrink_axis", i)

    indexed_axes = sum(not has("new_axis", i) and not has("ellipsis", i) for i in range(len(steps)))
    padded_axis, axis, position = x.padded_axis, 0, 0
    for i in range(len(steps)):
        if has("ellipsis", i):
            skipped = rank - indexed_axes
            if axis <= padded_axis < axis + skipped:
                return position + padded_axis - axis
            axis, position = axis + skipped, position + skipped
        elif has("new_axis", i):
            position += 1
        elif axis != padded_axis:
            if any(len({int(v[i]) for v in k.samples}) > 1 for k in (starts, stops)):
                raise NoBatchingRule(node.op, "the bounds of the slice differ between clients")
            axis, position = axis + 1, position + int(not has("shrink_axis", i))
        elif takes_whole_batch(i):
            return position
        else:
            raise NoBatchingRule(node.op, "it takes some rows of the batch")
    return position + padded_axis - axis


@batching_rule("Slice")
def slice_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, begin: BatchedValue, size: BatchedValue
) -> BatchedValue:
    """A slice with constant begin and size, which takes the whole batch: the size is -1 or the batch size there.

    Raises:
        NoBatchingRule: the slice takes a part of the batch, or its size differs between clients.
    """
    starts, sizes = evaluation.constant_operand(node, begin), evaluation.known_value(size)
    if sizes is None:
        raise NoBatchingRule("Slice", "the size of the slice is not known", size)
    if x.padded_axis is None:
        if not sizes.is_constant:
            raise NoBatchingRule("Slice", "the size of the slice differs between clients")
    else:
        takes_all_rows = [
            v[x.padded_axis] in (-1, batch_size * x.entries_per_row)
            for v, batch_size in zip(sizes.samples, evaluation.sampled_sizes, strict=True)
        ]
        if starts[x.padded_axis] != 0 or not all(takes_all_rows) or not sizes.polynomial:
            raise NoBatchingRule("Slice", "it takes some rows of the batch")
        first, *others = (np.delete(v, x.padded_axis) for v in sizes.samples)  # along the other axes
        if any((v != first).any() for v in others):
            raise NoBatchingRule("Slice", "the size of the slice differs between clients")
    slice_size = sizes.at_padded_size
    if x.batched:
        starts, slice_size = np.concatenate([[0], starts]), np.concatenate([[-1], slice_size])
    return x.with_tensor(ops.slice_(evaluation.tensor(x), starts, slice_size), padding=x.padding)


@batching_rule("Pad", "PadV2", "MirrorPad")
def pad_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, paddings: BatchedValue, *value: BatchedValue
) -> BatchedValue:
    """Each client's value with padding along other axes than the batch; the client axis gets none.

    Raises:
        NoBatchingRule: rows would be added to the batch, or the padding value differs between clients.
    """
    amounts = evaluation.constant_operand(node, paddings)
    if x.padded_axis is not None and amounts[x.padded_axis].any():
        raise NoBatchingRule(node.op, "it adds rows to the batch")
    if any(not v.client_invariant for v in value):
        raise NoBatchingRule(node.op, "the padding value differs between clients")
    batched_amounts = np.concatenate([[[0, 0]], amounts]).astype(amounts.dtype) if x.batched else amounts
    operands = [evaluation.tensor(x), ops.constant(batched_amounts), *(evaluation.tensor(v) for v in value)]
    return x.with_tensor(*emit(node.op, operands, node.attributes))


@batching_rule("ReverseV2")
def reverse_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    """Each client's value reversed along axes.

    Raises:
        NoBatchingRule: an axis is the batch, whose padded rows would come first.
    """
    if not evaluation.rank(x):
        return x
    axes = [int(a) % evaluation.rank(x) for a in evaluation.constant_operand(node, axis)]
    if x.padded_axis in axes:
        raise NoBatchingRule("ReverseV2", "it reverses the batch")
    return x.with_tensor(ops.reverse(evaluation.tensor(x), [a + int(x.batched) for a in axes]), padding=x.padding)


@batching_rule("OneHot")
def one_hot_rule(
    evaluation: BatchedEvaluation,
    node: Node,
    indices: BatchedValue,
    depth: BatchedValue,
    on: BatchedValue,
    off: BatchedValue,
) -> BatchedValue:
    """A vector for each index, with `on` at the index and `off` elsewhere, along a new axis.

    The axis stands at `axis`, by default behind all others; a padded axis behind it moves by one.

    Raises:
        NoBatchingRule: the on and off values differ between clients.
    """
    if not on.client_invariant or not off.client_invariant:
        raise NoBatchingRule("OneHot", "its on and off values differ between clients")
    rank = evaluation.rank(indices)
    position = node.get("axis", -1)
    position = rank if position < 0 else position
    padded_axis = indices.padded_axis_after_insertion(position)
    classes = int(evaluation.constant_operand(node, depth))
    tensor = ops.one_hot(
        evaluation.tensor(indices),
        classes,
        evaluation.tensor(on),
        evaluation.tensor(off),
        position + int(indices.batched),
        node["T"],
    )
    return BatchedValue(tensor, indices.batched, padded_axis, indices.entries_per_row)


@batching_rule("Cumsum")
def cumsum_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    """A cumulative sum along an axis that is not the batch."""
    summed_axis = evaluation.axis_operand(node, axis, x)
    if summed_axis == x.padded_axis:
        raise NoBatchingRule("Cumsum", "it adds along the batch")
    axis_operand = ops.constant(summed_axis + int(x.batched), evaluation.tensor(axis).dtype)
    return x.with_tensor(*emit("Cumsum", [evaluation.tensor(x), axis_operand], node.attributes))


@batching_rule("TopKV2")
def top_k_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, count: BatchedValue) -> list[BatchedValue]:
    """The largest entries along the last axis, which is not the batch, and their positions."""
    if x.padded_axis == evaluation.rank(x) - 1:
        raise NoBatchingRule("TopKV2", "it takes from the batch")
    evaluation.constant_operand(node, count)  # refuses a number that differs between clients
    results = emit("TopKV2", [evaluation.tensor(x), evaluation.tensor(count)], node.attributes)
    return [x.with_tensor(t) for t in results]

"""Operations that read shapes (Shape, Size, Rank) or change them (Reshape, Fill, BroadcastTo, Tile, ExpandDims)."""

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import (
    ANY_PADDING,
    BatchedValue,
    KnownValue,
    NoBatchingRule,
    Padding,
    batching_rule,
)
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.parsed_graph import Node


@batching_rule("Shape")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    dtype = node.get("out_type", tf.int32)
    known = evaluation.known_shape(x)
    if known is not None:
        values = [v.astype(dtype.as_numpy_dtype) for v in known.values]
        return BatchedValue(None, not known.is_constant, known=KnownValue.from_probes(values))
    if x.padded_axis is not None:
        raise NoBatchingRule("Shape", "another axis than the batch is of unknown size")
    return BatchedValue(ops.shape(evaluation.tensor(x), dtype)[int(x.batched) :])


@batching_rule("ShapeN")
def _(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> list[BatchedValue]:
    shape = Node(node.name, "Shape", (), {"out_type": node.get("out_type", tf.int32)})
    return [value for x in values for value in evaluation.evaluate(shape, [x])]


@batching_rule("Size")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    dtype = node.get("out_type", tf.int32)
    known = evaluation.known_shape(x)
    if known is None:
        if x.padded_axis is not None:
            raise NoBatchingRule("Size", "another axis than the batch is of unknown size")
        return BatchedValue(ops.reduce_prod(ops.shape(evaluation.tensor(x), dtype)[int(x.batched) :]))
    values = [np.prod(v).astype(dtype.as_numpy_dtype) for v in known.values]
    sizes = KnownValue.from_probes(values)
    return BatchedValue(None, not sizes.is_constant, known=sizes)


@batching_rule("Rank")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    return BatchedValue(None, known=KnownValue.of_constant(np.int32(evaluation.rank(x))))


def reshape_target(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue
) -> KnownValue | None:
    """The shape of one client's value after a Reshape, with -1 resolved; None if it is not static."""
    wanted, have = evaluation.known_value(shape), evaluation.known_shape(x)
    if wanted is None:
        return None
    if have is None:
        return wanted if wanted.is_constant and (wanted.values[0] >= 0).all() else None
    return KnownValue.from_probes([_without_wildcard(w, h) for w, h in zip(wanted.values, have.values, strict=True)])


def _without_wildcard(wanted: np.ndarray, have: np.ndarray) -> np.ndarray:
    wanted = np.asarray(wanted, np.int64).reshape(-1)
    rest = int(np.prod(wanted[wanted >= 0]))
    return np.where(wanted < 0, int(np.prod(have)) // max(rest, 1), wanted)


@batching_rule("Reshape")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue) -> BatchedValue:
    known = reshape_target(evaluation, node, x, shape)
    if known is None:
        if x.padded_axis is not None or not shape.client_invariant:
            raise NoBatchingRule("Reshape", "its shape is not known")
        wanted = evaluation.tensor(shape)
        return BatchedValue(_reshaped(evaluation, x, wanted), x.batched)
    axis, entries_per_row = evaluation.batch_axis(node, known)
    if (axis is None) != (x.padded_axis is None):
        raise NoBatchingRule("Reshape", "the result has no batch axis")
    sizes = known.values[0]
    if axis is not None and x.padded_axis is not None:
        before = np.prod(evaluation.shape(x).as_list()[: x.padded_axis])
        if before != np.prod(sizes[:axis]):
            raise NoBatchingRule("Reshape", "it merges the batch with a preceding axis")
    tensor, target = evaluation.tensor(x), [evaluation.clients, *sizes] if x.batched else [*sizes]
    if tensor.shape.is_fully_defined() and tensor.shape.as_list() == target:
        return x
    return BatchedValue(ops.reshape(tensor, target), x.batched, axis, entries_per_row, padding=x.padding)


def _reshaped(evaluation: BatchedEvaluation, x: BatchedValue, wanted) -> Value:
    tensor = evaluation.tensor(x)
    if not x.batched:
        return ops.reshape(tensor, wanted)
    static = ops.static_value(wanted)
    if static is not None:
        return ops.reshape(tensor, [evaluation.clients, *static])
    return ops.reshape(tensor, ops.concat([ops.constant([evaluation.clients], wanted.dtype), wanted], 0))


@batching_rule("Fill")
def _(evaluation: BatchedEvaluation, node: Node, dims: BatchedValue, value: BatchedValue) -> BatchedValue:
    known = evaluation.known_value(dims)
    if known is None:
        if not dims.client_invariant:
            raise NoBatchingRule("Fill", "its shape is not known")
        return broadcast(evaluation, value, evaluation.tensor(dims), None, 1)
    axis, entries_per_row = evaluation.batch_axis(node, known)
    return broadcast(evaluation, value, known.values[0], axis, entries_per_row)


@batching_rule("BroadcastTo")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue) -> BatchedValue:
    known = evaluation.known_value(shape)
    if known is None:
        if not shape.client_invariant or x.padded_axis is not None:
            raise NoBatchingRule("BroadcastTo", "its shape is not known")
        return broadcast(evaluation, x, evaluation.tensor(shape), None, 1)
    axis, entries_per_row = evaluation.batch_axis(node, known)
    if x.padded_axis is not None and x.padded_axis + len(known.values[0]) - evaluation.rank(x) != axis:
        raise NoBatchingRule("BroadcastTo", "the batch is along another axis in the result")
    return broadcast(evaluation, x, known.values[0], axis, entries_per_row)


def broadcast(
    evaluation: BatchedEvaluation, x: BatchedValue, shape, axis: int | None, entries_per_row: int
) -> BatchedValue:
    """One client's value broadcast to a shape; a shared value stays shared."""
    tensor = evaluation.tensor(x)
    if not x.batched:
        return BatchedValue(
            ops.broadcast_to(tensor, shape), False, axis, entries_per_row, padding=_broadcast_padding(evaluation, x)
        )
    rank = len(shape) if isinstance(shape, np.ndarray) else shape.shape[0]
    if rank is None:
        raise NoBatchingRule("BroadcastTo", "its number of axes is unknown")
    tensor = ops.reshape(tensor, [evaluation.clients, *[1] * (rank - evaluation.rank(x)), *_sizes(evaluation, x)])
    whole = (
        [evaluation.clients, *shape] if isinstance(shape, np.ndarray) else ops.concat([[evaluation.clients], shape], 0)
    )
    return BatchedValue(
        ops.broadcast_to(tensor, whole), True, axis, entries_per_row, padding=_broadcast_padding(evaluation, x)
    )


def _broadcast_padding(evaluation: BatchedEvaluation, x: BatchedValue) -> Padding:
    """Padding after a broadcast: rows that repeat one row are copies."""
    if x.padded_axis is not None:
        return x.padding
    return ANY_PADDING if evaluation.has_zero_padding(x) else Padding.COPIES


def _sizes(evaluation: BatchedEvaluation, x: BatchedValue) -> list:
    shape = evaluation.shape(x)
    if shape.is_fully_defined():
        return shape.as_list()
    dynamic = ops.shape(evaluation.tensor(x))[int(x.batched) :]
    return [dynamic[i] if s is None else s for i, s in enumerate(shape)]


@batching_rule("Tile")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, multiples: BatchedValue) -> BatchedValue:
    known, have = evaluation.known_value(multiples), evaluation.known_shape(x)
    if known is None or (have is None and x.padded_axis is not None):
        if not multiples.client_invariant or x.padded_axis is not None:
            raise NoBatchingRule("Tile", "its shape is not known")
        times = evaluation.tensor(multiples)
        times = ops.concat([ops.ones([1], times.dtype), times], 0) if x.batched else times
        return BatchedValue(ops.tile(evaluation.tensor(x), times), x.batched)
    counts = known.values[0]
    if x.padded_axis is not None and counts[x.padded_axis] != 1:
        raise NoBatchingRule("Tile", "it repeats the batch")
    axis, entries_per_row = x.padded_axis, x.entries_per_row
    if not known.is_constant:
        axis, entries_per_row = evaluation.batch_axis(node, known)
        if have is None or x.padded_axis is not None or have.values[0][axis] != 1:
            raise NoBatchingRule("Tile", "it repeats an axis of another size than 1 along the batch")
    tensor = ops.tile(evaluation.tensor(x), [1, *counts] if x.batched else counts)
    return BatchedValue(tensor, x.batched, axis, entries_per_row, padding=_broadcast_padding(evaluation, x))


@batching_rule("ExpandDims")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    at = int(evaluation.constant_operand(node, axis).reshape(()))
    at = at + evaluation.rank(x) + 1 if at < 0 else at
    padded_axis = None if x.padded_axis is None else x.padded_axis + int(at <= x.padded_axis)
    return BatchedValue(
        ops.expand_dims(evaluation.tensor(x), at + int(x.batched)),
        x.batched,
        padded_axis,
        x.entries_per_row,
        padding=x.padding,
    )


@batching_rule("Squeeze")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    rank = evaluation.rank(x)
    shape = evaluation.shape(x)
    axes = sorted(int(a) % rank for a in node.get("squeeze_dims") or [])
    if not axes:
        if x.padded_axis is not None and x.entries_per_row == 1:
            raise NoBatchingRule("Squeeze", "without axes it removes the batch axis of a batch of one row")
        if any(s is None for i, s in enumerate(shape) if i != x.padded_axis):
            raise NoBatchingRule("Squeeze", "without axes it may remove an axis of unknown size")
        axes = [i for i, s in enumerate(shape) if s == 1 and i != x.padded_axis]
    if x.padded_axis in axes or any(shape[a] not in (1, None) for a in axes):
        raise NoBatchingRule("Squeeze", "it removes the batch axis")
    if not axes:
        return x
    padded_axis = None if x.padded_axis is None else x.padded_axis - sum(a < x.padded_axis for a in axes)
    tensor = ops.squeeze(evaluation.tensor(x), [a + int(x.batched) for a in axes])
    return BatchedValue(tensor, x.batched, padded_axis, x.entries_per_row, padding=x.padding)


@batching_rule("EnsureShape")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    wanted = [*tf.TensorShape(node["shape"])]
    if x.padded_axis is not None and wanted[x.padded_axis] is not None:
        raise NoBatchingRule("EnsureShape", "it asks for a number of rows")
    tensor = ops.ensure_shape(evaluation.tensor(x), [None, *wanted] if x.batched else wanted)
    return x.with_tensor(tensor, padding=x.padding)


@batching_rule("BroadcastGradientArgs")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> list[BatchedValue]:
    raise NoBatchingRule("BroadcastGradientArgs", "the shapes differ between clients or are not known")


@batching_rule("Range")
def _(
    evaluation: BatchedEvaluation, node: Node, start: BatchedValue, limit: BatchedValue, delta: BatchedValue
) -> BatchedValue:
    """The numbers 0, 1, … up to the batch size are an axis with an entry for each row."""
    first, step, known = (
        evaluation.constant_operand(node, start),
        evaluation.constant_operand(node, delta),
        evaluation.known_value(limit),
    )
    if known is None or first != 0 or step != 1:
        raise NoBatchingRule("Range", "its limits differ between clients")
    axis, entries_per_row = evaluation.batch_axis(node, KnownValue.from_probes([v.reshape(1) for v in known.values]))
    return BatchedValue(ops.range_(0, known.values[0], 1, node["Tidx"]), False, axis, entries_per_row)

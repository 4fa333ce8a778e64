"""Operations that read shapes (Shape, Size, Rank) or change them (Reshape, Fill, BroadcastTo, Tile, ExpandDims).

Words: see `batched_value`.
"""

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
from fedcore.graphs.dataflow.graph import Node, Value


@batching_rule("Shape")
def shape_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """The shape of one client's value as a known value.

    A shape that is not static is read when the graph runs, if it has no batch: it is then the same for all clients.

    Raises:
        NoBatchingRule: the value has a batch, and another axis of unknown size.
    """
    dtype = node.get("out_type", tf.int32)
    known_shape = evaluation.known_shape(x)
    if known_shape is not None:
        samples = [v.astype(dtype.as_numpy_dtype) for v in known_shape.samples]
        return BatchedValue.from_known(KnownValue.from_samples(samples))
    if x.padded_axis is not None:
        raise NoBatchingRule("Shape", "another axis than the batch is of unknown size")
    return BatchedValue(ops.shape(evaluation.tensor(x), dtype)[int(x.batched) :])


@batching_rule("ShapeN")
def shape_n_rule(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> list[BatchedValue]:
    """The shapes of several values, by the rule of Shape."""
    shape = Node("Shape", (), {"out_type": node.get("out_type", tf.int32)})
    return [value for x in values for value in evaluation.evaluate(shape, [x])]


@batching_rule("Size")
def size_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """The number of entries of one client's value; as its shape, see Shape."""
    dtype = node.get("out_type", tf.int32)
    known_shape = evaluation.known_shape(x)
    if known_shape is None:
        if x.padded_axis is not None:
            raise NoBatchingRule("Size", "another axis than the batch is of unknown size")
        return BatchedValue(ops.reduce_prod(ops.shape(evaluation.tensor(x), dtype)[int(x.batched) :]))
    samples = [np.prod(v).astype(dtype.as_numpy_dtype) for v in known_shape.samples]
    return BatchedValue.from_known(KnownValue.from_samples(samples))


@batching_rule("Rank")
def rank_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """The number of axes of one client's value, which is static."""
    return BatchedValue.from_known(KnownValue.from_constant(np.int32(evaluation.rank(x))))


def reshape_target(evaluation: BatchedEvaluation, x: BatchedValue, shape: BatchedValue) -> KnownValue | None:
    """The shape of one client's value after a Reshape, with -1 resolved, at the sampled batch sizes.

    None if it is known only when the graph runs. Where the present shape is, -1 cannot be resolved, nor can it be told
    which axis of the result is the batch, so the target has to be a constant without -1.

    Args:
        x: the value that is reshaped.
        shape: the operand with its new shape.
    """
    target, current = evaluation.known_value(shape), evaluation.known_shape(x)
    if target is None:
        return None
    if current is None:
        return target if target.is_constant and (target.at_padded_size >= 0).all() else None
    shapes = list(map(_without_wildcard, target.samples, current.samples))
    return KnownValue.from_samples(shapes, polynomial=target.polynomial)


def _without_wildcard(target: np.ndarray, current: np.ndarray) -> np.ndarray:
    """A target shape whose -1, if there is one, is the size that keeps the number of entries.

    Args:
        target: the target shape.
        current: the shape before.
    """
    target = np.asarray(target, np.int64).reshape(-1)
    known_entries = int(np.prod(target[target >= 0]))
    return np.where(target < 0, int(np.prod(current)) // max(known_entries, 1), target)


@batching_rule("Reshape")
def reshape_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue) -> BatchedValue:
    """Each client's value in another shape, in which the batch is one axis, or is merged with axes behind it.

    Raises:
        NoBatchingRule: the shape is not known, or the result has no axis that is the batch.
    """
    target_shape = reshape_target(evaluation, x, shape)
    if target_shape is None:
        if x.padded_axis is not None or not shape.client_invariant:
            raise NoBatchingRule("Reshape", "its shape is not known")
        shape_tensor = evaluation.tensor(shape)
        return BatchedValue(_reshape_to_operand(evaluation, x, shape_tensor), x.batched)
    axis, entries_per_row = evaluation.batch_axis(node, target_shape)
    if (axis is None) != (x.padded_axis is None):
        raise NoBatchingRule("Reshape", "the result has no batch axis")
    sizes = target_shape.at_padded_size
    if axis is not None and x.padded_axis is not None:
        leading_entries = np.prod(evaluation.shape(x).as_list()[: x.padded_axis])
        if leading_entries != np.prod(sizes[:axis]):
            raise NoBatchingRule("Reshape", "it merges the batch with a preceding axis")
    tensor, target = evaluation.tensor(x), [evaluation.clients, *sizes] if x.batched else [*sizes]
    if tensor.shape.is_fully_defined() and tensor.shape.as_list() == target:
        return x
    return BatchedValue(ops.reshape(tensor, target), x.batched, axis, entries_per_row, padding=x.padding)


def _reshape_to_operand(evaluation: BatchedEvaluation, x: BatchedValue, shape: Value) -> Value:
    """The tensor in a shape that only the graph knows, with the client axis in front if the value has one.

    Args:
        shape: the shape of one client's value, a vector.
    """
    tensor = evaluation.tensor(x)
    if not x.batched:
        return ops.reshape(tensor, shape)
    static = ops.static_value(shape)
    if static is not None:
        return ops.reshape(tensor, [evaluation.clients, *static])
    return ops.reshape(tensor, ops.concat([ops.constant([evaluation.clients], shape.dtype), shape], 0))


@batching_rule("Fill")
def fill_rule(evaluation: BatchedEvaluation, node: Node, dims: BatchedValue, value: BatchedValue) -> BatchedValue:
    """A tensor of one entry. A size that is the batch size makes its axis the batch."""
    known_dims = evaluation.known_value(dims)
    if known_dims is None:
        if not dims.client_invariant:
            raise NoBatchingRule("Fill", "its shape is not known")
        return broadcast(evaluation, value, evaluation.tensor(dims), None, 1)
    axis, entries_per_row = evaluation.batch_axis(node, known_dims)
    return broadcast(evaluation, value, known_dims.at_padded_size, axis, entries_per_row)


@batching_rule("BroadcastTo")
def broadcast_to_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue) -> BatchedValue:
    """Each client's value broadcast to a shape; a size that is the batch size makes its axis the batch.

    Raises:
        NoBatchingRule: the shape is not known, or the batch is along another axis in the result.
    """
    known_shape = evaluation.known_value(shape)
    if known_shape is None:
        if not shape.client_invariant or x.padded_axis is not None:
            raise NoBatchingRule("BroadcastTo", "its shape is not known")
        return broadcast(evaluation, x, evaluation.tensor(shape), None, 1)
    axis, entries_per_row = evaluation.batch_axis(node, known_shape)
    if x.padded_axis is not None and x.padded_axis + len(known_shape.at_padded_size) - evaluation.rank(x) != axis:
        raise NoBatchingRule("BroadcastTo", "the batch is along another axis in the result")
    return broadcast(evaluation, x, known_shape.at_padded_size, axis, entries_per_row)


def broadcast(
    evaluation: BatchedEvaluation, x: BatchedValue, shape: np.ndarray | Value, axis: int | None, entries_per_row: int
) -> BatchedValue:
    """One client's value broadcast to a shape; a value that all clients share stays shared.

    Args:
        shape: of one client's result: an array, or a tensor if only the graph knows it.
        axis, entries_per_row: the padded axis of the result.
    Raises:
        NoBatchingRule: the number of axes of the result is unknown.
    """
    tensor = evaluation.tensor(x)
    if not x.batched:
        return BatchedValue(
            ops.broadcast_to(tensor, shape), False, axis, entries_per_row, padding=_broadcast_padding(evaluation, x)
        )
    rank = len(shape) if isinstance(shape, np.ndarray) else shape.shape[0]
    if rank is None:
        raise NoBatchingRule("BroadcastTo", "its number of axes is unknown")
    tensor = ops.reshape(tensor, [evaluation.clients, *[1] * (rank - evaluation.rank(x)), *_sizes(evaluation, x)])
    if isinstance(shape, np.ndarray):
        batched_shape: ops.Sizes = [evaluation.clients, *shape]
    else:
        batched_shape = ops.concat([[evaluation.clients], shape], 0)
    return BatchedValue(
        ops.broadcast_to(tensor, batched_shape), True, axis, entries_per_row, padding=_broadcast_padding(evaluation, x)
    )


def _broadcast_padding(evaluation: BatchedEvaluation, x: BatchedValue) -> Padding:
    """Padding after a broadcast: rows that repeat one row are copies."""
    if x.padded_axis is not None:
        return x.padding
    return ANY_PADDING if evaluation.has_zero_padding(x) else Padding.COPIES


def _sizes(evaluation: BatchedEvaluation, x: BatchedValue) -> list:
    """The sizes of one client's value: numbers, and scalar tensors where only the graph knows a size."""
    shape = evaluation.shape(x)
    if shape.is_fully_defined():
        return shape.as_list()
    size_tensors = ops.shape(evaluation.tensor(x))[int(x.batched) :]
    return [size_tensors[i] if s is None else s for i, s in enumerate(shape)]


@batching_rule("Tile")
def tile_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, multiples: BatchedValue) -> BatchedValue:
    """Each client's value repeated along axes that are not the batch.

    An axis of size 1 that is repeated as often as the batch has rows becomes the batch.

    Raises:
        NoBatchingRule: the repetitions depend on a client's data, or repeat the batch.
    """
    known_multiples, known_shape = evaluation.known_value(multiples), evaluation.known_shape(x)
    if known_multiples is None or (known_shape is None and x.padded_axis is not None):
        if not multiples.client_invariant or x.padded_axis is not None:
            raise NoBatchingRule("Tile", "its shape is not known")
        multiples_tensor = evaluation.tensor(multiples)
        multiples_tensor = (
            ops.concat([ops.ones([1], multiples_tensor.dtype), multiples_tensor], 0) if x.batched else multiples_tensor
        )
        return BatchedValue(ops.tile(evaluation.tensor(x), multiples_tensor), x.batched)
    counts = known_multiples.at_padded_size
    if x.padded_axis is not None and counts[x.padded_axis] != 1:
        raise NoBatchingRule("Tile", "it repeats the batch")
    axis, entries_per_row = x.padded_axis, x.entries_per_row
    if not known_multiples.is_constant:
        axis, entries_per_row = evaluation.batch_axis(node, known_multiples)
        if known_shape is None or x.padded_axis is not None or known_shape.at_padded_size[axis] != 1:
            raise NoBatchingRule("Tile", "it repeats an axis of another size than 1 along the batch")
    tensor = ops.tile(evaluation.tensor(x), [1, *counts] if x.batched else counts)
    return BatchedValue(tensor, x.batched, axis, entries_per_row, padding=_broadcast_padding(evaluation, x))


@batching_rule("ExpandDims")
def expand_dims_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    """Each client's value with a further axis of size 1, behind which a padded axis moves by one."""
    new_axis = int(evaluation.constant_operand(node, axis).reshape(()))
    new_axis = new_axis + evaluation.rank(x) + 1 if new_axis < 0 else new_axis
    tensor = ops.expand_dims(evaluation.tensor(x), new_axis + int(x.batched))
    padded_axis = x.padded_axis_after_insertion(new_axis)
    return BatchedValue(tensor, x.batched, padded_axis, x.entries_per_row, padding=x.padding)


@batching_rule("Squeeze")
def squeeze_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """Each client's value without axes of size 1, behind which a padded axis moves forward.

    Without axes, TensorFlow removes all of size 1, which may be the batch of a client with one row: such a squeeze is
    refused, unless each row has several entries along the batch axis.

    Raises:
        NoBatchingRule: the batch would be removed, or an axis of unknown size.
    """
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
    tensor = ops.squeeze(evaluation.tensor(x), [a + int(x.batched) for a in axes])
    padded_axis = x.padded_axis_after_removal(*axes)
    return BatchedValue(tensor, x.batched, padded_axis, x.entries_per_row, padding=x.padding)


@batching_rule("EnsureShape")
def ensure_shape_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """A check of the static shape of each client's value, which may not ask for a number of rows."""
    expected_sizes = [*tf.TensorShape(node["shape"])]
    if x.padded_axis is not None and expected_sizes[x.padded_axis] is not None:
        raise NoBatchingRule("EnsureShape", "it asks for a number of rows")
    tensor = ops.ensure_shape(evaluation.tensor(x), [None, *expected_sizes] if x.batched else expected_sizes)
    return x.with_tensor(tensor, padding=x.padding)


@batching_rule("BroadcastGradientArgs")
def broadcast_gradient_args_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue
) -> list[BatchedValue]:
    """Refused: known shapes are folded, and shapes that all clients share emitted, before a rule is asked."""
    raise NoBatchingRule("BroadcastGradientArgs", "the shapes differ between clients or are not known")


@batching_rule("Range")
def range_rule(
    evaluation: BatchedEvaluation, node: Node, start: BatchedValue, limit: BatchedValue, delta: BatchedValue
) -> BatchedValue:
    """The numbers 0, 1, … up to the batch size: all clients share them, and their axis is the batch.

    Raises:
        NoBatchingRule: the limits depend on a client's data in another way.
    """
    first, step, known_limit = (
        evaluation.constant_operand(node, start),
        evaluation.constant_operand(node, delta),
        evaluation.known_value(limit),
    )
    if known_limit is None or first != 0 or step != 1:
        raise NoBatchingRule("Range", "its limits differ between clients")
    axis, entries_per_row = evaluation.batch_axis(
        node, KnownValue.from_samples([v.reshape(1) for v in known_limit.samples], polynomial=known_limit.polynomial)
    )
    return BatchedValue(ops.range_(0, known_limit.at_padded_size, 1, node["Tidx"]), False, axis, entries_per_row)

"""Reductions; over the batch they read the client's own rows only.

Words: see `batched_value`.
"""

import functools

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.aligned_reductions import reduce_aligned
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, batching_rule, rowwise_padding
from fedcore.graphs.batched.batching_rules.convolutions import per_client, unrolled_over_clients
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.graphdef.form.checked_operations import emit


def _lowest(dtype: tf.DType) -> float:
    """The entry that changes no maximum."""
    return -np.inf if dtype.is_floating else dtype.min


def _highest(dtype: tf.DType) -> float:
    """The entry that changes no minimum."""
    return np.inf if dtype.is_floating else dtype.max


# Operation -> (function that reduces, function from a dtype to the entry that changes no result; None for a mean).
_REDUCTIONS = {
    "Sum": (ops.reduce_sum, lambda dtype: 0),
    "Prod": (ops.reduce_prod, lambda dtype: 1),
    "Max": (ops.reduce_max, _lowest),
    "Min": (ops.reduce_min, _highest),
    "All": (ops.reduce_all, lambda dtype: True),
    "Any": (ops.reduce_any, lambda dtype: False),
    "Mean": (ops.reduce_mean, None),
}


@batching_rule(*_REDUCTIONS)
def reduction_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    """A reduction of each client's value along constant axes. Over the batch it reads real rows only.

    Padded rows are filled with the entry that changes no result. A mean over the batch divides the sum by the client's
    own number of rows. `reduce_aligned` adds in an order that other clients do not decide.

    Raises:
        NoBatchingRule: the axes are not known, or a mean over the batch is not supported.
    """
    if evaluation.known_value(axis) is None and axis.client_invariant and x.padded_axis is None:
        return _reduce_dynamic_axes(evaluation, node, x, evaluation.tensor(axis))
    rank = evaluation.rank(x)
    axes = sorted({int(a) % rank for a in evaluation.constant_operand(node, axis).reshape(-1)})
    keepdims = node.get("keep_dims", False)
    if not axes:
        return x
    reduce, identity = _REDUCTIONS[node.op]
    if x.padded_axis not in axes:
        padded_axis = x.padded_axis if keepdims else x.padded_axis_after_removal(*axes)
        reduce_tensor = functools.partial(reduce_aligned, reduce) if x.batched else reduce
        reduced = reduce_tensor(evaluation.tensor(x), [a + int(x.batched) for a in axes], keepdims=keepdims)
        padding = x.padding if node.op == "Sum" else rowwise_padding([x])
        return BatchedValue(reduced, x.batched, padded_axis, x.entries_per_row, padding=padding)
    # From here on the batch is reduced. `masked` gives the tensor a client axis, behind which all axes move by one.
    batched_axes, rows = [a + 1 for a in axes], x.padded_axis + 1
    if identity is None:
        total = reduce_aligned(ops.reduce_sum, evaluation.masked(x), batched_axes, keepdims=keepdims, rows=rows)
        return BatchedValue(_mean_of_sum(evaluation, node, x, axes, total), True)
    fill = identity(evaluation.tensor(x).dtype)
    filled = evaluation.masked(x, fill)
    return BatchedValue(reduce_aligned(reduce, filled, batched_axes, keepdims=keepdims, rows=rows, fill=fill), True)


def _reduce_dynamic_axes(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axes: Value) -> BatchedValue:
    """A reduction over axes that are known at run time only, as in gradients of broadcasting.

    Sums of floats are added up for one client at a time: the order would follow a client's place in its group.
    """
    if x.batched and node.op in ("Sum", "Prod", "Mean") and not evaluation.tensor(x).dtype.is_integer:
        (out,) = unrolled_over_clients(evaluation, node, [per_client(evaluation, x), axes])
        return x.with_tensor(out)
    shifted = ops.where(axes < 0, axes, axes + int(x.batched))
    return x.with_tensor(*emit(node.op, [evaluation.tensor(x), shifted], node.attributes))


def _mean_of_sum(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axes: list[int], total: Value) -> Value:
    """The mean over the batch and maybe other axes, from the sum. The mean of no rows is 0/0, as for one client alone.

    Args:
        axes: the reduced axes of one client's value.
        total: the sum, [K, …].
    Raises:
        NoBatchingRule: the mean is of integers, or over an axis of unknown size.
    """
    other_sizes = [evaluation.shape(x)[a] for a in axes if a != x.padded_axis]
    if None in other_sizes or not total.dtype.is_floating:
        raise NoBatchingRule(node.op, "a mean over a batch of integers, or over an axis of unknown size")
    assert evaluation.sizes is not None  # the mean is over a batch
    count = evaluation.sizes * int(np.prod([x.entries_per_row, *other_sizes]))
    return total / ops.reshape(ops.cast(count, total.dtype), [evaluation.clients] + [1] * (total.shape.rank - 1))


@batching_rule("BiasAddGrad")
def bias_add_grad_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """The sum over all axes but the last one, where padded rows are zeros.

    Raises:
        NoBatchingRule: channels are not the last axis, or the batch is.
    """
    if node.get("data_format", b"NHWC") != b"NHWC":
        raise NoBatchingRule("BiasAddGrad", "its data format is not NHWC")
    rank = evaluation.rank(x)
    if x.padded_axis == rank - 1:
        raise NoBatchingRule("BiasAddGrad", "the batch is the channel axis")
    rows = None if x.padded_axis is None else x.padded_axis + 1
    total = reduce_aligned(ops.reduce_sum, evaluation.masked(x), list(range(1, rank)), rows=rows)
    return BatchedValue(total, True)


@batching_rule("ArgMax", "ArgMin")
def position_of_extreme_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue
) -> BatchedValue:
    """The position of the largest or smallest entry along an axis.

    Along the batch, padded rows get an entry that never wins over a real one in front of them.
    """
    reduced_axis = evaluation.axis_operand(node, axis, x)
    arg_reduction = ops.argmax if node.op == "ArgMax" else ops.argmin
    if x.padded_axis == reduced_axis:
        dtype = evaluation.tensor(x).dtype
        tensor = evaluation.masked(x, _lowest(dtype) if node.op == "ArgMax" else _highest(dtype))
        return BatchedValue(arg_reduction(tensor, reduced_axis + 1, node["output_type"]), True)
    positions = arg_reduction(evaluation.tensor(x), reduced_axis + int(x.batched), node["output_type"])
    return BatchedValue(positions, x.batched, x.padded_axis_after_removal(reduced_axis), x.entries_per_row)


@batching_rule("InTopKV2")
def in_top_k_rule(
    evaluation: BatchedEvaluation, node: Node, predictions: BatchedValue, targets: BatchedValue, k: BatchedValue
) -> BatchedValue:
    """Whether each row's target is among its k largest predictions, for the rows of all clients at once.

    Raises:
        NoBatchingRule: k differs between clients, the classes are the batch, or predictions and targets have different
            batches.
    """
    if k.batched:
        raise NoBatchingRule(node.op, "it differs between clients", k)
    if predictions.padded_axis not in (None, 0):
        raise NoBatchingRule(node.op, "the classes are the batch")
    if predictions.padded_axis != targets.padded_axis or predictions.entries_per_row != targets.entries_per_row:
        raise NoBatchingRule(node.op, "predictions and targets have different batches")
    scores, labels = evaluation.with_client_axis(predictions), evaluation.with_client_axis(targets)
    classes = ops.shape(scores)[2] if scores.shape[2] is None else scores.shape[2]
    operands = [ops.reshape(scores, [-1, classes]), ops.reshape(labels, [-1]), evaluation.tensor(k)]
    (is_in_top,) = emit(node.op, operands, node.attributes)
    is_in_top = ops.reshape(is_in_top, ops.shape(labels) if None in labels.shape.as_list() else labels.shape)
    padding = rowwise_padding((predictions, targets))
    return BatchedValue(is_in_top, True, predictions.padded_axis, predictions.entries_per_row, padding=padding)


@batching_rule("L2Loss")
def l2_loss_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """Half the sum of squares of each client's value, where padded rows are zeros."""
    tensor = evaluation.masked(x)
    rows = None if x.padded_axis is None else x.padded_axis + 1
    total = reduce_aligned(ops.reduce_sum, tensor * tensor, list(range(1, tensor.shape.rank)), rows=rows)
    return BatchedValue(total / 2, True)


@batching_rule("DenseBincount")
def dense_bincount_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, size: BatchedValue, weights: BatchedValue
) -> BatchedValue:
    """How often each number occurs in each client's vector: the operation counts the rows of a matrix.

    Raises:
        NoBatchingRule: the value is a batch or a matrix already.
    """
    if x.padded_axis is not None or evaluation.rank(x) != 1:
        raise NoBatchingRule(node.op, "it counts a batch or a matrix")
    bin_count = ops.constant(int(evaluation.constant_operand(node, size)), evaluation.tensor(size).dtype)
    has_no_weights = not weights.batched and evaluation.shape(weights) == (0,)
    row_weights = evaluation.tensor(weights) if has_no_weights else evaluation.with_client_axis(weights)
    (counts,) = emit(node.op, [evaluation.with_client_axis(x), bin_count, row_weights], node.attributes)
    return BatchedValue(counts, True)

"""Operations that reduce axes; over the batch they see the client's real rows only."""

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, batching_rule, row_by_row
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Node, emit


def _lowest(dtype: tf.DType):
    return -np.inf if dtype.is_floating else dtype.min


def _highest(dtype: tf.DType):
    return np.inf if dtype.is_floating else dtype.max


_REDUCTIONS = {
    "Sum": (tf.reduce_sum, lambda dtype: 0),
    "Prod": (tf.reduce_prod, lambda dtype: 1),
    "Max": (tf.reduce_max, _lowest),
    "Min": (tf.reduce_min, _highest),
    "All": (tf.reduce_all, lambda dtype: True),
    "Any": (tf.reduce_any, lambda dtype: False),
    "Mean": (tf.reduce_mean, None),
}


@batching_rule(*_REDUCTIONS)
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    if call.known(axis) is None and axis.plain and x.padded_axis is None:
        return _over_axes(call, node, x, call.tensor(axis))
    rank = call.rank(x)
    axes = sorted({int(a) % rank for a in call.constant(node, axis).reshape(-1)})
    keep = node.get("keep_dims", False)
    if not axes:
        return x
    reduce, identity = _REDUCTIONS[node.op]
    batch = x.padded_axis in axes
    shift = int(x.stacked or batch)
    own = [a + shift for a in axes]
    padded_axis = (
        None
        if x.padded_axis is None or batch
        else x.padded_axis - (0 if keep else sum(a < x.padded_axis for a in axes))
    )
    if not batch:
        out = reduce(call.tensor(x), own, keepdims=keep)
        return BatchedValue(out, x.stacked, padded_axis, x.times, padding=row_by_row([x]))
    if identity is not None:
        dtype = call.tensor(x).dtype
        return BatchedValue(reduce(call.masked(x, identity(dtype)), own, keepdims=keep), True)
    total = tf.reduce_sum(call.masked(x), own, keepdims=keep)
    return BatchedValue(_divided(call, node, x, axes, total), True)


def _over_axes(call: BatchedEvaluation, node: Node, x: BatchedValue, axes: tf.Tensor) -> BatchedValue:
    """A reduction over axes that are known when it runs, as the gradients of broadcasting have them."""
    shifted = tf.where(axes < 0, axes, axes + int(x.stacked))
    return x.like(*emit(node.op, [call.tensor(x), shifted], node.attributes))


def _divided(call: BatchedEvaluation, node: Node, x: BatchedValue, axes: list[int], total: tf.Tensor) -> tf.Tensor:
    """A sum over the batch and other axes as the mean; no rows give 0/0, as one client alone has it."""
    others = [call.shape(x)[a] for a in axes if a != x.padded_axis]
    if None in others or not total.dtype.is_floating:
        raise NoBatchingRule(node.op, "a mean over a batch of integers, or over an axis of unknown size")
    assert call.sizes is not None
    count = call.sizes * int(np.prod([x.times, *others]))
    return total / tf.reshape(tf.cast(count, total.dtype), [call.clients] + [1] * (total.shape.rank - 1))


@batching_rule("BiasAddGrad")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    if node.get("data_format", b"NHWC") != b"NHWC":
        raise NoBatchingRule("BiasAddGrad", "channels come first")
    rank = call.rank(x)
    if x.padded_axis == rank - 1:
        raise NoBatchingRule("BiasAddGrad", "the batch is the axis of channels")
    stacked = x.stacked or x.padded_axis is not None
    tensor = call.masked(x)
    if not stacked:
        return BatchedValue(tf.reduce_sum(tensor, list(range(rank - 1))))
    return BatchedValue(tf.reduce_sum(tensor, list(range(1, rank))), True)


@batching_rule("ArgMax", "ArgMin")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, axis: BatchedValue) -> BatchedValue:
    own = int(call.constant(node, axis)) % call.rank(x)
    find = tf.argmax if node.op == "ArgMax" else tf.argmin
    if x.padded_axis == own:
        dtype = call.tensor(x).dtype
        tensor = call.masked(x, _lowest(dtype) if node.op == "ArgMax" else _highest(dtype))
        return BatchedValue(find(tensor, own + 1, node["output_type"]), True)
    padded_axis = None if x.padded_axis is None else x.padded_axis - int(own < x.padded_axis)
    return BatchedValue(
        find(call.tensor(x), own + int(x.stacked), node["output_type"]), x.stacked, padded_axis, x.times
    )


@batching_rule("L2Loss")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    if not x.stacked and x.padded_axis is None:
        return BatchedValue(tf.nn.l2_loss(call.tensor(x)))
    tensor = call.masked(x)
    return BatchedValue(tf.reduce_sum(tensor * tensor, list(range(1, tensor.shape.rank))) / 2, True)

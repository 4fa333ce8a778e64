"""Looking rows up and adding rows up by index: embeddings and their gradients."""

import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding, batching_rule, row_by_row
from fedcore.graphs.batched.batching_rules.convolutions import client_by_client, own
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Node, emit


@batching_rule("GatherV2", "Gather")
def _(
    call: BatchedEvaluation, node: Node, params: BatchedValue, indices: BatchedValue, *axis: BatchedValue
) -> BatchedValue:
    at = int(call.constant(node, axis[0])) % call.rank(params) if axis else 0
    batch_dims = node.get("batch_dims", 0) % (call.rank(indices) + 1)
    padded_axis, times = _gathered_batch(node, params, indices, at, batch_dims, call.rank(indices))
    if params.stacked and indices.stacked:
        out = tf.gather(call.tensor(params), call.tensor(indices), axis=at + 1, batch_dims=batch_dims + 1)
    elif params.stacked:
        if batch_dims:
            out = tf.gather(call.tensor(params), call.stack(indices), axis=at + 1, batch_dims=batch_dims + 1)
        else:
            out = tf.gather(call.tensor(params), call.tensor(indices), axis=at + 1)
    elif not indices.stacked:
        out = tf.gather(call.tensor(params), call.tensor(indices), axis=at, batch_dims=batch_dims)
    elif batch_dims:
        out = tf.gather(call.stack(params), call.tensor(indices), axis=at + 1, batch_dims=batch_dims + 1)
    else:
        out = tf.gather(call.tensor(params), call.tensor(indices), axis=at)
        if at:
            order = [at, *range(at), *range(at + 1, out.shape.rank)]
            out = tf.transpose(out, order)
    padding = row_by_row([indices]) if params.padded_axis is None else Padding.UNKNOWN
    return BatchedValue(out, params.stacked or indices.stacked, padded_axis, times, padding=padding)


def _gathered_batch(node: Node, params: BatchedValue, indices: BatchedValue, at: int, batch_dims: int, rank: int):
    """Where the batch is in gathered rows. Indices into a batch point at real rows, so that axis may go."""
    found = set()
    if indices.padded_axis is not None:
        shifted = indices.padded_axis if indices.padded_axis < batch_dims else at + indices.padded_axis - batch_dims
        found.add((shifted, indices.times))
    if params.padded_axis is not None and params.padded_axis != at:
        shifted = params.padded_axis if params.padded_axis < at else params.padded_axis - 1 + rank - batch_dims
        found.add((shifted, params.times))
    if len(found) > 1:
        raise NoBatchingRule(node.op, "two batches span the result")
    return next(iter(found), (None, 1))


@batching_rule("GatherNd")
def _(call: BatchedEvaluation, node: Node, params: BatchedValue, indices: BatchedValue) -> BatchedValue:
    if params.padded_axis is not None and params.padded_axis >= call.shape(indices)[-1]:
        raise NoBatchingRule("GatherNd", "what it gathers has a batch axis of its own")
    if indices.padded_axis == call.rank(indices) - 1:
        raise NoBatchingRule("GatherNd", "the batch is the last axis of the indices")
    if params.stacked:
        out = tf.gather_nd(call.tensor(params), call.stack(indices), batch_dims=1)
    else:
        out = tf.gather_nd(call.tensor(params), call.tensor(indices))
    return BatchedValue(out, params.stacked or indices.stacked, indices.padded_axis, indices.times)


@batching_rule("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def _(
    call: BatchedEvaluation, node: Node, rows: BatchedValue, segments: BatchedValue, count: BatchedValue
) -> BatchedValue:
    """One sum for all: client k's segments are the k-th range.

    Rows without a segment (-1) stay without; a segment that does not exist stays an error.
    """
    number = int(call.constant(node, count))
    if (rows.padded_axis, rows.times) != (segments.padded_axis, segments.times):
        raise NoBatchingRule(node.op, "rows and their segments have different batches")
    ids, values = call.stack(segments), call.stack(rows)
    first = tf.reshape(tf.range(call.clients, dtype=ids.dtype) * number, [call.clients] + [1] * call.rank(segments))
    kept = ids >= 0
    if segments.padded_axis is not None:
        kept = kept & call.mask(call.rank(segments), segments.padded_axis, segments.times)
    beyond = tf.constant(call.clients * number, ids.dtype)
    ids = tf.where(kept, tf.where(ids < number, ids + first, beyond), tf.constant(-1, ids.dtype))
    total = tf.constant(call.clients * number, call.tensor(count).dtype)
    (out,) = emit(node.op, [values, ids, total], node.attributes)
    return BatchedValue(tf.reshape(out, [call.clients, number, *out.shape[1:]]), True)


@batching_rule("ScatterNd")
def _(
    call: BatchedEvaluation, node: Node, indices: BatchedValue, updates: BatchedValue, shape: BatchedValue
) -> BatchedValue:
    """Padded rows add zeros, at the places of the rows that they copy."""
    known = call.known(shape)
    if known is None:
        raise NoBatchingRule("ScatterNd", "a shape is not known")
    axis, times = call.batch_axis(node, known)
    sizes = tf.constant(known.values[0])
    operands = [own(call, indices), own(call, updates, masked=True), sizes]
    (tensor,) = client_by_client(call, node, operands)
    return BatchedValue(tensor, True, axis, times)


@batching_rule("TensorScatterAdd", "TensorScatterSub", "TensorScatterUpdate")
def _(
    call: BatchedEvaluation, node: Node, x: BatchedValue, indices: BatchedValue, updates: BatchedValue
) -> BatchedValue:
    if node.op == "TensorScatterUpdate" and updates.padded_axis is not None:
        raise NoBatchingRule(node.op, "padded rows would be written")
    operands = [own(call, x), own(call, indices), own(call, updates, masked=True)]
    (tensor,) = client_by_client(call, node, operands)
    return BatchedValue(tensor, True, x.padded_axis, x.times)

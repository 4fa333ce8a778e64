"""Looking rows up and adding rows up by index: embeddings and their gradients."""

import tensorflow as tf

from fedcore.graphs.vectorise.call import Call
from fedcore.graphs.vectorise.lanes import Lane, NoRule, Padding, row_by_row, rule
from fedcore.graphs.vectorise.nodes import Node, emit
from fedcore.graphs.vectorise.rules_convolutions import client_by_client, own


@rule("GatherV2", "Gather")
def _(call: Call, node: Node, params: Lane, indices: Lane, *axis: Lane) -> Lane:
    at = int(call.constant(node, axis[0])) % call.rank(params) if axis else 0
    batch_dims = node.get("batch_dims", 0) % (call.rank(indices) + 1)
    ragged, times = _gathered_batch(node, params, indices, at, batch_dims, call.rank(indices))
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
    padding = row_by_row([indices]) if params.ragged is None else Padding.UNKNOWN
    return Lane(out, params.stacked or indices.stacked, ragged, times, padding=padding)


def _gathered_batch(node: Node, params: Lane, indices: Lane, at: int, batch_dims: int, rank: int):
    """Where the batch is in gathered rows. Indices into a batch point at real rows, so that axis may go."""
    found = set()
    if indices.ragged is not None:
        shifted = indices.ragged if indices.ragged < batch_dims else at + indices.ragged - batch_dims
        found.add((shifted, indices.times))
    if params.ragged is not None and params.ragged != at:
        shifted = params.ragged if params.ragged < at else params.ragged - 1 + rank - batch_dims
        found.add((shifted, params.times))
    if len(found) > 1:
        raise NoRule(node.op, "two batches span the result")
    return next(iter(found), (None, 1))


@rule("GatherNd")
def _(call: Call, node: Node, params: Lane, indices: Lane) -> Lane:
    if params.ragged is not None and params.ragged >= call.shape(indices)[-1]:
        raise NoRule("GatherNd", "what it gathers has a batch axis of its own")
    if indices.ragged == call.rank(indices) - 1:
        raise NoRule("GatherNd", "the batch is the last axis of the indices")
    if params.stacked:
        out = tf.gather_nd(call.tensor(params), call.stack(indices), batch_dims=1)
    else:
        out = tf.gather_nd(call.tensor(params), call.tensor(indices))
    return Lane(out, params.stacked or indices.stacked, indices.ragged, indices.times)


@rule("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def _(call: Call, node: Node, rows: Lane, segments: Lane, count: Lane) -> Lane:
    """One sum for all: client k's segments are the k-th range.

    Rows without a segment (-1) stay without; a segment that does not exist stays an error.
    """
    number = int(call.constant(node, count))
    if (rows.ragged, rows.times) != (segments.ragged, segments.times):
        raise NoRule(node.op, "rows and their segments have different batches")
    ids, values = call.stack(segments), call.stack(rows)
    first = tf.reshape(tf.range(call.clients, dtype=ids.dtype) * number, [call.clients] + [1] * call.rank(segments))
    kept = ids >= 0
    if segments.ragged is not None:
        kept = kept & call.mask(call.rank(segments), segments.ragged, segments.times)
    beyond = tf.constant(call.clients * number, ids.dtype)
    ids = tf.where(kept, tf.where(ids < number, ids + first, beyond), tf.constant(-1, ids.dtype))
    total = tf.constant(call.clients * number, call.tensor(count).dtype)
    (out,) = emit(node.op, [values, ids, total], node.attributes)
    return Lane(tf.reshape(out, [call.clients, number, *out.shape[1:]]), True)


@rule("ScatterNd")
def _(call: Call, node: Node, indices: Lane, updates: Lane, shape: Lane) -> Lane:
    """Padded rows add zeros, at the places of the rows that they copy."""
    known = call.known(shape)
    if known is None:
        raise NoRule("ScatterNd", "a shape is not known")
    axis, times = call.batch_axis(node, known)
    sizes = tf.constant(known.values[0])
    operands = [own(call, indices), own(call, updates, masked=True), sizes]
    (tensor,) = client_by_client(call, node, operands)
    return Lane(tensor, True, axis, times)


@rule("TensorScatterAdd", "TensorScatterSub", "TensorScatterUpdate")
def _(call: Call, node: Node, x: Lane, indices: Lane, updates: Lane) -> Lane:
    if node.op == "TensorScatterUpdate" and updates.ragged is not None:
        raise NoRule(node.op, "padded rows would be written")
    operands = [own(call, x), own(call, indices), own(call, updates, masked=True)]
    (tensor,) = client_by_client(call, node, operands)
    return Lane(tensor, True, x.ragged, x.times)

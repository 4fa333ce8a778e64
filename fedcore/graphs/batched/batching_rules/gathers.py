"""Gathers, searches in sorted rows, scatters and segment sums: embeddings and their gradients, and tables.

Words: see `batched_value`.
"""

import attrs
import numpy as np

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding, batching_rule, rowwise_padding
from fedcore.graphs.batched.batching_rules.convolutions import per_client, unrolled_over_clients
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node
from fedcore.graphs.graphdef.form.checked_operations import emit


@batching_rule("GatherV2", "Gather")
def gather_rule(
    evaluation: BatchedEvaluation, node: Node, params: BatchedValue, indices: BatchedValue, *axis: BatchedValue
) -> BatchedValue:
    """Slices of `params` at indices along an axis, by one GatherV2 for all clients.

    If both operands have a client axis, or need one since the operation has batch axes already (`batch_dims`, leading
    axes that the operands share), the client axis is a further batch axis. Otherwise a client axis of `params` shifts
    the gathered axis by one, and one of the indices is moved to the front of the result.

    Args:
        axis: the gathered axis; empty for Gather, which gathers along axis 0.
    """
    gathered_axis = evaluation.axis_operand(node, axis[0], params) if axis else 0
    batch_dims = node.get("batch_dims", 0)
    batch_dims += evaluation.rank(indices) if batch_dims < 0 else 0
    padded_axis, entries_per_row = _padded_axis_after_gather(
        node, params, indices, gathered_axis, batch_dims, evaluation.rank(indices)
    )
    if params.padded_axis == gathered_axis:
        indices = _within_own_rows(evaluation, params, indices)
    batched = params.batched or indices.batched
    if (params.batched and indices.batched) or (batched and batch_dims):
        x, positions = evaluation.with_client_axis(params), evaluation.with_client_axis(indices)
        out = ops.gather(x, positions, axis=gathered_axis + 1, batch_dims=batch_dims + 1)
    else:
        x, positions = evaluation.tensor(params), evaluation.tensor(indices)
        out = ops.gather(x, positions, axis=gathered_axis + int(params.batched), batch_dims=batch_dims)
    if indices.batched and not params.batched and not batch_dims and gathered_axis:
        # The client axis of the indices stands in the place of the gathered axis.
        out = ops.transpose(out, [gathered_axis, *range(gathered_axis), *range(gathered_axis + 1, out.shape.rank)])
    padding = rowwise_padding([indices]) if params.padded_axis is None else Padding.UNKNOWN
    return BatchedValue(out, batched, padded_axis, entries_per_row, padding=padding)


def _within_own_rows(
    evaluation: BatchedEvaluation, x: BatchedValue, indices: BatchedValue, component: int | None = None
) -> BatchedValue:
    """Indices into a batch, with -1 in the place of numbers of padded rows.

    Where a client runs alone, the kernel refuses such a number, since it has no such row; it refuses -1 too.

    Args:
        x: the batch, or a value without a tensor that has its axes.
        component: the entry of the index vectors that is a position along the batch. Default: all entries are.
    """
    known_indices = evaluation.known_value(indices)
    if known_indices is not None and known_indices.is_constant and not known_indices.at_padded_size.any():
        return indices  # a client has a first row
    client_indices = attrs.evolve(indices, tensor=evaluation.with_client_axis(indices), batched=True, form=None)
    assert evaluation.sizes is not None  # there is a batch
    count = ops.reshape(evaluation.sizes * x.entries_per_row, [evaluation.clients] + [1] * evaluation.rank(indices))
    is_beyond = client_indices.tensor >= ops.cast(count, client_indices.tensor.dtype)
    if component is not None:
        is_beyond = is_beyond & (np.arange(evaluation.shape(indices)[-1]) == component)
    present = evaluation.present(client_indices)
    is_beyond = is_beyond if present is None else is_beyond & present  # padding among the indices raises no error
    refused = ops.constant(-1, client_indices.tensor.dtype)
    return attrs.evolve(client_indices, tensor=ops.where(is_beyond, refused, client_indices.tensor))


def _padded_axis_after_gather(
    node: Node, params: BatchedValue, indices: BatchedValue, gathered_axis: int, batch_dims: int, rank: int
) -> tuple[int | None, int]:
    """(padded axis, entries per row) of a gather; (None, 1) if the result has no batch.

    Indices into a batch select real rows, so a gather along the batch of `params` removes it.

    Args:
        gathered_axis: the gathered axis of `params`.
        batch_dims: number of leading axes that both operands share.
        rank: number of axes of one client's indices; these stand in the result in the place of the gathered axis.
    Raises:
        NoBatchingRule: the result would have two batch axes, or one operand has a batch along an axis that both share.
    """
    shared_axes = range(batch_dims)
    if len({v.padded_axis if v.padded_axis in shared_axes else None for v in (params, indices)}) > 1:
        raise NoBatchingRule(node.op, "one operand has a batch where another has an axis of constant size")
    axes = set()
    if indices.padded_axis is not None:
        shifted = (
            indices.padded_axis
            if indices.padded_axis < batch_dims
            else gathered_axis + indices.padded_axis - batch_dims
        )
        axes.add((shifted, indices.entries_per_row))
    if params.padded_axis is not None and params.padded_axis != gathered_axis:
        shifted = (
            params.padded_axis if params.padded_axis < gathered_axis else params.padded_axis - 1 + rank - batch_dims
        )
        axes.add((shifted, params.entries_per_row))
    if len(axes) > 1:
        raise NoBatchingRule(node.op, "the result would have two batch axes")
    return next(iter(axes), (None, 1))


@batching_rule("GatherNd")
def gather_nd_rule(
    evaluation: BatchedEvaluation, node: Node, params: BatchedValue, indices: BatchedValue
) -> BatchedValue:
    """Slices of `params` at index vectors; a client axis of `params` is a batch axis of the operation.

    Raises:
        NoBatchingRule: a gathered slice would hold the batch, or the batch is the axis of the index vectors.
    """
    if params.padded_axis is not None and params.padded_axis >= evaluation.shape(indices)[-1]:
        raise NoBatchingRule("GatherNd", "the gathered slices have a batch axis")
    if indices.padded_axis == evaluation.rank(indices) - 1:
        raise NoBatchingRule("GatherNd", "the batch is the last axis of the indices")
    if params.padded_axis is not None:
        indices = _within_own_rows(evaluation, params, indices, params.padded_axis)
    if params.batched:
        out = ops.gather_nd(evaluation.tensor(params), evaluation.with_client_axis(indices), batch_dims=1)
    else:
        out = ops.gather_nd(evaluation.tensor(params), evaluation.tensor(indices))
    return BatchedValue(out, params.batched or indices.batched, indices.padded_axis, indices.entries_per_row)


@batching_rule("LowerBound", "UpperBound")
def sorted_search_rule(
    evaluation: BatchedEvaluation, node: Node, rows: BatchedValue, values: BatchedValue
) -> BatchedValue:
    """The places of values in sorted rows, one row after another: row i is searched for the values of row i.

    Clients that share the rows put their values side by side; others put their rows below each other.

    Args:
        rows: the sorted rows of one client, [B, N], and `values` what is looked for, [B, M].
    Raises:
        NoBatchingRule: the rows are a batch, so that they hold padding.
    """
    if rows.padded_axis is not None or values.padded_axis == 0:
        raise NoBatchingRule(node.op, "the sorted rows are a batch")
    if not rows.batched and not values.batched:
        return values.with_tensor(*emit(node.op, [evaluation.tensor(rows), evaluation.tensor(values)], node.attributes))
    wanted = evaluation.with_client_axis(values)
    clients, (count, size) = evaluation.clients, ops.unstack(ops.shape(wanted)[1:], 2)
    if rows.batched:
        tables = evaluation.tensor(rows)
        tables = ops.reshape(tables, [clients * count, ops.shape(tables)[2]])
        (places,) = emit(node.op, [tables, ops.reshape(wanted, [clients * count, size])], node.attributes)
        places = ops.reshape(places, [clients, count, size])
    else:
        together = ops.reshape(ops.transpose(wanted, [1, 0, 2]), [count, clients * size])
        (places,) = emit(node.op, [evaluation.tensor(rows), together], node.attributes)
        places = ops.transpose(ops.reshape(places, [count, clients, size]), [1, 0, 2])
    return BatchedValue(places, True, values.padded_axis, values.entries_per_row)


@batching_rule("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def segment_reduction_rule(
    evaluation: BatchedEvaluation, node: Node, rows: BatchedValue, segments: BatchedValue, count: BatchedValue
) -> BatchedValue:
    """One segment sum (or product, maximum, minimum) for all clients: client k has the segments k * count …
    (k + 1) * count - 1.

    Padded rows get a negative segment number, which drops a row. A number that is too large for a client stays an
    error: it becomes one that is too large for all (`beyond`), and not a segment of the next client.

    Args:
        rows: the values that are added up, and `segments` the number of the segment of each.
        count: the number of segments of one client, a constant.
    """
    segments_per_client = int(evaluation.constant_operand(node, count))
    if (rows.padded_axis, rows.entries_per_row) != (segments.padded_axis, segments.entries_per_row):
        raise NoBatchingRule(node.op, "rows and their segment numbers have different batch axes")
    ids, values = evaluation.with_client_axis(segments), evaluation.with_client_axis(rows)
    first = ops.reshape(
        ops.range_(evaluation.clients, dtype=ids.dtype) * segments_per_client,
        [evaluation.clients] + [1] * evaluation.rank(segments),
    )
    is_valid = ids >= 0
    if segments.padded_axis is not None:
        is_valid = is_valid & evaluation.mask(evaluation.rank(segments), segments.padded_axis, segments.entries_per_row)
    beyond = ops.constant(evaluation.clients * segments_per_client, ids.dtype)
    ids = ops.where(is_valid, ops.where(ids < segments_per_client, ids + first, beyond), ops.constant(-1, ids.dtype))
    total = ops.constant(evaluation.clients * segments_per_client, evaluation.tensor(count).dtype)
    (out,) = emit(node.op, [values, ids, total], node.attributes)
    return BatchedValue(ops.reshape(out, [evaluation.clients, segments_per_client, *out.shape[1:]]), True)


@batching_rule("ScatterNd")
def scatter_nd_rule(
    evaluation: BatchedEvaluation, node: Node, indices: BatchedValue, updates: BatchedValue, shape: BatchedValue
) -> BatchedValue:
    """A scatter for each client. Padded updates become zeros, which are added at the indices of the rows that they
    copy.
    """
    known_shape = evaluation.known_value(shape)
    if known_shape is None:
        raise NoBatchingRule("ScatterNd", "its shape is not known")
    axis, entries_per_row = evaluation.batch_axis(node, known_shape)
    sizes = ops.constant(known_shape.at_padded_size)
    if axis is not None and axis < evaluation.shape(indices)[-1]:  # index vectors name rows of the batch
        result_axes = BatchedValue(None, True, axis, entries_per_row)
        indices = _within_own_rows(evaluation, result_axes, indices, axis)
    operands = [per_client(evaluation, indices), per_client(evaluation, updates, masked=True), sizes]
    (tensor,) = unrolled_over_clients(evaluation, node, operands)
    return BatchedValue(tensor, True, axis, entries_per_row)


@batching_rule("TensorScatterAdd", "TensorScatterSub", "TensorScatterUpdate")
def tensor_scatter_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, indices: BatchedValue, updates: BatchedValue
) -> BatchedValue:
    """A scatter into a tensor for each client; padded updates become zeros, which change no sum.

    Raises:
        NoBatchingRule: padded updates would overwrite entries.
    """
    if node.op == "TensorScatterUpdate" and updates.padded_axis is not None:
        raise NoBatchingRule(node.op, "it would write padded rows")
    if x.padded_axis is not None and x.padded_axis < evaluation.shape(indices)[-1]:  # index vectors name rows
        indices = _within_own_rows(evaluation, x, indices, x.padded_axis)
    operands = [
        per_client(evaluation, x),
        per_client(evaluation, indices),
        per_client(evaluation, updates, masked=True),
    ]
    (tensor,) = unrolled_over_clients(evaluation, node, operands)
    return BatchedValue(tensor, True, x.padded_axis, x.entries_per_row)

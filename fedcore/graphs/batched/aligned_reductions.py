"""Reductions over the entries and rows of clients' values, whose bits do not depend on the other clients.

In:  a tensor [K, …] and the axes to reduce. Out: as `ops.reduce_sum` and the like.

The order in which TensorFlow's kernels add up entries follows where these begin in memory, and how many there are. The
first depends on a client's place in its group, the second on the size to which batches are padded; both depend on the
other clients of a call. So entries and rows are padded, such that the order is the same.

A *packet* is the content of one vector register (`PACKET_BYTES`). Kernels reduce whole packets of neighbouring entries
at once, and the remainder of a buffer entry by entry, in another order. A *stride* is `ROWS_OF_SUM` rows.

Decision 0184.
"""

import itertools
import math
from collections.abc import Callable

import tensorflow as tf

from fedcore.graphs.batched.batched_value import NoBatchingRule
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value

PACKET_BYTES = 64
"""Largest vector register that an elementwise kernel uses. The remainder of a buffer takes scalar instructions."""

ROWS_OF_SUM = 32
"""Rows of a batch are padded to a multiple of this number before they are reduced, in strides of so many."""

STRIDES_AT_ONCE = 16
"""Strides are padded to a multiple of this number, since kernels add up fewer strides in another order."""

LONG_RUN = 256
"""Runs of more entries are padded. Kernels add up more than 8,192 floats, or 1,600 halves, in an order that depends on
where they begin in memory."""

MOST_AXES = 8
"""TensorFlow's kernels of Pad, StridedSlice and the like take no more."""


def reduce_aligned(
    reduce: Callable,
    tensor: Value,
    axes: list[int],
    *,
    keepdims: bool = False,
    rows: int | None = None,
    fill: float = 0,
) -> Value:
    """A reduction of a batched tensor whose bits depend neither on a client's place nor on the size of padded batches.

    A kernel reduces entries that lie side by side in whole packets, and the remainder one by one, in another order. So
    the last axis, if it stays, is padded to whole packets: no packet then holds entries of two clients. If it does not
    stay, long runs of entries are padded, so that those of each client begin with a packet. Rows are reduced last, in
    strides of `ROWS_OF_SUM`, so that padded rows are whole strides.

    Args:
        reduce: such as `ops.reduce_sum`: (tensor, axes) -> the tensor without these axes.
        tensor: [K, …] of K clients.
        axes: axes of the tensor, which has the clients as axis 0; they are not reduced.
        rows: the axis of the batch, one of `axes`, which is padded with `fill`; None if the batch is not reduced.
        fill: the number that changes no result, such as 0 for a sum.
    Raises:
        NoBatchingRule: the tensor has too many axes for TensorFlow's kernels.
    """
    if tensor.shape.rank > MOST_AXES:
        return _reduce_merged(reduce, tensor, axes, keepdims=keepdims, rows=rows, fill=fill)
    other_axes = [a for a in axes if a != rows]
    result = _reduce_other_axes(reduce, tensor, other_axes) if other_axes else tensor
    if rows is not None:
        result = _reduce_rows(reduce, result, rows - sum(a < rows for a in other_axes), fill)
    for axis in sorted(axes) if keepdims else ():
        result = ops.expand_dims(result, axis)
    return result


def _reduce_merged(
    reduce: Callable, tensor: Value, axes: list[int], *, keepdims: bool, rows: int | None, fill: float
) -> Value:
    """A reduction of a tensor with more axes than kernels take, such as the gradient of `tf.repeat`.

    Neighbouring axes that are all reduced, or that all stay, are merged, and axes of size 1 are dropped. The client
    axis and the rows are never merged. Arguments are those of `reduce_aligned`.
    """
    sizes = tensor.shape.as_list()
    if None in sizes:
        raise NoBatchingRule("a reduction", f"the tensor has {len(sizes)} axes, of which some have unknown sizes")
    unmerged = {0, rows}
    relevant_axes = [a for a, size in enumerate(sizes) if size != 1 or a in unmerged]

    def kind(axis: int) -> int | str:
        """Equal for neighbours that are merged."""
        if axis in unmerged:
            return axis
        return "reduced" if axis in axes else "stays"

    runs = [list(run) for _, run in itertools.groupby(relevant_axes, kind)]
    if len(runs) > MOST_AXES:
        raise NoBatchingRule("a reduction", f"the tensor has {len(sizes)} axes")
    merged = ops.reshape(tensor, [math.prod(sizes[a] for a in run) for run in runs])
    merged_axes = [i for i, (first, *_) in enumerate(runs) if first in axes]
    merged_rows = None if rows is None else runs.index([rows])
    result = reduce_aligned(reduce, merged, merged_axes, rows=merged_rows, fill=fill)
    return ops.reshape(result, [1 if a in axes else s for a, s in enumerate(sizes) if keepdims or a not in axes])


def _reduce_rows(reduce: Callable, tensor: Value, rows: int, fill: float) -> Value:
    """The reduction of the axis of rows, which is padded to whole strides, and the last axis to whole packets.

    Where the rows are the last axis, each stride is reduced first, and then the strides: the order within a stride does
    not depend on the number of rows, and further strides of padding change no result.

    Args:
        rows: the axis of the rows.
        fill: value of the appended rows, which leaves the result as it is.
    """
    last, paddings = tensor.shape.rank - 1, [[0, 0] for _ in tensor.shape]  # of each axis, before and behind
    count, entries = tensor.shape[rows], tensor.shape[last]
    if _rounds(tensor.dtype) and count is not None:
        in_strides = rows == last and count > ROWS_OF_SUM
        paddings[rows][1] = -count % (STRIDES_AT_ONCE * ROWS_OF_SUM if in_strides else ROWS_OF_SUM)
        if rows != last and entries is not None:
            paddings[last][1] = packet_padding(entries, tensor.dtype)
        if any(end for _, end in paddings):
            tensor = ops.pad(tensor, paddings, constant_values=fill)
        if in_strides:
            strides = ops.reshape(tensor, [*(-1 if s is None else s for s in tensor.shape[:-1]), -1, ROWS_OF_SUM])
            return reduce(reduce(strides, -2), -1)
    result = reduce(tensor, [rows])
    return result[..., :entries] if paddings[last][1] and rows != last else result


def _reduce_other_axes(reduce: Callable, tensor: Value, axes: list[int]) -> Value:
    """The reduction of axes that are not the batch.

    If the last axis stays, it is padded to whole packets, so that no packet holds entries of two clients.

    Args:
        axes: of the tensor [K, …]; neither the clients nor the batch.
    """
    last = tensor.shape.rank - 1
    if last in axes:
        return _reduce_run(reduce, tensor, axes)
    entries = tensor.shape[last]
    extra = 0 if entries is None else packet_padding(entries, tensor.dtype)
    if not extra:
        return reduce(tensor, axes)
    return reduce(ops.pad(tensor, [*([0, 0] for _ in range(last)), [0, extra]]), axes)[..., :entries]


_FILL_OF_RUN = {ops.reduce_sum: 0, ops.reduce_mean: 0, ops.reduce_prod: 1}
"""Reductions whose runs are padded -> the entry that changes no result. The order of a maximum decides no bits."""


def _reduce_run(reduce: Callable, tensor: Value, axes: list[int]) -> Value:
    """A reduction of the last axes, which are one run of entries for each client, and maybe of others.

    A long run is padded to whole packets, so that each client's entries begin with one. A mean is then the sum over the
    number of entries without padding. Half floats are added in float32, as TensorFlow's mean does.

    Args:
        axes: the reduced axes; the last axis of the tensor is among them.
    """
    # The run begins with the first axis from which on all axes are reduced.
    first = next(a for a in range(tensor.shape.rank) if set(range(a, tensor.shape.rank)) <= set(axes))
    shape, other_axes = [-1 if s is None else s for s in tensor.shape], [a for a in axes if a < first]
    run = math.prod(shape[first:])
    has_known_sizes = shape.count(-1) < 2 and not any(shape[a] == -1 for a in axes)  # a Reshape leaves one open
    if reduce not in _FILL_OF_RUN or not has_known_sizes or run <= LONG_RUN or not packet_padding(run, tensor.dtype):
        return reduce(tensor, axes)
    if reduce is ops.reduce_mean and tensor.dtype.size < 4:
        return ops.cast(_reduce_run(reduce, ops.cast(tensor, tf.float32), axes), tensor.dtype)
    paddings = [*([0, 0] for _ in range(first)), [0, packet_padding(run, tensor.dtype)]]
    flat = ops.pad(ops.reshape(tensor, [*shape[:first], run]), paddings, constant_values=_FILL_OF_RUN[reduce])
    if reduce is not ops.reduce_mean:
        return reduce(flat, [*other_axes, first])
    count = run * math.prod(shape[a] for a in other_axes)
    return ops.reduce_sum(flat, [*other_axes, first]) / ops.constant(count, tensor.dtype)


def packet_padding(entries: int | None, dtype: tf.DType) -> int:
    """Number of entries that fill the last packet; a whole packet if the number of entries is unknown.

    0 for integers and booleans, which do not round and so have the same bits in every order.
    """
    if not _rounds(dtype):
        return 0
    packet = PACKET_BYTES // dtype.size
    return packet if entries is None else -entries % packet


def _rounds(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_complex

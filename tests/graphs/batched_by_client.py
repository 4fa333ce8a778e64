"""Runs a graph vectorised and client by client: what the tests of the rules compare."""

import functools

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_call import batched_call, why_not_batchable
from fedcore.graphs.batched.batched_value import BatchedValue, Padding
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.capture.graph_import import call_leaves
from fedcore.graphs.frontend.function_tracing import trace_function
from fedcore.types import StructType, TensorType

WIDTHS = (2, 3, 5)
"""Each is compared with width 8."""


def traced(fn, *shapes) -> TracedGraph:
    """The graph of a function of tensors: each a shape (float32) or (dtype, shape)."""
    types = [TensorType(*s) if s and isinstance(s[0], type) else TensorType(np.float32, s) for s in shapes]
    return trace_function(fn, StructType([(None, t) for t in types]), spread=True)


def run_vectorised(
    graph: TracedGraph, values, per_client, *, padded_axes=None, sizes=None, seeds=None
) -> list[tuple[np.ndarray, BatchedValue]]:
    """The results with the lanes that they came in."""
    lanes_out: list[BatchedValue] = []
    padded_axes = padded_axes or {}

    def body(lengths, *tensors):
        lanes = []
        for i, t in enumerate(tensors):
            lanes.append(BatchedValue(t, i in per_client, padded_axes.get(i), padding=Padding.COPIES))
        each = None if seeds is None else tf.constant(seeds)
        lanes_out[:] = batched_call(graph, graph.data, lanes, None if sizes is None else lengths, each)
        return [x.tensor for x in lanes_out]

    lengths = np.zeros(1, np.int64) if sizes is None else np.asarray(sizes, np.int64)
    results = tf.function(body, autograph=False)(tf.constant(lengths), *(tf.constant(v) for v in values))
    return [(r.numpy(), lane) for r, lane in zip(results, lanes_out, strict=True)]


@functools.lru_cache(maxsize=4)
def _plain(graph: TracedGraph):
    return tf.function(lambda seed, *t: call_leaves(graph.named("plain"), graph.data, t, seed), autograph=False)


def run_plain(graph: TracedGraph, values, seed: int = 0) -> list[np.ndarray]:
    return [r.numpy() for r in _plain(graph)(tf.constant(seed, tf.int64), *(tf.constant(v) for v in values))]


def close(have, want, tolerance=1e-6):
    if have.dtype.kind in "biu":
        np.testing.assert_array_equal(have, want)
    else:
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance * max(1.0, np.abs(want).max(initial=0)))


def check(fn, *arguments, shared=(), tolerance=2e-6, widths=WIDTHS):
    """Every client alone has the same result, and at every width the same bits.

    Args:
        arguments: for each parameter the arrays of eight clients, stacked; those in `shared` have no client axis.
    """
    per_client = set(range(len(arguments))) - set(shared)
    shapes = [(a.dtype.type, a.shape[1:] if i in per_client else a.shape) for i, a in enumerate(arguments)]
    graph = traced(fn, *shapes)
    refused = why_not_batchable(graph, graph.data, per_client)
    assert refused is None, str(refused)

    def cut(width):
        return [a[:width] if i in per_client else a for i, a in enumerate(arguments)]

    widest = run_vectorised(graph, cut(8), per_client)
    for k in range(8):
        alone = run_plain(graph, [a[k] if i in per_client else a for i, a in enumerate(arguments)])
        for (have, lane), want in zip(widest, alone, strict=True):
            close(have[k] if lane.stacked else have, want, tolerance)
    for width in widths:
        for (have, lane), (most, _) in zip(run_vectorised(graph, cut(width), per_client), widest, strict=True):
            want = most[:width] if lane.stacked else most
            assert have.tobytes() == want.tobytes(), f"other bits at width {width}"


def check_padded(fn, *arguments, padded_axes, sizes, shared=(), tolerance=2e-6):
    """A padded batch has the result of the batch alone.

    Args:
        padded_axes: positions of the parameters whose leading axis is the batch.
        sizes: the rows of each client; the arguments have the most, and rows beyond are filled with the first.
    """
    per_client = set(range(len(arguments))) - set(shared)
    shapes = []
    for i, a in enumerate(arguments):
        shape = a.shape[1:] if i in per_client else a.shape
        shapes.append((a.dtype.type, (None, *shape[1:]) if i in padded_axes else shape))
    graph = traced(fn, *shapes)
    axes = dict.fromkeys(padded_axes, 0)
    refused = why_not_batchable(graph, graph.data, per_client, axes)
    assert refused is None, str(refused)
    values = [np.array(a) for a in arguments]
    for i in padded_axes:
        for k, n in enumerate(sizes):
            values[i][k, n:] = values[i][k, 0] if n else 0
    found = run_vectorised(graph, values, per_client, padded_axes=axes, sizes=sizes)
    for k, n in enumerate(sizes):
        mine = [a[k, :n] if i in padded_axes else a[k] if i in per_client else a for i, a in enumerate(values)]
        for (have, lane), want in zip(found, run_plain(graph, mine), strict=True):
            got = have[k] if lane.stacked else have
            if lane.padded_axis is not None:
                got = np.take(got, range(n * lane.times), lane.padded_axis)
            close(got, want, tolerance)

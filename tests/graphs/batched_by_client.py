"""Runs a graph batched over clients and client by client, and compares the results: for tests of batching rules."""

import functools
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from fedcore.compiler.host_target import host_target
from fedcore.graphs import private_api
from fedcore.graphs.batched.batched_call import batched_call, why_not_batchable
from fedcore.graphs.batched.batched_value import BatchedValue, Padding
from fedcore.graphs.batched.batching_policy import ISAS_OF_EQUAL_ROWS
from fedcore.graphs.batched.own_rows import EACH, JOINED
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.capture.graph_import import call_leaves
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import new_region
from fedcore.graphs.emission.region_function import region_function
from fedcore.graphs.frontend.function_tracing import trace_function
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.graphs.tensors.specs import spec
from fedcore.types import StructType, TensorType, tensor_leaves

WIDTHS = (2, 3, 4, 5, 6, 7) if os.environ.get("FEDCORE_SOAK") else (3, 5)
"""Each is compared with width 8: 3 floats are less than a vector of the processor, 5 are a vector and a rest."""

PLACES = range(1, 8) if os.environ.get("FEDCORE_SOAK") else (1,)
"""Places in the group by which all clients move on."""

PRODUCTS = JOINED if host_target().isa in ISAS_OF_EQUAL_ROWS else EACH

MORE_ROWS = 37
"""Rows by which padded batches are made longer."""


def traced(fn, *shapes) -> TracedGraph:
    """The graph of a function of tensors: each a shape (float32) or (dtype, shape)."""
    types = [TensorType(*s) if s and isinstance(s[0], type) else TensorType(np.float32, s) for s in shapes]
    return trace_function(fn, StructType([(None, t) for t in types]), spread=True)


def run_batched(
    graph: TracedGraph, values, per_client, *, padded=None, sizes=None, seeds=None
) -> list[tuple[np.ndarray, BatchedValue]]:
    """The results, each with the batched value that it was computed from.

    Args:
        per_client: positions of the values with a client axis.
        padded: position of a value -> its padded axis.
    """
    return batched_runs(graph, values, per_client, padded=padded, sizes=sizes, seeds=seeds)(values)


def batched_runs(graph: TracedGraph, values, per_client, *, padded=None, sizes=None, seeds=None) -> Callable:
    """`run_batched` for values of the shapes of these, by one TensorFlow function."""
    results: list[BatchedValue] = []
    padded = padded or {}

    def body(lengths, *tensors):
        arguments = []
        for i, t in enumerate(tensors):
            arguments.append(BatchedValue(t, i in per_client, padded.get(i), padding=Padding.COPIES))
        of_clients = None if seeds is None else ops.constant(seeds)
        given = None if sizes is None else lengths
        results[:] = batched_call(graph, graph.data, arguments, given, of_clients, products=PRODUCTS)
        return [x.tensor for x in results]

    lengths = tf.constant(np.zeros(1) if sizes is None else sizes, tf.int64)
    arguments = [lengths, *map(tf.constant, values)]
    function = region_function(new_region([(t.dtype, t.shape) for t in arguments], body), name="batched")

    def run(values) -> list[tuple[np.ndarray, BatchedValue]]:
        tensors = Cancellation().call(function, [lengths, *map(tf.constant, values)])
        return [(t.numpy(), value) for t, value in zip(tensors, results, strict=True)]

    return run


@functools.lru_cache(maxsize=4)
def _one_client(graph: TracedGraph):
    specs = [tf.TensorSpec([], tf.int64), *map(spec, tensor_leaves(graph.type.parameter))]
    call = lambda seed, *tensors: call_leaves(graph.with_name("client"), graph.data, tensors, seed)  # noqa: E731
    return tf.function(call, input_signature=specs, autograph=False)


def run_one_client(graph: TracedGraph, values, seed: int = 0) -> list[np.ndarray]:
    with private_api.quick_operations():
        results = _one_client(graph)(tf.constant(seed, tf.int64), *(tf.constant(v) for v in values))
    return [r.numpy() for r in results]


def close(have, want, tolerance=1e-6):
    if have.dtype.kind in "biu":
        np.testing.assert_array_equal(have, want)
    else:
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance * max(1.0, np.abs(want).max(initial=0)))


def check(fn, *arguments, shared=(), tolerance=2e-6, widths=WIDTHS):
    """Every client alone has the same result, and at every width and every place in a group the same bits.

    Args:
        arguments: for each parameter the array of eight clients, [8, …]; those in `shared` have no client axis.
    """
    per_client = set(range(len(arguments))) - set(shared)
    shapes = [(a.dtype.type, a.shape[1:] if i in per_client else a.shape) for i, a in enumerate(arguments)]
    graph = traced(fn, *shapes)
    refused = why_not_batchable(graph, graph.data, per_client)
    assert refused is None, str(refused)

    def of_first_clients(width):
        return [a[:width] if i in per_client else a for i, a in enumerate(arguments)]

    run_eight = batched_runs(graph, of_first_clients(8), per_client)
    widest = run_eight(of_first_clients(8))
    for k in range(8):
        alone = run_one_client(graph, [a[k] if i in per_client else a for i, a in enumerate(arguments)])
        for (have, value), want in zip(widest, alone, strict=True):
            close(have[k] if value.batched else have, want, tolerance)
    for width in widths:
        results = run_batched(graph, of_first_clients(width), per_client)
        for (have, value), (most, _) in zip(results, widest, strict=True):
            want = most[:width] if value.batched else most
            assert have.tobytes() == want.tobytes(), f"other bits at width {width}"
    for places in PLACES:
        moved = [np.roll(a, places, 0) if i in per_client else a for i, a in enumerate(arguments)]
        for (have, value), (want, _) in zip(run_eight(moved), widest, strict=True):
            want = np.roll(want, places, 0) if value.batched else want
            assert have.tobytes() == want.tobytes(), f"other bits {places} places on"


def check_padded(fn, *arguments, padded, sizes, shared=(), tolerance=2e-6):
    """A padded batch has the result of the batch alone, and the same bits where it is padded to more rows.

    Args:
        padded: positions of the parameters whose leading axis is the batch.
        sizes: number of rows of each client; the arguments have the most, and further rows are copies of the first.
    """
    per_client = set(range(len(arguments))) - set(shared)
    shapes = []
    for i, a in enumerate(arguments):
        shape = a.shape[1:] if i in per_client else a.shape
        shapes.append((a.dtype.type, (None, *shape[1:]) if i in padded else shape))
    graph = traced(fn, *shapes)
    axes = dict.fromkeys(padded, 0)
    refused = why_not_batchable(graph, graph.data, per_client, axes)
    assert refused is None, str(refused)
    values = [np.array(a) for a in arguments]
    for i in padded:
        for k, n in enumerate(sizes):
            values[i][k, n:] = values[i][k, 0] if n else 0
    results = run_batched(graph, values, per_client, padded=axes, sizes=sizes)
    longer = results
    if host_target().isa in ISAS_OF_EQUAL_ROWS:
        more = [np.concatenate([a, *[a[:, :1]] * MORE_ROWS], 1) if i in padded else a for i, a in enumerate(values)]
        longer = run_batched(graph, more, per_client, padded=axes, sizes=sizes)
    for k, n in enumerate(sizes):
        of_client = [a[k, :n] if i in padded else a[k] if i in per_client else a for i, a in enumerate(values)]
        for found, of_longer, want in zip(results, longer, run_one_client(graph, of_client), strict=True):
            got = _rows_of_client(found, k, n)
            close(got, want, tolerance)
            assert got.tobytes() == _rows_of_client(of_longer, k, n).tobytes(), f"other bits where {n} rows are padded"


def _rows_of_client(result: tuple[np.ndarray, BatchedValue], client: int, rows: int) -> np.ndarray:
    array, value = result
    array = array[client] if value.batched else array
    return (
        array if value.padded_axis is None else np.take(array, range(rows * value.entries_per_row), value.padded_axis)
    )

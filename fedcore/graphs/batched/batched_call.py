"""Graphs for several clients at once: a rule for each operation, no loop and no padding that changes a result."""

import tensorflow as tf

import fedcore.graphs.batched.batching_rules  # noqa: F401  registers the rules
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding, stacked
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.graphdef.parsed_graph import body_of
from fedcore.graphs.tensors.specs import spec
from fedcore.ir.module import Graph
from fedcore.types import tensor_leaves


def batched_call(
    graph: Graph | TracedGraph,
    data: bytes,
    lanes: list[BatchedValue],
    sizes: tf.Tensor | None = None,
    seeds: tf.Tensor | None = None,
) -> list[BatchedValue]:
    """Puts the graph into the one being built, for K clients at once.

    Args:
        lanes: the leaves of the graph's parameter: `shared` values and `stacked` ones.
        sizes: int64 [K], how many rows of its batch each client has; None where none is padded. A padded row of a
            `stacked` value with a batch axis holds a copy of a row of the client's own; zeros where it has none.
        seeds: int64 [K], what each client draws from: the same as where it runs alone. For a seeded graph.
    Returns:
        The leaves of the result. Values that no client's data reaches come back as `shared`.
    Raises:
        NoBatchingRule: an operation cannot be run for several clients at once. What has been built then is of no use.
    """
    body = body_of(graph.digest, data)
    if body.seeded:
        if seeds is None:
            raise ValueError("a graph that draws needs the seeds of the clients")
        lanes = [*lanes, stacked(seeds)]
    clients = {x.tensor.shape[0] for x in lanes if x.stacked}
    rows = {x.tensor.shape[1 + x.padded_axis] for x in lanes if x.padded_axis is not None}
    if len(clients) > 1 or None in clients:
        raise ValueError(f"the stacked values are for {clients} clients; the number has to be one, and static")
    if sizes is None and rows:
        raise ValueError("a padded batch needs the sizes of the clients' batches")
    if len(rows) > 1 or None in rows:
        raise ValueError(f"the padded batches have {rows} rows; the number has to be one, and static")
    call = BatchedEvaluation(max(clients, default=1), max(rows, default=None), sizes if rows else None)
    out = call.run(body, lanes)
    return [BatchedValue(call.tensor(x), x.stacked, x.padded_axis, x.times) for x in out]


def why_not_batchable(
    graph: Graph | TracedGraph, data: bytes, batched_arguments: set[int], padded_axes: dict[int, int] | None = None
) -> NoBatchingRule | None:
    """Why the graph cannot run for several clients at once; None if it can. Builds it once, in a graph thrown away.

    Args:
        stacked_args: the positions of the leaves of the parameter that differ between clients.
        ragged_args: for those with a padded batch, its axis.
    """
    padded_axes = padded_axes or {}
    specs = [spec(t) for t in tensor_leaves(graph.type.parameter)]

    def scratch():
        lanes = []
        for i, s in enumerate(specs):
            axis = padded_axes.get(i)
            shape = s.shape.as_list()
            if axis is not None:
                shape[axis] = 3
            whole = [2, *shape] if i in batched_arguments else shape
            tensor = tf.compat.v1.placeholder(s.dtype, whole)
            lanes.append(BatchedValue(tensor, i in batched_arguments, axis, padding=Padding.COPIES))
        sizes = tf.compat.v1.placeholder(tf.int64, [2]) if padded_axes else None
        seeds = tf.compat.v1.placeholder(tf.int64, [2])
        return [x.tensor for x in batched_call(graph, data, lanes, sizes, seeds)]

    try:
        tf.function(scratch, autograph=False).get_concrete_function()
    except NoBatchingRule as error:
        return error
    return None

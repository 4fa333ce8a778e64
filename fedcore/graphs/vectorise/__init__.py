"""Graphs for several clients at once: a rule for each operation, no loop and no padding that changes a result."""

import tensorflow as tf

from fedcore.graphs.trace import TracedGraph, spec
from fedcore.graphs.vectorise import (
    rules_arrays,
    rules_control,
    rules_convolutions,
    rules_elementwise,
    rules_gathers,
    rules_lists,
    rules_matmul,
    rules_randomness,
    rules_reductions,
    rules_shapes,
)
from fedcore.graphs.vectorise.call import Call
from fedcore.graphs.vectorise.choosing import chosen, selected
from fedcore.graphs.vectorise.lanes import Lane, NoRule, Padding, rule, shared, stacked
from fedcore.graphs.vectorise.nodes import body_of
from fedcore.ir.module import Graph
from fedcore.types import tensor_leaves


def vectorised_call(
    graph: Graph | TracedGraph,
    data: bytes,
    lanes: list[Lane],
    sizes: tf.Tensor | None = None,
    seeds: tf.Tensor | None = None,
) -> list[Lane]:
    """Puts the graph into the one being built, for K clients at once.

    Args:
        lanes: the leaves of the graph's parameter: `shared` values and `stacked` ones.
        sizes: int64 [K], how many rows of its batch each client has; None where none is padded. A padded row of a
            `stacked` value with a batch axis holds a copy of a row of the client's own; zeros where it has none.
        seeds: int64 [K], what each client draws from: the same as where it runs alone. For a seeded graph.
    Returns:
        The leaves of the result. Values that no client's data reaches come back as `shared`.
    Raises:
        NoRule: an operation cannot be run for several clients at once. What has been built then is of no use.
    """
    body = body_of(graph.digest, data)
    if body.seeded:
        if seeds is None:
            raise ValueError("a graph that draws needs the seeds of the clients")
        lanes = [*lanes, stacked(seeds)]
    clients = {x.tensor.shape[0] for x in lanes if x.stacked}
    rows = {x.tensor.shape[1 + x.ragged] for x in lanes if x.ragged is not None}
    if len(clients) > 1 or None in clients:
        raise ValueError(f"the stacked values are for {clients} clients; the number has to be one, and static")
    if sizes is None and rows:
        raise ValueError("a padded batch needs the sizes of the clients' batches")
    if len(rows) > 1 or None in rows:
        raise ValueError(f"the padded batches have {rows} rows; the number has to be one, and static")
    call = Call(max(clients, default=1), max(rows, default=None), sizes if rows else None)
    out = call.run(body, lanes)
    return [Lane(call.tensor(x), x.stacked, x.ragged, x.times) for x in out]


def can_vectorise(
    graph: Graph | TracedGraph, data: bytes, stacked_args: set[int], ragged_args: dict[int, int] | None = None
) -> NoRule | None:
    """Why the graph cannot run for several clients at once; None if it can. Builds it once, in a graph thrown away.

    Args:
        stacked_args: the positions of the leaves of the parameter that differ between clients.
        ragged_args: for those with a padded batch, its axis.
    """
    ragged_args = ragged_args or {}
    specs = [spec(t) for t in tensor_leaves(graph.type.parameter)]

    def scratch():
        lanes = []
        for i, s in enumerate(specs):
            axis = ragged_args.get(i)
            shape = s.shape.as_list()
            if axis is not None:
                shape[axis] = 3
            whole = [2, *shape] if i in stacked_args else shape
            tensor = tf.compat.v1.placeholder(s.dtype, whole)
            lanes.append(Lane(tensor, i in stacked_args, axis, padding=Padding.COPIES))
        sizes = tf.compat.v1.placeholder(tf.int64, [2]) if ragged_args else None
        seeds = tf.compat.v1.placeholder(tf.int64, [2])
        return [x.tensor for x in vectorised_call(graph, data, lanes, sizes, seeds)]

    try:
        tf.function(scratch, autograph=False).get_concrete_function()
    except NoRule as error:
        return error
    return None


__all__ = ["Lane", "NoRule", "can_vectorise", "chosen", "rule", "selected", "shared", "stacked", "vectorised_call"]

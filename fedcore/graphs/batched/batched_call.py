"""Calls a graph for K clients at once, and tests whether a graph can be called so.

The operations of the graph are added to the block being built, by the batching rules; no function is called, except by
`call_as_function`. Words: see `batched_value`.
"""

from collections.abc import Callable

import attrs
import tensorflow as tf

import fedcore.graphs.batched.batching_rules  # noqa: F401  registers the rules
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding, Presence, batched, shared
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.own_rows import JOINED
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import call
from fedcore.graphs.dataflow.graph import Block, Value, building
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.graphs.tensors.specs import spec
from fedcore.ir.module import Graph
from fedcore.types import tensor_leaves


def batched_call(
    graph: Graph | TracedGraph,
    data: bytes,
    arguments: list[BatchedValue],
    sizes: Value | None = None,
    seeds: Value | None = None,
    *,
    occupied: Presence | None = None,
    products: str = JOINED,
    assumed_finite: list[Value] | None = None,
) -> list[BatchedValue]:
    """Emits the operations of a graph for K clients into the graph being built.

    Args:
        data: the serialized graph.
        arguments: leaves of the graph's parameter. Padded rows of an argument with a padded axis are copies of the
            client's own rows, or zeros if the client has none.
        sizes: int64 [K], number of rows in each client's batch; None if no argument has a padded axis.
        seeds: int64 [K], the seed of each client's random numbers, equal to its seed when it runs alone; or int64 [],
            where no argument has a client axis. Required for a seeded graph.
        occupied: the lanes with a client, see `BatchedEvaluation`.
        products: how a shared matrix is multiplied, see `own_rows`.
        assumed_finite: gets the left factors of low-rank matrices that are taken to be finite; None: none are.
    Returns:
        Leaves of the result. A result that depends on no batched argument is shared.
    Raises:
        NoBatchingRule: an operation cannot be evaluated for several clients. The caller discards the operations that
            were emitted before.
    """
    captured = captured_graph(graph, data)
    if captured.seeded:
        if seeds is None:
            raise ValueError("a seeded graph needs the seeds of the clients")
        arguments = [*arguments, batched(seeds) if seeds.shape.rank else shared(seeds)]
    clients = {x.tensor.shape[0] if x.low_rank is None else x.low_rank.clients for x in arguments if x.batched}
    padded_sizes = {x.tensor.shape[1 + x.padded_axis] for x in arguments if x.padded_axis is not None}
    if len(clients) > 1 or None in clients:
        raise ValueError(f"the client axes have the sizes {clients}; all must have the same static size")
    if sizes is None and padded_sizes:
        raise ValueError("a padded axis needs the sizes of the clients' batches")
    if len(padded_sizes) > 1 or None in padded_sizes:
        raise ValueError(f"the padded axes have the sizes {padded_sizes}; all must have the same static size")
    evaluation = BatchedEvaluation(
        max(clients, default=1),
        max(padded_sizes, default=None),
        sizes if padded_sizes else None,
        occupied=occupied,
        products=products,
        assumed_finite=assumed_finite,
        graph=captured,
    )
    results = evaluation.run(captured.main, arguments)
    return [
        x
        if x.low_rank is not None
        else BatchedValue(evaluation.tensor(x), x.batched, x.padded_axis, x.entries_per_row, padding=x.padding)
        for x in results
    ]


def call_as_function(build: Callable[[], list[BatchedValue]], kind: str) -> list[BatchedValue]:
    """The values that `build` returns, computed by the call of one function of their operations.

    A function is the unit in which TensorFlow fuses operations and XLA compiles.

    Args:
        build: adds operations to the block being built, and returns values.
        kind: of the call, see `control_flow.call`.
    """
    values: list[BatchedValue] = []
    inner_tensors: list[Value] = []

    def body() -> list[Value]:
        """The results of the function: each tensor of the values of `build` that the function computes, once.

        Tensors of the surrounding blocks are read there and need not be results. Notes both lists for the caller.
        """
        values[:] = build()
        function_block = ops.current_block()
        inner_tensors[:] = {id(t): t for value in values for t in _tensors(value) if t.block is function_block}.values()
        return inner_tensors

    results = {id(t): result for t, result in zip(inner_tensors, call(body, [], kind=kind), strict=True)}
    return [_map_tensors(value, lambda t: results.get(id(t), t)) for value in values]


def _tensors(value: BatchedValue) -> list[Value]:
    """The tensors that a value consists of: one, or those of its form."""
    return [value.tensor] if value.low_rank is None else value.low_rank.tensors()


def _map_tensors(value: BatchedValue, fn: Callable[[Value], Value]) -> BatchedValue:
    """The value with `fn` applied to each of its tensors."""
    if value.low_rank is None:
        return attrs.evolve(value, tensor=fn(value.tensor))
    return attrs.evolve(value, form=value.low_rank.map_tensors(fn))


def why_not_batchable(
    graph: Graph | TracedGraph, data: bytes, batched_arguments: set[int], padded_axes: dict[int, int] | None = None
) -> NoBatchingRule | None:
    """Reason why a graph cannot be called for several clients; None if it can.

    The graph is evaluated for two clients with batches of three rows in a block that is dropped.

    Args:
        data: the serialized graph.
        batched_arguments: positions of the leaves of the parameter that differ between clients.
        padded_axes: position of a leaf that is a batch -> the axis of its rows, whose number is unknown.
    """
    padded_axes = padded_axes or {}
    block = Block()
    arguments = []
    for i, t in enumerate(tensor_leaves(graph.type.parameter)):
        axis, shape = padded_axes.get(i), spec(t).shape.as_list()
        if axis is not None:
            shape[axis] = 3
        value = block.argument(spec(t).dtype, [2, *shape] if i in batched_arguments else shape)
        arguments.append(BatchedValue(value, i in batched_arguments, axis, padding=Padding.COPIES))
    sizes = block.argument(tf.int64, [2]) if padded_axes else None
    try:
        with building(block):
            batched_call(graph, data, arguments, sizes, block.argument(tf.int64, [2]))
    except NoBatchingRule as error:
        return error
    return None

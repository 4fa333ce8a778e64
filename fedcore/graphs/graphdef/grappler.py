"""TensorFlow's graph optimiser: over one canonical graph, and what it does when a function runs first."""

import contextlib
from collections.abc import Iterator

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from fedcore.graphs import private_api
from fedcore.graphs.graphdef.canonical_form import canonical_graph, with_content_names
from fedcore.graphs.graphdef.sum_terms import sums_explode
from fedcore.ir import Graph
from fedcore.types import SequenceType, contains, tensor_leaves


def optimised_graph(graph: Graph, data: bytes) -> bytes | None:
    """The graph's bytes after Grappler; None where it cannot optimise the graph."""
    if contains(graph.type, lambda t: isinstance(t, SequenceType)):
        return None  # the functions that draw are defined where the graph is put
    if graph.attributes.get("stateful") or graph.attributes.get("effects"):
        return None  # what no result needs would be gone
    graph_def = with_content_names(graph_pb2.GraphDef.FromString(data))
    arguments = [f"arg{i}" for i in range(len(tensor_leaves(graph.type.parameter)))]
    seed = "seed" if graph.attributes.get("seeded") else None
    given = [*arguments, *([seed] if seed else [])]
    returned = {n.name: n.attr["T"].type for n in graph_def.node if n.name.startswith("ret")}
    results = [f"ret{i}" for i in range(len(tensor_leaves(graph.type.result)))]
    if not results:
        return None
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
    meta.collection_def["train_op"].node_list.value.extend([*results, *given])  # keeps what the module names
    try:
        after = private_api.optimize_graph(_config(arithmetic=not sums_explode(graph_def)), meta)
    except Exception:  # Grappler refuses some valid graphs (no devices, unknown ops); an unoptimised graph is right too
        return None
    kept = {n.name for n in after.node}
    if not kept.issuperset([*results, *given]):
        return None
    inner = {n.name: n.input[0] for n in after.node if n.name in returned and n.op == "Identity"}
    if set(inner) != set(results):
        return None
    for node in after.node:  # a folded constant waits for the argument it was made of; arguments are always there
        waits = [i for i in node.input if i.removeprefix("^") in given and i.startswith("^")]
        for name in waits:
            node.input.remove(name)
    return canonical_graph(after, arguments, [(inner[r], returned[r]) for r in results], [], seed)


@contextlib.contextmanager
def without_function_optimisation() -> Iterator[None]:
    """Functions called by one that is traced here are only tidied up when they run first.

    They are made of optimised graphs; and folding constants would put those that a loop was given back into its turns.
    """
    config = config_pb2.ConfigProto.FromString(private_api.call_config())
    config.graph_options.rewrite_options.optimizers[:] = ["pruning", "dependency"]
    with private_api.call_config_set_to(config):
        yield


def _config(*, arithmetic: bool) -> config_pb2.ConfigProto:
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.meta_optimizer_iterations = 2
    rewrites.min_graph_nodes = -1  # small graphs too
    rewrites.remapping = rewrites.OFF  # fused kernels of one device round otherwise
    rewrites.layout_optimizer = rewrites.OFF
    if not arithmetic:
        rewrites.arithmetic_optimization = rewrites.OFF
    return config

"""Grappler, TensorFlow's graph optimiser: applied to one canonical graph, and its settings for functions."""

import contextlib
from collections.abc import Iterator, Mapping

from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from fedcore.graphs import private_api
from fedcore.graphs.graphdef.analysis.sum_terms import sums_explode
from fedcore.graphs.graphdef.form.canonical_form import canonical_graph, with_content_names
from fedcore.graphs.graphdef.form.operand_guards import guard_graph
from fedcore.ir import Graph
from fedcore.types import SequenceType, contains, tensor_leaves


def optimised_graph(graph: Graph, data: bytes) -> bytes | None:
    """The canonical bytes of a graph after Grappler's passes; None where the graph stays as it is.

    It stays if it takes or returns sequences, has side effects or no results, or if Grappler refuses it; also if
    Grappler removes the node of an argument or of the seed, or the Identity `ret{i}` of a result.

    Args:
        data: the graph's canonical bytes.
    """
    if contains(graph.type, lambda t: isinstance(t, SequenceType)):
        return None  # the functions that access elements are not defined yet
    if graph.attributes.get("stateful") or graph.attributes.get("effects"):
        return None  # Grappler would remove nodes that no result depends on
    graph_def = with_content_names(graph_pb2.GraphDef.FromString(data))
    arguments = [f"arg{i}" for i in range(len(tensor_leaves(graph.type.parameter)))]
    seed = "seed" if graph.attributes.get("seeded") else None
    dtypes = {n.name: n.attr["T"].type for n in graph_def.node if n.name.startswith("ret")}
    results = {f"ret{i}": dtypes[f"ret{i}"] for i in range(len(tensor_leaves(graph.type.result)))}
    if not results:
        return None
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
    wanted_nodes = [*results, *arguments, *([seed] if seed else [])]
    meta.collection_def["train_op"].node_list.value.extend(wanted_nodes)
    try:
        optimised = private_api.optimize_graph(
            _config(arithmetic=not sums_explode(graph, data), folding=guard_graph(graph_def) is graph_def), meta
        )
    except Exception:  # Grappler refuses some valid graphs: no devices, unknown operations
        return None
    return _canonical_or_none(optimised, arguments, results, seed)


def _canonical_or_none(
    optimised: graph_pb2.GraphDef, arguments: list[str], results: Mapping[str, int], seed: str | None
) -> bytes | None:
    """The canonical bytes of an optimised graph; None if an input, or the Identity of a result, is gone.

    Args:
        arguments: names of placeholders.
        results: name of the Identity of each result -> dtype.
        seed: name of its placeholder, if the graph has one.
    """
    inputs = {*arguments, *([seed] if seed else [])}
    sources = {n.name: n.input[0] for n in optimised.node if n.name in results and n.op == "Identity"}
    if not inputs <= {n.name for n in optimised.node} or sources.keys() != results.keys():
        return None
    for node in optimised.node:  # a folded constant has a control dependency on its argument, which is always there
        controls = [i for i in node.input if i.startswith("^") and i.removeprefix("^") in inputs]
        for name in controls:
            node.input.remove(name)
    return canonical_graph(optimised, arguments, [(sources[r], dtype) for r, dtype in results.items()], [], seed)


@contextlib.contextmanager
def without_function_optimisation(*, fuses: bool = False) -> Iterator[None]:
    """Inside, functions that are traced call other functions with Grappler limited to pruning and control dependencies.

    The functions are built of optimised graphs. Constant folding would also move loop-invariant constants back into
    the loop's body. Without pruning, a recurrent layer's loops would run twice as many operations.

    Args:
        fuses: Grappler also fuses operations, such as a convolution, its bias and its activation.
    """
    config = config_pb2.ConfigProto.FromString(private_api.call_config())
    config.graph_options.rewrite_options.optimizers[:] = ["pruning", "dependency", *(["remap"] if fuses else [])]
    with private_api.call_config_set_to(config):
        yield


def _config(*, arithmetic: bool, folding: bool) -> config_pb2.ConfigProto:
    """Settings of Grappler; `arithmetic` and `folding` switch its arithmetic optimiser and its constant folding."""
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.meta_optimizer_iterations = 2
    rewrites.min_graph_nodes = -1  # small graphs too
    rewrites.remapping = rewrites.OFF  # a device's fused kernels round differently
    rewrites.layout_optimizer = rewrites.OFF
    if not arithmetic:
        rewrites.arithmetic_optimization = rewrites.OFF
    if not folding:  # it would run operations whose operands need checks in this process
        rewrites.constant_folding = rewrites.OFF
    return config

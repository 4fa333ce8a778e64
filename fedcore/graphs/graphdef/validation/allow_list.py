"""Allow-list for untrusted graphs: mathematics, arrays, control flow, own variables, seeded random numbers."""

import re
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.analysis.op_classes import why_refused
from fedcore.graphs.graphdef.analysis.side_effects import side_effects_of
from fedcore.graphs.graphdef.form.canonical_form import ANONYMOUS
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.graphs.graphdef.validation.attribute_ranges import wrong_attributes
from fedcore.graphs.graphdef.validation.graph_validation import parse_graph
from fedcore.graphs.graphdef.validation.variable_dtypes import wrong_handles
from fedcore.ir.module import Module

_SHOWN = 20  # lines of an error message
_NAMELESS = (b"", ANONYMOUS)  # for these, `with_content_names` makes the variable a new one in every call
_MOST_BUFFERED = 1 << 20  # elements of a batch
_BUFFERED = ("BatchDatasetV2", "PaddedBatchDatasetV2")  # TensorFlow reserves memory of the size that they name
_LOCAL_DEVICE = re.compile(r"(/device:)?(CPU|GPU):[0-9]+|", re.IGNORECASE)


def check_graphs(module: Module, *, trusted: bool, advice: str = "load it with trusted=True") -> None:
    """Checks the graphs of a module from an untrusted file, their library functions included.

    Args:
        trusted: any operation is allowed; the graphs are only validated.
        advice: for the error: how to load the file as trusted.
    Raises:
        FedcoreError: a graph is malformed, or holds operations that are not allowed; the message lists them.
    """
    for graph in module.graphs:
        data = module.blob(graph.digest)
        graph_def = parse_graph(graph, data)
        effects = side_effects_of(graph_def)
        undeclared = [effect for effect in effects if not graph.attributes.get(effect)]
        if undeclared:
            raise FedcoreError(f"graph @{graph.name} is {' and '.join(undeclared)}, but the file does not say so")
        refused = [] if trusted else list(_refusals(graph_def))
        if not trusted and not refused and "stateful" in effects:
            refused = list(dict.fromkeys(wrong_handles(captured_graph(graph, data))))
        if refused:
            listing = "\n".join(f"  {line}" for line in refused[:_SHOWN])
            more = f"\n  and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
            raise FedcoreError(
                f"graph @{graph.name} holds operations that a file from elsewhere may not:\n{listing}{more}\n"
                f"  if you trust whoever wrote the file, {advice}"
            )


def _refusals(graph_def: graph_pb2.GraphDef) -> Iterator[str]:
    """Yields a message for each node of a validated graph that an untrusted file may not hold."""
    functions = {f.signature.name for f in graph_def.library.function}
    bodies = [(f"the function {f.signature.name}", f.node_def) for f in graph_def.library.function]
    for where, nodes in [("the graph", graph_def.node), *bodies]:
        constants = {node.name: node for node in nodes if node.op == "Const"}
        for node in nodes:
            yield from _node_refusals(where, node, functions)
            if node.op in _BUFFERED and not _is_small(constants.get(node.input[1].removesuffix(":output:0"))):
                yield f"{node.op} at {node.name!r} in {where}: its size is no constant of at most {_MOST_BUFFERED}"
            for problem in wrong_attributes(node, constants):
                yield f"{node.op} at {node.name!r} in {where}: {problem}"


def _node_refusals(where: str, node: node_def_pb2.NodeDef, functions: set[str]) -> Iterator[str]:
    """Yields the messages for a node's operation, device and name of a variable.

    Args:
        where: the body of the node, for messages.
        functions: names of the library's functions, which nodes may have as operations.
    """
    why = None if node.op in functions else why_refused(node.op)
    if why is not None:
        yield f"{node.op} at {node.name!r} in {where}: it {why}"
    if not _LOCAL_DEVICE.fullmatch(node.device):
        yield f"{node.op} at {node.name!r} in {where}: it asks for the device {node.device!r}"
    if node.op == "VarHandleOp":
        named = node.attr["shared_name"].s not in _NAMELESS or node.attr["container"].s
        if named:
            yield f"{node.op} at {node.name!r} in {where}: its variable has a name that others could share"


def _is_small(constant: node_def_pb2.NodeDef | None) -> bool:
    """Whether the size of a batch is a constant of at most `_MOST_BUFFERED`; None: it is no constant."""
    return constant is not None and tf.make_ndarray(constant.attr["value"].tensor).max(initial=0) <= _MOST_BUFFERED

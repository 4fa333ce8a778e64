"""The TensorFlow graphs of a module as one GraphDef: a .pb file for Netron, an event file for TensorBoard."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2
from tensorflow.core.util import event_pb2

from fedcore.cli.named_nodes import named_graph_def
from fedcore.errors import FedcoreError
from fedcore.ir import Module

_EVENTS_VERSION = "brain.Event:2"  # TensorBoard refuses files without it


def as_pb(modules: Sequence[Module]) -> bytes:
    """A serialized GraphDef: a scope for each graph of a module, in it the scopes of the user's code.

    Raises:
        FedcoreError: the module has no graphs.
    """
    (module,) = modules
    return _merge_graphs(module).SerializeToString(deterministic=True)


def as_events(modules: Sequence[Module]) -> bytes:
    """The GraphDef of `as_pb` as an event file, for TensorBoard's tab Graphs.

    Raises:
        FedcoreError: the module has no graphs.
    """
    (module,) = modules
    graph = _merge_graphs(module).SerializeToString(deterministic=True)
    events = (event_pb2.Event(file_version=_EVENTS_VERSION), event_pb2.Event(graph_def=graph))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "events"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for event in events:
                writer.write(event.SerializeToString(deterministic=True))
        return path.read_bytes()


def _merge_graphs(module: Module) -> graph_pb2.GraphDef:
    """One GraphDef with the nodes of each graph of a module in a scope of the graph's name, and all their functions."""
    if not module.graphs:
        raise FedcoreError(f"the {module.stage} module of @{module.main.name} calls no TensorFlow graph")
    merged = graph_pb2.GraphDef()
    functions: dict[str, function_pb2.FunctionDef] = {}  # by name; a name is made from the content
    for graph in module.graphs:
        graph_def, _ = named_graph_def(graph, module.blob(graph.digest))
        merged.versions.CopyFrom(graph_def.versions)
        functions |= {f.signature.name: f for f in graph_def.library.function}
        for node in graph_def.node:
            copy = merged.node.add()
            copy.CopyFrom(node)
            copy.name = f"{graph.name}/{node.name}"
            copy.input[:] = [_in_scope(graph.name, tensor) for tensor in node.input]
    merged.library.function.extend(functions.values())
    return merged


def _in_scope(scope: str, tensor: str) -> str:
    """The name of an input of a node, such as `^node` or `node:1`, whose node is in a scope."""
    return f"^{scope}/{tensor[1:]}" if tensor.startswith("^") else f"{scope}/{tensor}"

"""Computations that our own decorators would not have made, as files from elsewhere may hold them."""

from collections.abc import Callable

import attrs
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fedcore as fc
from fedcore.computation.tracing import graph_module
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.graphdef.analysis.side_effects import side_effects_of
from fedcore.graphs.graphdef.form.canonical_form import canonical_graph
from fedcore.ir import Module
from fedcore.ir.module import digest_of


def module_of(fn, dtype="int32") -> Module:
    """The graph of `fn`, from a scalar to one of the same dtype, as it is."""
    graph = tf.function(fn).get_concrete_function(tf.TensorSpec([], dtype)).graph
    results = [(t.name, t.dtype.as_datatype_enum) for t in graph.outputs]
    effects = [op.name for op in graph.control_outputs]
    data = canonical_graph(graph.as_graph_def(), [graph.inputs[0].op.name], results, effects)
    traits = side_effects_of(graph_pb2.GraphDef.FromString(data))
    traced = TracedGraph(fc.FunctionType(dtype, dtype), data, traits)
    return graph_module(traced, fn.__name__, ["x"], [fc.to_type(dtype)], None)


def with_graph(module: Module, change: Callable[[graph_pb2.GraphDef], None], name: str | None = None) -> Module:
    """The module after a change of the graph of that name, or of its only one."""
    (graph,) = [g for g in module.graphs if name in (None, g.name)]
    graph_def = graph_pb2.GraphDef.FromString(module.blob(graph.digest))
    change(graph_def)
    data = graph_def.SerializeToString()
    changed = attrs.evolve(graph, digest=digest_of(data))
    graphs = tuple(changed if g is graph else g for g in module.graphs)
    return attrs.evolve(module, graphs=graphs, blobs={**module.blobs, changed.digest: data})

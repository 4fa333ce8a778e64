"""Computations that our own decorators would not have made, as files from elsewhere may hold them."""

import tensorflow as tf

import fedcore as fc
from fedcore.computation.tracing import graph_module
from fedcore.graphs.canonical import canonical_graph
from fedcore.graphs.trace import TracedGraph
from fedcore.ir import Module


def module_of(fn, dtype="int32") -> Module:
    """The graph of `fn`, from a scalar to one of the same dtype, as it is."""
    graph = tf.function(fn).get_concrete_function(tf.TensorSpec([], dtype)).graph
    results = [(t.name, t.dtype.as_datatype_enum) for t in graph.outputs]
    effects = [op.name for op in graph.control_outputs]
    data = canonical_graph(graph.as_graph_def(), [graph.inputs[0].op.name], results, effects)
    return graph_module(TracedGraph(fc.FunctionType(dtype, dtype), data), fn.__name__, ["x"], [fc.to_type(dtype)], None)

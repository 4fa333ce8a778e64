"""The operations that graphs name.

They are read from nodes: in the serialized bytes, a string constant could hold the name of an operation.
"""

from tensorflow.core.framework import graph_pb2

from fedcore.graphs.graphdef.form.function_calls import LOOPS, operations_in
from fedcore.ir.module import Module
from fedcore.lru_cache import LruCache

_operations: LruCache[str, frozenset[str]] = LruCache(4096)


def operations_of(digest: str, data: bytes) -> frozenset[str]:
    """The operations of a graph's nodes, library functions included; cached by the graph's digest."""
    return _operations.get(digest, lambda: operations_in(graph_pb2.GraphDef.FromString(data)))


def operations_of_graphs(module: Module) -> frozenset[str]:
    """The operations of all graphs of a module."""
    return module.fact("operations of graphs", _operations_of_graphs)


def _operations_of_graphs(module: Module) -> frozenset[str]:
    return frozenset(op for g in module.graphs for op in operations_of(g.digest, module.blob(g.digest)))


def has_loops(module: Module) -> bool:
    """Whether a graph has a loop of its own, such as that of a recurrent layer over time steps."""
    return not operations_of_graphs(module).isdisjoint(LOOPS)

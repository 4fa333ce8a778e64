"""The operations that graphs name.

Decision 0106.
"""

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fedcore.graphs.graphdef.form.function_calls import operations_in
from fedcore.ir.module import Module
from fedcore.lru_cache import LruCache

_operations: LruCache[str, frozenset[str]] = LruCache(4096)
_types_of_products: LruCache[str, frozenset[tf.DType]] = LruCache(4096)

_PRODUCTS = ("MatMul", "Einsum", "Conv")
"""Parts of the names of products and convolutions."""


def operations_of(digest: str, data: bytes) -> frozenset[str]:
    """The operations of a graph's nodes, library functions included; cached by the graph's digest."""
    return _operations.get(digest, lambda: operations_in(graph_pb2.GraphDef.FromString(data)))


def types_of_products(digest: str, data: bytes) -> frozenset[tf.DType]:
    """The types of the operands of a graph's products and convolutions; cached by the graph's digest."""
    return _types_of_products.get(digest, lambda: _types_of_products_in(graph_pb2.GraphDef.FromString(data)))


def _types_of_products_in(graph_def: graph_pb2.GraphDef) -> frozenset[tf.DType]:
    bodies = (graph_def.node, *(f.node_def for f in graph_def.library.function))
    products = (n for nodes in bodies for n in nodes if any(kind in n.op for kind in _PRODUCTS))
    dtypes = {n.attr["T"].type for n in products if "T" in n.attr}
    return frozenset(map(tf.as_dtype, dtypes))


def operations_of_graphs(module: Module) -> frozenset[str]:
    """The operations of all graphs of a module."""
    return module.fact("operations of graphs", _operations_of_graphs)


def _operations_of_graphs(module: Module) -> frozenset[str]:
    return frozenset(op for g in module.graphs for op in operations_of(g.digest, module.blob(g.digest)))


def has_loops(module: Module) -> bool:
    """Whether a graph has a loop of its own, such as that of a recurrent layer over time steps."""
    return not operations_of_graphs(module).isdisjoint(("While", "StatelessWhile"))

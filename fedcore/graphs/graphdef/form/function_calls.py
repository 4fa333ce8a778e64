"""Which operations and functions the nodes of a GraphDef name."""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
LOOPS = frozenset({"While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf"})
"""Operations that run functions: a call, a condition and a body, two branches."""


def with_callers(bodies: Mapping[str, Iterable], roots: Iterable[str]) -> set[str]:
    """The root functions, and all functions that call a root function directly or indirectly. Linear in the calls.

    Args:
        bodies: function -> its nodes.
    """
    callers: dict[str, list[str]] = collections.defaultdict(list)
    for name, nodes in bodies.items():
        for callee in {c for node in nodes for c in callees(node)}:
            callers[callee].append(name)
    functions = set(roots)
    stack = list(functions)
    while stack:
        more = [caller for caller in callers.get(stack.pop(), ()) if caller not in functions]
        functions.update(more)
        stack += more
    return functions


def functions_with(
    functions: Iterable[function_pb2.FunctionDef], holds: Callable[[node_def_pb2.NodeDef], bool]
) -> set[str]:
    """The names of the functions that have a node for which a predicate holds, or call such a function."""
    bodies = {f.signature.name: f.node_def for f in functions}
    return with_callers(bodies, [name for name, nodes in bodies.items() if any(map(holds, nodes))])


def callees(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """The node's operation and the functions in its attributes."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (f.name for f in value.list.func)


def operations_in(graph_def: graph_pb2.GraphDef) -> frozenset[str]:
    """The operations of the nodes, library functions included."""
    bodies = (graph_def.node, *(f.node_def for f in graph_def.library.function))
    return frozenset(node.op for nodes in bodies for node in nodes)

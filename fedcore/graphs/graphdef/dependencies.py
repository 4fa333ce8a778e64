"""Which of its arguments each result of a graph is made of."""

from collections.abc import Iterable, Mapping, Sequence

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from fedcore.graphs.graphdef.canonical_form import inputs_first

Reads = frozenset[int]
"""Positions of arguments."""

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NOTHING: Reads = frozenset()


def dependencies_of(data: bytes) -> list[Reads]:
    """For each tensor that a canonical graph returns, the positions of the argument tensors that it is made of.

    Calls are followed into what they call; of a loop or a branch each result is taken to need every operand.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    functions = {f.signature.name: f for f in graph_def.library.function}
    walk = _Walk(functions)
    ports = walk.ports(graph_def.node, {n.name: _argument(n.name) for n in graph_def.node if n.name.startswith("arg")})
    results = sorted((n.name for n in graph_def.node if n.name.startswith("ret")), key=lambda name: int(name[3:]))
    return [_of(ports, name) for name in results]


def _argument(name: str) -> Reads:
    return frozenset([int(name.removeprefix("arg"))])


class _Walk:
    """Follows the data flow from arguments to results."""

    def __init__(self, functions: Mapping[str, function_pb2.FunctionDef]):
        self.functions = functions
        self._known: dict[str, list[Reads]] = {}

    def ports(self, nodes: Iterable[node_def_pb2.NodeDef], given: dict[str, Reads]) -> dict[str, Reads | list[Reads]]:
        """What each node is made of: of a call a list by result, of any other node one set for all its results."""
        found: dict[str, Reads | list[Reads]] = dict(given)
        by_name = {n.name: n for n in nodes}
        for name in inputs_first(by_name, list(by_name), set(found)):
            node = by_name[name]
            operands = [_of(found, i) for i in node.input if not i.startswith("^")]
            waits = _NOTHING.union(*(_of(found, i) for i in node.input if i.startswith("^")))
            called = node.attr["f"].func.name if node.op in _CALLS else node.op
            if called not in self.functions:
                found[name] = waits.union(*operands)
                continue
            found[name] = [waits.union(*(operands[i] for i in reads)) for reads in self._function(called)]
        return found

    def _function(self, name: str) -> Sequence[Reads]:
        if name not in self._known:
            function = self.functions[name]
            given = {arg.name: frozenset([i]) for i, arg in enumerate(function.signature.input_arg)}
            ports = self.ports(function.node_def, dict(given))
            waits = _NOTHING.union(*(_of(ports, node) for node in function.control_ret.values()))
            self._known[name] = [
                waits | _of(ports, function.ret[result.name]) for result in function.signature.output_arg
            ]
        return self._known[name]


def _of(ports: Mapping[str, Reads | list[Reads]], tensor: str) -> Reads:
    """What a tensor (`node`, `node:1`, or in a function `node:output:1`) is made of."""
    node, _, port = tensor.removeprefix("^").partition(":")
    found = ports[node]
    if not isinstance(found, list):
        return found
    *output, index = port.split(":")
    if tensor.startswith("^") or (output and output[0] != "output"):
        return _NOTHING.union(*found)
    return found[int(index or 0)]

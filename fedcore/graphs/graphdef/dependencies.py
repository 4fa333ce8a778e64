"""Which of its arguments each result of a graph is made of."""

from collections.abc import Iterable, Mapping

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from fedcore.graphs.graphdef.canonical_form import inputs_first

Reads = frozenset[int]
"""Positions of arguments."""

Ports = Reads | list[Reads]
"""What a node is made of: a list by result, or one set for all its results."""

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NOTHING: Reads = frozenset()


def dependencies_of(data: bytes) -> list[Reads]:
    """For each tensor that a canonical graph returns, the positions of the argument tensors that it is made of.

    Calls are followed into what they call; of a loop or a branch each result is taken to need every operand.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    functions = {f.signature.name: f for f in graph_def.library.function}
    walk = _Walk(functions)
    walk.follow(graph_def.node)
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

    def ports(
        self, nodes: Iterable[node_def_pb2.NodeDef], given: Mapping[str, Ports]
    ) -> dict[str, Reads | list[Reads]]:
        """What each node is made of: of a call a list by result, of any other node one set for all its results."""
        found = dict(given)
        by_name = {n.name: n for n in nodes}
        for name in inputs_first(by_name, list(by_name), set(found)):
            node = by_name[name]
            operands = [_of(found, i) for i in node.input if not i.startswith("^")]
            waits = _NOTHING.union(*(_of(found, i) for i in node.input if i.startswith("^")))
            called = _callee(node)
            if called not in self._known:  # no function, or one that calls itself
                found[name] = waits.union(*operands)
                continue
            found[name] = [waits.union(*(operands[i] for i in reads)) for reads in self._known[called]]
        return found

    def follow(self, nodes: Iterable[node_def_pb2.NodeDef]) -> None:
        """Looks at the functions that the nodes call, each after the functions that it calls itself."""
        stack = [(name, False) for name in self._called(nodes)]
        seen: set[str] = set()
        while stack:
            name, ready = stack.pop()
            if ready:
                self._known[name] = self._of_function(self.functions[name])
                continue
            if name in seen:
                continue
            seen.add(name)
            stack.append((name, True))
            stack.extend((callee, False) for callee in self._called(self.functions[name].node_def))

    def _called(self, nodes: Iterable[node_def_pb2.NodeDef]) -> set[str]:
        names = {_callee(node) for node in nodes}
        return {name for name in names if name in self.functions and name not in self._known}

    def _of_function(self, function: function_pb2.FunctionDef) -> list[Reads]:
        given = {arg.name: frozenset([i]) for i, arg in enumerate(function.signature.input_arg)}
        ports = self.ports(function.node_def, given)
        waits = _NOTHING.union(*(_of(ports, node) for node in function.control_ret.values()))
        return [waits | _of(ports, function.ret[result.name]) for result in function.signature.output_arg]


def _callee(node: node_def_pb2.NodeDef) -> str:
    return node.attr["f"].func.name if node.op in _CALLS else node.op


def _of(ports: Mapping[str, Ports], tensor: str) -> Reads:
    """What a tensor (`node`, `node:1`, or in a function `node:output:1`) is made of."""
    node, _, port = tensor.removeprefix("^").partition(":")
    found = ports[node]
    if not isinstance(found, list):
        return found
    *output, index = port.split(":")
    if tensor.startswith("^") or (output and output[0] != "output"):
        return _NOTHING.union(*found)
    return found[int(index or 0)]

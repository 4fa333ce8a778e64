"""Data dependencies of a graph: for each result, the arguments that it depends on."""

from collections.abc import Iterable, Mapping, Sequence

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from fedcore.graphs.graphdef.canonical_form import inputs_first

Dependencies = frozenset[int]
"""Positions of the arguments that a tensor depends on."""

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NONE: Dependencies = frozenset()


def dependencies_of(data: bytes) -> list[Dependencies]:
    """For each result of a canonical graph, the positions of the arguments that it depends on.

    Called functions are analysed too. Each result of a loop or a branch is taken to depend on every operand.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    functions = {f.signature.name: f for f in graph_def.library.function}
    walk = _Walk(functions)
    ports = walk.ports(graph_def.node, {n.name: _argument(n.name) for n in graph_def.node if n.name.startswith("arg")})
    results = sorted((n.name for n in graph_def.node if n.name.startswith("ret")), key=lambda name: int(name[3:]))
    return [_of(ports, name) for name in results]


def _argument(name: str) -> Dependencies:
    return frozenset([int(name.removeprefix("arg"))])


class _Walk:
    """Data-flow analysis of the graph and its functions, from arguments to results."""

    def __init__(self, functions: Mapping[str, function_pb2.FunctionDef]):
        self.functions = functions
        self._of_functions: dict[str, list[Dependencies]] = {}

    def ports(
        self, nodes: Iterable[node_def_pb2.NodeDef], arguments: dict[str, Dependencies]
    ) -> dict[str, Dependencies | list[Dependencies]]:
        """The dependencies of each node: of a call one set for each result, of another node one set for all results."""
        found: dict[str, Dependencies | list[Dependencies]] = dict(arguments)
        by_name = {n.name: n for n in nodes}
        for name in inputs_first(by_name, list(by_name), set(found)):
            node = by_name[name]
            operands = [_of(found, i) for i in node.input if not i.startswith("^")]
            controls = _NONE.union(*(_of(found, i) for i in node.input if i.startswith("^")))
            called = node.attr["f"].func.name if node.op in _CALLS else node.op
            if called not in self.functions:
                found[name] = controls.union(*operands)
                continue
            found[name] = [
                controls.union(*(operands[i] for i in dependencies)) for dependencies in self._function(called)
            ]
        return found

    def _function(self, name: str) -> Sequence[Dependencies]:
        if name not in self._of_functions:
            function = self.functions[name]
            arguments = {arg.name: frozenset([i]) for i, arg in enumerate(function.signature.input_arg)}
            ports = self.ports(function.node_def, dict(arguments))
            controls = _NONE.union(*(_of(ports, node) for node in function.control_ret.values()))
            self._of_functions[name] = [
                controls | _of(ports, function.ret[result.name]) for result in function.signature.output_arg
            ]
        return self._of_functions[name]


def _of(ports: Mapping[str, Dependencies | list[Dependencies]], tensor: str) -> Dependencies:
    """The dependencies of a tensor: `node`, `node:1`, or in a function `node:output:1`."""
    node, _, port = tensor.removeprefix("^").partition(":")
    found = ports[node]
    if not isinstance(found, list):
        return found
    *output, index = port.split(":")
    if tensor.startswith("^") or (output and output[0] != "output"):
        return _NONE.union(*found)
    return found[int(index or 0)]

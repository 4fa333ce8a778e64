"""Data dependencies of a graph: for each result, the arguments that it depends on.

Sets of arguments are bit masks, bit i for argument i: the sum of n arguments, added one by one, has n sets of up to n
arguments, which would take gigabytes as sets of numbers.
"""

import functools
import operator
from collections.abc import Iterable, Mapping

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from fedcore.graphs.graphdef.form.canonical_form import inputs_first

Dependencies = int
"""Bit mask of the arguments that a tensor depends on."""

Ports = Dependencies | dict[str, Dependencies]
"""Dependencies of a node: by what follows its name in the names of its results, or one set for all its results."""

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def positions(mask: Dependencies) -> list[int]:
    """The positions of the arguments in a bit mask."""
    return [i for i, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]


def dependencies_of(data: bytes) -> list[Dependencies]:
    """For each result of a canonical graph the arguments that it depends on.

    Called functions are analysed too. Each result of a loop or a branch is taken to depend on every operand.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    return _result_dependencies(
        graph_def, {n.name: _argument(n.name) for n in graph_def.node if n.name.startswith("arg")}
    )


def seeded_results(data: bytes) -> list[bool]:
    """For each result of a canonical graph whether it depends on the implicit seed."""
    graph_def = graph_pb2.GraphDef.FromString(data)
    names = [n.name for n in graph_def.node if n.name == "seed" or n.name.startswith("arg")]
    return [bool(mask) for mask in _result_dependencies(graph_def, {name: int(name == "seed") for name in names})]


def _result_dependencies(graph_def: graph_pb2.GraphDef, argument_ports: Mapping[str, Ports]) -> list[Dependencies]:
    functions = {f.signature.name: f for f in graph_def.library.function}
    walk = _Walk(functions)
    walk.follow(graph_def.node)
    ports = walk.ports(graph_def.node, argument_ports)
    results = sorted((n.name for n in graph_def.node if n.name.startswith("ret")), key=lambda name: int(name[3:]))
    return [_tensor_ports(ports, name) for name in results]


def _argument(name: str) -> Dependencies:
    return 1 << int(name.removeprefix("arg"))


class _Walk:
    """Data-flow analysis of the graph and its functions, from arguments to results."""

    def __init__(self, functions: Mapping[str, function_pb2.FunctionDef]) -> None:
        self.functions = functions
        self._of_functions: dict[str, list[Dependencies]] = {}

    def ports(self, nodes: Iterable[node_def_pb2.NodeDef], argument_ports: Mapping[str, Ports]) -> dict[str, Ports]:
        """The dependencies of each node: of a call one set for each result, of another node one set for all results."""
        dependencies: dict[str, Ports] = dict(argument_ports)
        by_name = {n.name: n for n in nodes}
        for name in inputs_first(by_name, list(by_name), set(dependencies)):
            node = by_name[name]
            operands = [_tensor_ports(dependencies, i) for i in node.input if not i.startswith("^")]
            controls = _union(_tensor_ports(dependencies, i) for i in node.input if i.startswith("^"))
            called = _callee(node)
            if called not in self._of_functions:  # no call, or a recursive call
                dependencies[name] = controls | _union(operands)
                continue
            results = [p.name for p in self.functions[called].signature.output_arg]
            ports: dict[str, Dependencies] = {}
            for number, (result, mask) in enumerate(zip(results, self._of_functions[called], strict=True)):
                reads = controls | _union(operands[i] for i in positions(mask))
                suffix = f"output:{number}" if node.op in _CALLS else f"{result}:0"  # in a function
                ports |= {suffix: reads, str(number): reads} | ({"": reads} if number == 0 else {})
            dependencies[name] = ports
        return dependencies

    def follow(self, nodes: Iterable[node_def_pb2.NodeDef]) -> None:
        """Analyses the functions that the nodes call, each after the functions that it calls itself."""
        stack = [(name, False) for name in self._pending_callees(nodes)]
        visited: set[str] = set()
        while stack:
            name, ready = stack.pop()
            if ready:
                self._of_functions[name] = self._function_dependencies(self.functions[name])
                continue
            if name in visited:
                continue
            visited.add(name)
            stack.append((name, True))
            stack.extend((callee, False) for callee in self._pending_callees(self.functions[name].node_def))

    def _pending_callees(self, nodes: Iterable[node_def_pb2.NodeDef]) -> set[str]:
        names = {_callee(node) for node in nodes}
        return {name for name in names if name in self.functions and name not in self._of_functions}

    def _function_dependencies(self, function: function_pb2.FunctionDef) -> list[Dependencies]:
        argument_ports = {arg.name: 1 << i for i, arg in enumerate(function.signature.input_arg)}
        ports = self.ports(function.node_def, argument_ports)
        controls = _union(_tensor_ports(ports, f"^{node}") for node in function.control_ret.values())
        return [controls | _tensor_ports(ports, function.ret[result.name]) for result in function.signature.output_arg]


def _callee(node: node_def_pb2.NodeDef) -> str:
    return node.attr["f"].func.name if node.op in _CALLS else node.op


def _union(masks: Iterable[Dependencies]) -> Dependencies:
    return functools.reduce(operator.or_, masks, 0)


def _tensor_ports(ports: Mapping[str, Ports], tensor: str) -> Dependencies:
    """The dependencies of a tensor: `node`, `node:1`, or in a function `node:output:1`."""
    node, _, port = tensor.removeprefix("^").partition(":")
    node_ports = ports[node]
    if not isinstance(node_ports, dict):
        return node_ports
    return _union(node_ports.values()) if tensor.startswith("^") else node_ports[port]

"""Detects sums that grow exponentially in TensorFlow's arithmetic optimiser.

The optimiser collects a tree of additions into one AddN. Where both operands of an addition are the same tensor, as in
`y = y + y`, the AddN lists that tensor twice, so each step of a chain doubles the AddN.
"""

from collections.abc import Collection, Mapping

from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.graphs.graphdef.form.canonical_form import inputs_first, node_of

_ADDITIONS = ("Add", "AddV2", "AddN")
_TRANSPARENT = ("Identity",)
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_FEWEST = 1000


def sums_explode(graph_def: graph_pb2.GraphDef) -> bool:
    """Whether a collected sum has more terms than a linear function of the number of nodes allows."""
    terms = _Terms({f.signature.name: f.node_def for f in graph_def.library.function})
    return any(map(terms.explode, (graph_def.node, *terms.functions.values())))


class _Terms:
    """The number of terms in the collected sum of each node; called functions count as if inlined."""

    def __init__(self, functions: Mapping[str, Collection[node_def_pb2.NodeDef]]) -> None:
        self.functions = functions
        self._of_functions: dict[str, int] = {}

    def explode(self, nodes: Collection[node_def_pb2.NodeDef]) -> bool:
        return self._most(nodes) > 4 * len(nodes) + _FEWEST

    def _most(self, nodes: Collection[node_def_pb2.NodeDef]) -> int:
        by_name = {n.name: n for n in nodes}
        inputs = {n.name: [i for i in map(node_of, _data(n)) if i in by_name] for n in nodes}
        users: dict[str, set[str]] = {n.name: set() for n in nodes}
        for name, sources in inputs.items():
            for source in sources:
                users[source].add(name)
        if not any(n.op in _ADDITIONS or self._callee(n) for n in nodes):
            return 1
        term_counts: dict[str, int] = {}
        reached = {n: by_name[n] for n in by_name}
        outside_names = {i for n in nodes for i in map(node_of, n.input) if i not in by_name}
        for name in inputs_first(reached, list(by_name), outside_names):
            op, callee = by_name[name].op, self._callee(by_name[name])
            terms = [term_counts[s] if len(users[s]) == 1 else 1 for s in inputs[name]]
            if op in _ADDITIONS:
                term_counts[name] = sum(terms)
            elif callee:
                term_counts[name] = max(terms, default=1) * self._function_terms(callee)
            else:
                term_counts[name] = max(terms, default=1) if op in _TRANSPARENT else 1
        return max(term_counts.values(), default=1)

    def _callee(self, node: node_def_pb2.NodeDef) -> str | None:
        name = node.attr["f"].func.name if node.op in _CALLS else node.op
        return name if name in self.functions else None

    def _function_terms(self, name: str) -> int:
        if name not in self._of_functions:
            self._of_functions[name] = 1  # the value for a function that calls itself
            self._of_functions[name] = self._most(self.functions[name])
        return self._of_functions[name]


def _data(node: node_def_pb2.NodeDef) -> list[str]:
    return [i for i in node.input if not i.startswith("^")]

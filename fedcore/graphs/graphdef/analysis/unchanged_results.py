"""Results of a graph that are arguments returned unchanged.

In: a graph as TensorFlow traced it, such as that of `lambda x, y: (tf.cond(y > 0, lambda: x, lambda: x), x + y)`.
Out: for each result the position of the argument that it is, or None. For the example: `[0, None]`.

Identities, branches, loops and variables of the graph are followed. None does not promise that a result differs from
every argument.
"""

import functools
from collections.abc import Iterable, Iterator

from fedcore.graphs.dataflow.graph import PASS_THROUGH, Node, Region, Value, origin
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph

_IDENTITIES = frozenset({*PASS_THROUGH, "IdentityN", "EnsureShape", "CheckNumerics"})
_CASES = frozenset({"Case", "StatelessCase"})
_READS = frozenset({"ReadVariableOp", "VariableShape", "VarIsInitializedOp", "ResourceGather", "ResourceGatherNd"})


def unchanged_results(captured: CapturedGraph) -> list[int | None]:
    """For each result of a graph the position of the argument that it is, or None."""
    walk = _Walk(captured)
    positions = {argument: i for i, argument in enumerate(captured.main.arguments)}
    return [positions.get(walk.source(result)) for result in captured.main.results]


class _Walk:
    """Follows values of a graph to the first value that they are equal to; `source` caches this."""

    def __init__(self, captured: CapturedGraph) -> None:
        self._captured = captured
        self._assigned = _assigned_values(captured.main.nodes)
        self.source = functools.cache(self._source)

    def _source(self, value: Value) -> Value:
        """The first value that a value is equal to, as far as it is known."""
        while (operand := self._equal_operand(value)) is not None:
            value = operand
        return value

    def _equal_operand(self, value: Value) -> Value | None:
        """The operand of a value's node, or the value assigned to its variable, that the value is equal to.

        None if there is none, or if that is not known.
        """
        node = value.node
        if node is None:
            return None
        output = node.outputs.index(value)
        if node.op in _IDENTITIES:
            return node.inputs[output]
        if node.op == "ReadVariableOp":
            return self._assigned.get(node)  # of a node in a region, none is known
        if node.op == "while":
            body = node.regions[1]
            return node.inputs[output] if self.source(body.results[output]) is body.arguments[output] else None
        if node.op == "if":
            returned = {self.source(branch.results[output]) for branch in node.regions}
            return returned.pop() if len(returned) == 1 else None
        if node.op in _CASES:
            branches = [self._captured.named[symbol] for symbol in node["branches"]]
            positions = {self._position(branch, output) for branch in branches}
            position = positions.pop() if len(positions) == 1 else None
            return None if position is None else node.inputs[1 + position]
        return None

    def _position(self, branch: Region, output: int) -> int | None:
        """The position of the argument that a function returns as result `output`; None if it returns none there."""
        source = self.source(branch.results[output])
        return branch.arguments.index(source) if source in branch.arguments else None


def _assigned_values(nodes: Iterable[Node]) -> dict[Node, Value | None]:
    """For each node that reads a variable the value that was assigned last to the variable.

    None if no AssignVariableOp has assigned it, or if another operation may have done so after that. TensorFlow lets
    each use of a variable wait for the last one before it that may assign the variable, so the order of the nodes is
    that of the uses.
    """
    values: dict[Node, Value | None] = {}
    assigned: dict[Value, Value] = {}  # handle -> value
    for node in nodes:
        if node.op == "ReadVariableOp":
            values[node] = assigned.get(origin(node.inputs[0]))
        elif node.op == "AssignVariableOp":
            assigned[origin(node.inputs[0])] = node.inputs[1]
        else:
            for value in _possibly_assigned(node):
                assigned.pop(value, None)
    return values


def _possibly_assigned(node: Node) -> Iterator[Value]:
    """The handles, among other values, that a node, or a node in its regions, takes and does more with than read."""
    if node.op in _READS or node.op == "Identity":
        return
    yield from map(origin, node.inputs)
    for region in node.regions:
        for inner in region.nodes:
            yield from _possibly_assigned(inner)

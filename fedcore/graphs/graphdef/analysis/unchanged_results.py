"""Results of a graph that are arguments returned unchanged.

In: a graph as TensorFlow traced it, such as that of `lambda x, y: (tf.cond(y > 0, lambda: x, lambda: x), x + y)`.
Out: for each result the position of the argument that it is, or None. For the example: `[0, None]`.

Identities, branches, loops and variables of the graph are followed. None does not promise that a result differs from
every argument.
"""

import functools

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
        self._positions = {node: i for i, node in enumerate(captured.main.nodes)}
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
            return self._assigned(node)
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

    def _assigned(self, read: Node) -> Value | None:
        """The value that was assigned last to the variable that a node of the graph reads.

        None if no AssignVariableOp has, or if another operation may have done so after it. Of a node in a region, None.
        TensorFlow lets each use of a variable wait for the last one before it that may assign the variable, so the
        order of the nodes is that of the uses.
        """
        handle = origin(read.inputs[0])
        for node in reversed(self._captured.main.nodes[: self._positions.get(read, 0)]):
            if node.op == "AssignVariableOp" and origin(node.inputs[0]) is handle:
                return node.inputs[1]
            if self._may_assign(node, handle):
                return None
        return None

    def _may_assign(self, node: Node, handle: Value) -> bool:
        """Whether a node, or a node in its regions, takes the handle of a variable and does more than read it."""
        if node.op in _READS or node.op == "Identity":
            return False
        if any(self._may_assign(n, handle) for region in node.regions for n in region.nodes):
            return True
        return any(origin(operand) is handle for operand in node.inputs)

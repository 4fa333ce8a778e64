"""Results of a graph that are arguments returned unchanged.

In: a canonical graph, such as that of `lambda x, y: (tf.cond(y > 0, lambda: x, lambda: x), x + y)`.
Out: for each result the position of the argument that it is, or None. For the example: `[0, None]`.

Identities, called functions, branches, loops and variables of the graph are followed. None does not promise that a
result differs from every argument.
"""

from collections.abc import Sequence

from tensorflow.core.framework import graph_pb2

from fedcore.graphs.graphdef.form.canonical_form import node_of
from fedcore.graphs.graphdef.form.parsed_graph import Body, Node, Ref, body_of

_IDENTITIES = frozenset({"Identity", "IdentityN", "StopGradient", "PreventGradient", "EnsureShape", "CheckNumerics"})
_CALLS = {"PartitionedCall": ("f",), "StatefulPartitionedCall": ("f",)}
_LOOPS = {"While": ("body", "cond"), "StatelessWhile": ("body", "cond")}
_BRANCHES = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
}
_READS = frozenset({"ReadVariableOp", "VariableShape", "VarIsInitializedOp", "ResourceGather", "ResourceGatherNd"})


def unchanged_results(digest: str, data: bytes) -> list[int | None]:
    """For each result of a canonical graph the position of the argument that it is, or None."""
    nodes = graph_pb2.GraphDef.FromString(data).node
    controls = {n.name: [node_of(i) for i in n.input if i.startswith("^")] for n in nodes}
    return _Walk(controls).results(body_of(digest, data))


class _Walk:
    """Follows results back to arguments; each function once.

    Args:
        controls: the control inputs of the nodes of the graph; those of functions are not needed.
    """

    def __init__(self, controls: dict[str, list[str]]) -> None:
        self._controls = controls
        self._functions: dict[str, list[int | None]] = {}
        self._writes: dict[tuple[str, int], bool] = {}

    def results(self, body: Body) -> list[int | None]:
        return [self._argument(body, tensor) for tensor in body.results]

    def _argument(self, body: Body, tensor: Ref | None) -> int | None:
        while tensor is not None and tensor[0] not in body.arguments:
            tensor = self._source(body, body.by_name[tensor[0]], tensor[1])
        return None if tensor is None else body.arguments.index(tensor[0])

    def _source(self, body: Body, node: Node, output: int) -> Ref | None:
        """The tensor of the body that an output of a node is equal to, if it is known."""
        if node.op in _IDENTITIES:
            return node.inputs[output]
        if node.op == "ReadVariableOp":
            return self._value(body, node)
        if node.op not in _CALLS | _LOOPS | _BRANCHES:
            return None
        names = _callees(node)
        positions = {self._results_of(body, name)[output] for name in (names[:1] if node.op in _LOOPS else names)}
        position = positions.pop() if len(positions) == 1 else None
        if position is None or (node.op in _LOOPS and position != output):
            return None
        return _operands(node)[position]

    def _results_of(self, body: Body, name: str) -> list[int | None]:
        if name not in self._functions:
            callee = body.function_body(name)
            self._functions[name] = [None] * len(callee.results)  # where the function calls itself
            self._functions[name] = self.results(callee)
        return self._functions[name]

    def _value(self, body: Body, read: Node) -> Ref | None:
        """The tensor that was assigned last to the variable that a node of the graph reads.

        TensorFlow lets each use of a variable wait for the last one before it that may assign the variable.
        """
        handle, user = read.inputs[0], read.name
        while True:
            nodes = (body.by_name[name] for name in self._controls.get(user, ()) if name in body.by_name)
            writers = [n for n in nodes if handle in n.inputs and n.op not in _READS]
            if len(writers) != 1:
                return None
            if writers[0].op == "AssignVariableOp":
                return writers[0].inputs[1]
            if self._may_assign(body, writers[0], handle):
                return None
            user = writers[0].name

    def _may_assign(self, body: Body, node: Node, handle: Ref) -> bool:
        if node.op in _READS:
            return False
        if node.op not in _CALLS | _LOOPS | _BRANCHES:
            return True
        positions = [i for i, operand in enumerate(_operands(node)) if operand == handle]
        return any(self._function_may_assign(body, name, i) for name in _callees(node) for i in positions)

    def _function_may_assign(self, body: Body, name: str, position: int) -> bool:
        key = (name, position)
        if key not in self._writes:
            self._writes[key] = True  # where the function calls itself
            callee = body.function_body(name)
            handle = (callee.arguments[position], 0)
            users = (n for n in callee.nodes if handle in n.inputs)
            self._writes[key] = any(self._may_assign(callee, n, handle) for n in users)
        return self._writes[key]


def _callees(node: Node) -> list[str]:
    """The functions that a call, loop or branch calls; of a loop its body first."""
    attributes = [node[name] for name in (_CALLS | _LOOPS | _BRANCHES)[node.op]]
    return [f.name for value in attributes for f in (value if isinstance(value, list) else [value])]


def _operands(node: Node) -> Sequence[Ref]:
    """The operands of a call, loop or branch that its functions take as arguments."""
    return node.inputs[1:] if node.op in _BRANCHES else node.inputs

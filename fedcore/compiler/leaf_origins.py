"""Value numbering of a plan's leaves: equal numbers are equal tensors.

In: a plan. Out: for each value of its main function one number for each leaf; for `run(@server, %s)`, whose stage
returns `struct(%s, call(@next, %s))`, the numbers of `%s` and of the call's result. Structs, items, broadcasts, server
stages and graphs pass numbers on; the result of any other operation has new numbers.
"""

from collections.abc import Hashable

from fedcore.compiler.leaf_sets import count, flat, holds_sequence, start_of
from fedcore.ir import Function, Graph, Module, Operation, Ref, Symbol
from fedcore.types import StructType, Type

Numbers = list[int]
"""The value number of each leaf of a value."""


class LeafOrigins:
    """Value numbers of a plan.

    Attributes:
        of: by binding of main, the numbers of its leaves.
        constants: the numbers of leaves that are constants.
    Guarantees:
      - Visits the operations of a stage once for each run of it.
    """

    def __init__(self, module: Module) -> None:
        self.constants: set[int] = set()
        self._module = module
        self._numbers: dict[Hashable, int] = {}  # by key of a leaf
        self._origins: dict[str, list | None] = {}  # by name of a graph, see `_graph_origins`
        main = module.main
        numbers = [[self._number(p.name, i) for i in range(count(p.type))] for p in main.parameters]
        self.of = self._bindings(main, numbers, "")

    def _number(self, *key: Hashable) -> int:
        """The number of the leaf that a key identifies; a new number for a new key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def _bindings(self, function: Function, arguments: list[Numbers], prefix: str) -> dict[str, Numbers]:
        """The numbers of each parameter and each operation's result in one run of a function.

        Args:
            arguments: numbers of the leaves of each argument.
            prefix: the name of the `run` around it and a dot, so that each run numbers its results anew; empty in main.
        """
        types = function.types()
        bindings = dict(zip((p.name for p in function.parameters), arguments, strict=True))
        for op in function.operations:
            operands = [o.name for o in op.operands if isinstance(o, Ref)]
            numbers = [bindings[name] for name in operands]
            bindings[op.name] = self._operation(op, numbers, [types[n] for n in operands], prefix + op.name)
        return bindings

    def _operation(self, op: Operation, operands: list[Numbers], types: list[Type], name: str) -> Numbers:
        """The numbers of the leaves of an operation's result.

        Args:
            operands, types: numbers of the leaves of each operand that is a value, and its type.
            name: the key of the result, different in each run of a stage.
        """
        if op.kind == "struct" and op.operands:
            return [n for numbers in operands for n in numbers]
        if op.kind == "item":
            start = start_of(types[0], op.attributes["index"])
            return operands[0][start : start + count(op.type)]
        if op.kind == "broadcast":
            return operands[0]
        new_numbers = [self._number(name, i) for i in range(count(op.type))]
        if op.kind in ("literal", "generic_zero"):
            self.constants.update(new_numbers)
        callee = next((self._module[o.name] for o in op.operands if isinstance(o, Symbol)), None)
        if op.kind == "run" and isinstance(callee, Function):
            return self._bindings(callee, operands, f"{name}.")[callee.result.name]
        if op.kind == "call" and isinstance(callee, Graph):
            return self._call(callee, [n for numbers in operands for n in numbers], types, new_numbers, name)
        return new_numbers

    def _call(
        self, graph: Graph, operand_numbers: Numbers, types: list[Type], new_numbers: Numbers, name: str
    ) -> Numbers:
        """The numbers of the leaves of a graph's result: an argument's number where the graph returns the argument.

        Leaves with one origin in the graph and one type have one number.

        Args:
            operand_numbers: the numbers of all leaves of the operands; `types` has the operands' types.
            new_numbers: numbers for leaves of the result without a known origin.
            name: see `_operation`.
        """
        from fedcore.graphs.graphdef.analysis.result_origins import Argument, Constant

        origins = self._graph_origins(graph)
        if origins is None:
            return new_numbers
        arguments = [  # of the graph: the number and the type of each tensor
            (n, leaf)
            for n, leaf in zip(operand_numbers, (leaf for t in types for leaf in flat(t)), strict=True)
            if _is_tensor(leaf)
        ]
        tensor_origins = iter(origins)
        results = []
        for number, leaf in zip(new_numbers, flat(graph.type.result), strict=True):
            origin = next(tensor_origins) if _is_tensor(leaf) else None
            if isinstance(origin, Argument) and arguments[origin.position][1] == leaf:
                results.append(arguments[origin.position][0])
            elif isinstance(origin, Constant):
                self.constants.add(number)
                results.append(number)
            else:
                results.append(number if origin is None else self._number(name, origin, leaf))
        return results

    def _graph_origins(self, graph: Graph) -> list | None:
        """`result_origins` of a graph, cached by its name; None if its bytes are missing or it has sequences."""
        from fedcore.graphs.graphdef.analysis.result_origins import result_origins
        from fedcore.graphs.graphdef.form.captured_graph import captured_graph

        if graph.name not in self._origins:
            data = self._module.blobs.get(graph.digest)
            origins = None
            if data is not None and not holds_sequence(graph.type):
                origins = result_origins(captured_graph(graph, data))
            self._origins[graph.name] = origins
        return self._origins[graph.name]


def _is_tensor(leaf: Type) -> bool:
    """Whether a leaf is a tensor of the graph; an empty struct counts as a leaf too, but is none."""
    return not isinstance(leaf, StructType)

"""Walks a function operation by operation. What an operation does is the caller's: numpy or TensorFlow."""

from collections.abc import Callable

from fedcore.ir.module import Function, Module, Symbol
from fedcore.ir.structural import spread
from fedcore.types import Type


class Interpreter:
    """Runs functions of a module over values of any kind.

    Args:
        evaluate: (operation, operand types, operand values) -> the result's value.
        graph: turns a graph and its bytes into a Python function over nested tuples.
    """

    def __init__(self, module: Module, evaluate: Callable, graph: Callable):
        self._symbols = module.symbols()
        self._module = module
        self.evaluate = evaluate
        self._graph = graph
        self._graphs: dict[str, Callable] = {}

    def function(self, name: str) -> Callable:
        """The symbol as a Python function; structs of its parameters may be packed in one tuple."""
        node = self._symbols[name]
        if isinstance(node, Function):
            return lambda *arguments: self.run(node, *arguments)
        if name not in self._graphs:
            self._graphs[name] = self._graph(node, self._module.blob(node.digest))
        return self._graphs[name]

    def run(self, function: Function, *arguments):
        arguments = spread(arguments, len(function.parameters)) if function.parameters else ()
        names = [p.name for p in function.parameters]
        known = dict(zip(names, arguments, strict=True))
        types: dict[str, Type] = {p.name: p.type for p in function.parameters}
        for op in function.operations:
            operand_types, values = [], []
            for operand in op.operands:
                is_symbol = isinstance(operand, Symbol)
                operand_types.append(self._symbols[operand.name].type if is_symbol else types[operand.name])
                values.append(self.function(operand.name) if is_symbol else known[operand.name])
            known[op.name] = self.evaluate(op, operand_types, values)
            types[op.name] = op.type
        result = function.result
        return self.function(result.name) if isinstance(result, Symbol) else known[result.name]

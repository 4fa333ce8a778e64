from collections.abc import Hashable

import attrs

from fedcore.compiler.pipeline import compiler_pass
from fedcore.ir import Function, Module, Operation, Ref, Symbol
from fedcore.ir.module import Operand
from fedcore.ir.operations import PLAN, lookup
from fedcore.ir.purity import pure_symbols
from fedcore.ir.reachable import reachable
from fedcore.ir.renaming import form_of, operation_form


@compiler_pass("cse")
def cse(module: Module) -> Module:
    """Common subexpression elimination: merges equal operations of a function, and equal functions and graphs.

    Calls of symbols that draw random numbers, keep state or have effects are never merged, nor are operations of plans.
    """
    merging = _Merging(module)
    functions = tuple(merging.function(f) for f in module.functions)
    return module if functions == module.functions else reachable(module, functions)


class _Merging:
    """Merges the operations of functions that are given in their order, callees first.

    Attributes:
        pure: the symbols whose equal calls give equal results.
        same: by symbol, the first symbol that is equal to it.
    """

    def __init__(self, module: Module) -> None:
        self.pure = pure_symbols(module)
        self.same: dict[str, str] = {}
        self._first: dict[Hashable, str] = {}  # by form, the first symbol that has it
        for graph in module.graphs:
            self._add_symbol(graph.name, (graph.digest, graph.type, tuple(sorted(graph.attributes.items()))))

    def _add_symbol(self, name: str, form: Hashable) -> None:
        self.same[name] = self._first.setdefault(form, name) if name in self.pure else name

    def function(self, function: Function) -> Function:
        """The function with merged operations; the same object if none is merged."""
        representatives = {p.name: p.name for p in function.parameters}  # by binding, the first that is equal to it
        first: dict[Hashable, str] = {}  # by form, the first binding that has it
        operations = []
        for op in function.operations:
            form = operation_form(op, representatives, self.same)
            representatives[op.name] = first.setdefault(form, op.name) if self._may_merge(op) else op.name
            if representatives[op.name] == op.name:
                operations.append(self._operation(op, representatives))
        merged = attrs.evolve(
            function, operations=tuple(operations), result=self._operand(function.result, representatives)
        )
        if merged == function:
            merged = function
        if function.placement is None:
            self._add_symbol(function.name, form_of(merged, self.same))
        else:
            self.same[function.name] = function.name
        return merged

    def _may_merge(self, op: Operation) -> bool:
        if lookup(op.kind).level == PLAN:
            return False
        return all(o.name in self.pure for o in op.operands if isinstance(o, Symbol))

    def _operation(self, op: Operation, representatives: dict[str, str]) -> Operation:
        operands = tuple(self._operand(o, representatives) for o in op.operands)
        return op if operands == op.operands else attrs.evolve(op, operands=operands)

    def _operand(self, operand: Operand, representatives: dict[str, str]) -> Operand:
        return Ref(representatives[operand.name]) if isinstance(operand, Ref) else Symbol(self.same[operand.name])

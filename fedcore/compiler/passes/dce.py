import attrs

from fedcore.compiler.pipeline import compiler_pass
from fedcore.ir import Function, Module, Ref, Symbol
from fedcore.ir.purity import effectful_symbols
from fedcore.ir.reachable import reachable


@compiler_pass("dce")
def dce(module: Module) -> Module:
    """Dead code elimination: drops operations with unused results, and symbols that main does not reach.

    Calls of graphs with effects (a print, an assertion) stay.
    """
    effects = effectful_symbols(module)
    return reachable(module, tuple(_without_dead_code(f, effects) for f in module.functions))


def _without_dead_code(function: Function, effects: frozenset[str]) -> Function:
    used = {function.result.name} if isinstance(function.result, Ref) else set()
    operations = []
    for op in reversed(function.operations):
        has_effect = any(isinstance(o, Symbol) and o.name in effects for o in op.operands)
        if op.name in used or has_effect:
            operations.append(op)
            used.update(o.name for o in op.operands if isinstance(o, Ref))
    if len(operations) == len(function.operations):
        return function
    return attrs.evolve(function, operations=tuple(reversed(operations)))

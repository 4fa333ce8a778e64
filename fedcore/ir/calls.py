"""Calls between functions: duplicate calls, and the size of a program after inlining.

Decision 0076.
"""

from collections import Counter
from collections.abc import Mapping

from fedcore.errors import FedcoreError
from fedcore.ir.limits import MAX_INLINED
from fedcore.ir.module import Function, Module, Operation, Symbol
from fedcore.ir.purity import pure_symbols, seeded_symbols


def repeatable_symbols(module: Module) -> frozenset[str]:
    """Functions and graphs without effects and random numbers: equal arguments give equal results."""
    return module.fact("repeatable symbols", lambda m: pure_symbols(m) - seeded_symbols(m))


def called_function(op: Operation, symbols: Mapping) -> Function | None:
    """The function that a `call` names; None for a graph, a function value, and other operations."""
    if op.kind != "call" or not isinstance(op.operands[0], Symbol):
        return None
    callee = symbols.get(op.operands[0].name)
    return callee if isinstance(callee, Function) else None


def equal_calls(function: Function, module: Module) -> dict[str, str]:
    """Duplicate calls: maps each to the first call of that function on equal operands."""
    repeatable, symbols = repeatable_symbols(module), module.symbols()
    first_calls: dict[tuple, str] = {}
    equal: dict[str, str] = {}
    for op in function.operations:
        if called_function(op, symbols) is not None and op.operands[0].name in repeatable:
            operands = tuple((type(o), equal.get(o.name, o.name)) for o in op.operands)
            earlier = first_calls.setdefault(operands, op.name)
            if earlier != op.name:
                equal[op.name] = earlier
    return equal


def check_inlined_size(module: Module) -> None:
    """Bounds the size of a program after inlining.

    Raises:
        FedcoreError: main has more than `MAX_INLINED` operations; names the first such function and its callee.
    """
    sizes = module.fact("inlined sizes", _inlined_sizes)
    if not module.functions or sizes.get(module.main.name, 0) <= MAX_INLINED:
        return
    large = next(f for f in module.functions if sizes[f.name] > MAX_INLINED)
    symbols = module.symbols()
    calls = Counter(c.name for op in large.operations if (c := called_function(op, symbols)) is not None)
    most = max(calls, key=lambda name: calls[name] * sizes[name])
    at = f"\n  at {large.location}" if large.location else ""
    raise FedcoreError(
        f"@{large.name} is too large: with every function that it calls written out, it has more than {MAX_INLINED} "
        f"operations. It calls @{most}, which has {sizes[most]} of them, {calls[most]} times{at}"
    )


def _inlined_sizes(module: Module) -> dict[str, int]:
    """Number of operations of each function after inlining; duplicate calls count once.

    Main also counts each function that is an operand of another operation, once.
    """
    symbols = module.symbols()
    sizes: dict[str, int] = {}
    function_operands: set[str] = set()
    for function in module.functions:
        equal = equal_calls(function, module)
        size = 0
        for op in function.operations:
            if op.name in equal:
                continue
            callee = called_function(op, symbols)
            size += 1 if callee is None else max(1, sizes.get(callee.name, 0))  # inlining an empty function takes time
            arguments = op.operands if callee is None else op.operands[1:]
            function_operands.update(o.name for o in arguments if isinstance(o, Symbol))
        sizes[function.name] = size
    if module.functions:
        sizes[module.main.name] += sum(sizes.get(name, 0) for name in function_operands - {module.main.name})
    return sizes

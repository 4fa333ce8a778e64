"""Calls of functions by functions: which are equal, and how large a program is with each call replaced by a body."""

from collections.abc import Mapping

from fedcore.errors import FedcoreError
from fedcore.ir.limits import MAX_INLINED
from fedcore.ir.module import Function, Module, Operation, Symbol
from fedcore.ir.purity import pure_symbols, seeded_symbols


def repeatable_symbols(module: Module) -> frozenset[str]:
    """The functions and graphs that give the same result for the same arguments, with no effect and no draw."""
    return module.fact("repeatable symbols", lambda m: pure_symbols(m) - seeded_symbols(m))


def called_function(op: Operation, symbols: Mapping) -> Function | None:
    """The function that the operation calls by its name."""
    if op.kind != "call" or not isinstance(op.operands[0], Symbol):
        return None
    callee = symbols.get(op.operands[0].name)
    return callee if isinstance(callee, Function) else None


def equal_calls(function: Function, module: Module) -> dict[str, str]:
    """For each call that has the function and the arguments of an earlier one, the name of the earlier one."""
    repeatable, symbols = repeatable_symbols(module), module.symbols()
    first: dict[tuple, str] = {}
    equal: dict[str, str] = {}
    for op in function.operations:
        if called_function(op, symbols) is not None and op.operands[0].name in repeatable:
            operands = tuple((type(o), equal.get(o.name, o.name)) for o in op.operands)
            earlier = first.setdefault(operands, op.name)
            if earlier != op.name:
                equal[op.name] = earlier
    return equal


def check_inlined_size(module: Module) -> None:
    """Refuses a program whose functions call each other so often that it is too large without calls.

    Raises:
        FedcoreError: names the function that is too large, and what it calls.
    """
    sizes = module.fact("inlined sizes", _inlined_sizes)
    if not module.functions or sizes.get(module.main.name, 0) <= MAX_INLINED:
        return
    large = next(f for f in module.functions if sizes[f.name] > MAX_INLINED)
    symbols = module.symbols()
    callees = [c.name for op in large.operations if (c := called_function(op, symbols)) is not None]
    most = max(dict.fromkeys(callees), key=lambda name: callees.count(name) * sizes[name])
    at = f"\n  at {large.location}" if large.location else ""
    raise FedcoreError(
        f"@{large.name} is too large: with every function that it calls written out, it has more than {MAX_INLINED} "
        f"operations. It calls @{most}, which has {sizes[most]} of them, {callees.count(most)} times{at}"
    )


def _inlined_sizes(module: Module) -> dict[str, int]:
    """For each function its operations with calls replaced by what is called; equal calls count once.

    Main counts the functions that are given to operations too, each once.
    """
    symbols = module.symbols()
    sizes: dict[str, int] = {}
    given: set[str] = set()
    for function in module.functions:
        equal = equal_calls(function, module)
        size = 0
        for op in function.operations:
            if op.name in equal:
                continue
            callee = called_function(op, symbols)
            size += (
                max(1, sizes.get(callee.name, 0)) if callee is not None else 1
            )  # a call is work, also of no operation
            first = 0 if callee is None else 1
            given.update(o.name for o in op.operands[first:] if isinstance(o, Symbol))
        sizes[function.name] = size
    if module.functions:
        sizes[module.main.name] += sum(sizes.get(name, 0) for name in given - {module.main.name})
    return sizes

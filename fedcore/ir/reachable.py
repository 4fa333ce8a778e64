"""Reachability of symbols."""

from collections.abc import Container

import attrs

from fedcore.ir.module import Function, Module
from fedcore.ir.purity import symbols_of


def named_by(module: Module, name: str, *, excluded: Container[str] = ()) -> list[str]:
    """Symbols reachable from `name`, callees before callers, without the `excluded` symbols."""
    order: list[str] = []
    visited: set[str] = set()
    stack = [(name, False)]
    while stack:
        current, expanded = stack.pop()
        if expanded:
            order.append(current)
        elif current not in visited and current not in excluded:
            visited.add(current)
            node = module[current]
            stack.append((current, True))
            stack.extend(
                (n, False) for n in sorted(symbols_of(node) if isinstance(node, Function) else (), reverse=True)
            )
    return order


def reachable(module: Module, functions: tuple[Function, ...] | None = None) -> Module:
    """The module with these functions (default: its own), without the symbols that its main does not reach."""
    functions = module.functions if functions is None else functions
    named = {functions[-1].name}
    for function in reversed(functions):
        if function.name in named:
            named.update(symbols_of(function))
    live_functions = tuple(f for f in functions if f.name in named)
    graphs = tuple(g for g in module.graphs if g.name in named)
    if live_functions == module.functions and graphs == module.graphs:
        return module
    return attrs.evolve(module, functions=live_functions, graphs=graphs)

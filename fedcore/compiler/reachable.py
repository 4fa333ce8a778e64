"""The symbols that a module's main function needs."""

import attrs

from fedcore.ir import Function, Module, Symbol


def reachable(module: Module, functions: tuple[Function, ...] | None = None) -> Module:
    """The module with `functions` in place of its own, and without the symbols that nobody names."""
    functions = module.functions if functions is None else functions
    named = {functions[-1].name}
    for function in reversed(functions):
        if function.name in named:
            operands = [function.result, *(o for op in function.operations for o in op.operands)]
            named.update(o.name for o in operands if isinstance(o, Symbol))
    kept = tuple(f for f in functions if f.name in named)
    graphs = tuple(g for g in module.graphs if g.name in named)
    if kept == module.functions and graphs == module.graphs:
        return module
    return attrs.evolve(module, functions=kept, graphs=graphs)

"""Alpha-equivalence of functions."""

from collections.abc import Hashable, Mapping

from fedcore.ir.module import Function, Operand, Operation, Ref


def form_of(function: Function, symbols: Mapping[str, Hashable]) -> Hashable:
    """Key for alpha-equivalence: ignores locations and the names of parameters, bindings and symbols.

    Args:
        symbols: the key of each symbol that the function names, such as the digest of a graph.
    """
    positions = {p.name: i for i, p in enumerate(function.parameters)}
    operations = []
    for op in function.operations:
        operations.append(operation_form(op, positions, symbols))
        positions[op.name] = len(positions)
    return (
        tuple(p.type for p in function.parameters),
        tuple(operations),
        operand_form(function.result, positions, symbols),
        function.result_type,
        None if function.placement is None else function.placement.name,
        tuple(sorted(function.attributes.items())),
    )


def operation_form(op: Operation, keys: Mapping[str, Hashable], symbols: Mapping[str, Hashable]) -> Hashable:
    """Key for alpha-equivalence; `keys` holds the key of each parameter and binding, `symbols` that of each symbol."""
    operands = tuple(operand_form(o, keys, symbols) for o in op.operands)
    return op.kind, operands, op.type, tuple(sorted(op.attributes.items()))


def operand_form(operand: Operand, keys: Mapping[str, Hashable], symbols: Mapping[str, Hashable]) -> Hashable:
    """The key of the binding, parameter or symbol that an operand names."""
    if isinstance(operand, Ref):
        return "ref", keys[operand.name]
    return "symbol", symbols[operand.name]

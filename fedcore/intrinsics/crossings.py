"""Crossings of a plan: the tensors that cross between server and clients."""

import itertools
from collections.abc import Iterator
from typing import Any

import attrs

from fedcore.intrinsics.planned import fold_of, sent_by
from fedcore.ir import Constant, Function, Module
from fedcore.ir.value_names import ValueNames
from fedcore.types import StructType, Type, leaves, member_of


@attrs.frozen
class Crossing:
    """A tensor that every client receives (kind `broadcast`) or sends (kind `merge`).

    Args:
        op: name of the plan's broadcast or merge.
        tensor: path in the broadcast struct, or the name of the value in the stage that computes it
            (`fedcore.ir.value_names`). A value that a client computes may have the name of its first operand.
        clients: how many clients receive or send the tensor; dropped clients send nothing.
        bits: size over all clients; None in a plan whose types leave the size open.
        constant: the literal that is sent, if it is sent once.
    """

    op: str
    kind: str
    tensor: str
    type: Type
    clients: int
    bits: int | None
    constant: Constant | None = attrs.field(default=None, repr=False)


def crossings(plan: Module) -> list[Crossing]:
    """The crossings of a plan, each counted for one client."""
    entries = []
    by_name, types = {op.name: op for op in plan.main.operations}, plan.main.types()
    for op in plan.main.operations:
        if op.attributes.get("bits") == 0:
            continue
        constants: Iterator[Constant | None] = itertools.repeat(None)
        if op.kind == "broadcast":
            if op.attributes.get("once"):
                constants = _constants(plan, op.operands[0].name)
            values = [(label, member_of(type_)) for label, type_ in _broadcast_parts(plan, op.operands[0].name)]
        elif op.kind == "merge":
            fold = fold_of(op, by_name)
            sent = sent_by(fold, plan.function(fold.operands[1].name), types)
            values = [(value.label, value.type) for value in sent.values()]
        else:
            continue
        for name, type_ in values:
            for path, leaf in leaves(type_):
                tensor = f"{name}.{path}" if path and path[0] != "[" else name + path
                bits = getattr(leaf, "size_bits", None)
                entries.append(Crossing(op.name, op.kind, tensor, leaf, 1, bits, next(constants)))
    return entries


def _constants(plan: Module, name: str) -> Iterator[Constant]:
    """The leaves of a value of main that a stage of literals returns."""

    def tree(function: Function, name: str) -> Any:
        op = next(op for op in function.operations if op.name == name)
        if op.kind == "literal":
            return op.attributes["value"]
        if op.kind == "run":
            stage = plan.function(op.operands[0].name)
            return tree(stage, stage.result.name)
        if op.kind == "item":
            return tree(function, op.operands[0].name)[op.attributes["index"]]
        return tuple(tree(function, operand.name) for operand in op.operands)

    return _leaves(tree(plan.main, name))


def _leaves(value: Any) -> Iterator[Constant]:
    if isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _broadcast_parts(plan: Module, name: str) -> list[tuple[str, Type]]:
    """The elements of a broadcast struct with their names, or the broadcast value with its own.

    An element without a name is called as the value that the server puts there.
    """
    function = plan.main
    bindings = {op.name: op for op in function.operations}
    if name in bindings and bindings[name].kind == "run":
        function = plan.function(bindings[name].operands[0].name)
        name, bindings = function.result.name, {op.name: op for op in function.operations}
    names, whole = ValueNames(function), member_of(function.types()[name])
    if not isinstance(whole, StructType):
        return [(names.of(name) or "value", whole)]
    struct = name in bindings and bindings[name].kind == "struct"
    own = [names.of(o.name) for o in bindings[name].operands] if struct else [None] * len(whole)
    return [(element or own[i] or f"[{i}]", type_) for i, (element, type_) in enumerate(whole.items())]

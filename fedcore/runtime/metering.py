"""Metering: the bits of every tensor that crosses between server and clients."""

from typing import TYPE_CHECKING

import attrs

from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.intrinsics.planned import fold_of, sent_by
from fedcore.ir import Module
from fedcore.ir.value_names import ValueNames
from fedcore.types import StructType, Type, leaves, member_of

if TYPE_CHECKING:
    from fedcore.runtime.report import Report


@attrs.frozen
class Crossing:
    """A tensor that every client receives (kind `broadcast`) or sends (kind `merge`).

    Args:
        op: name of the plan's broadcast or merge.
        tensor: path in the broadcast struct, or the name of the value in the stage that computes it
            (`fedcore.ir.value_names`). A value that a client computes may have the name of its first operand.
        clients: how many clients receive or send the tensor; dropped clients send nothing.
        bits: size over all clients; None in a plan whose types leave the size open.
    """

    op: str
    kind: str
    tensor: str
    type: Type
    clients: int
    bits: int | None


def crossings(plan: Module) -> list[Crossing]:
    """The crossings of a plan, each counted for one client."""
    found = []
    by_name, types = {op.name: op for op in plan.main.operations}, plan.main.types()
    for op in plan.main.operations:
        if op.attributes.get("bits") == 0:
            continue
        if op.kind == "broadcast":
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
                found.append(Crossing(op.name, op.kind, tensor, leaf, 1, getattr(leaf, "size_bits", None)))
    return found


def _broadcast_parts(plan: Module, name: str) -> list[tuple[str, Type]]:
    """The elements of a broadcast struct with their names, or the broadcast value with its own.

    An element without a name is called as the value that the server puts there.
    """
    function = plan.main
    made = {op.name: op for op in function.operations}
    if name in made and made[name].kind == "run":
        function = plan.function(made[name].operands[0].name)
        name, made = function.result.name, {op.name: op for op in function.operations}
    names, whole = ValueNames(function), member_of(function.types()[name])
    if not isinstance(whole, StructType):
        return [(names.of(name) or "value", whole)]
    struct = name in made and made[name].kind == "struct"
    own = [names.of(o.name) for o in made[name].operands] if struct else [None] * len(whole)
    return [(element or own[i] or f"[{i}]", type_) for i, (element, type_) in enumerate(whole.items())]


_crossings: IdentityCache[list[Crossing]] = IdentityCache(64)
"""The crossings of the plans that ran last."""


def meter(plan: Module, report: "Report") -> None:
    """Adds the crossings of a call to its report, by sizes that types give and by measured sizes."""
    measured = {name: iter(sizes) for name, sizes in report.measured.items()}
    for crossing in _crossings.get("crossings", [plan], lambda: crossings(plan)):
        is_merge, is_measured = crossing.kind == "merge", crossing.bits is None
        bits = next(measured[crossing.op], 0) if is_measured and crossing.op in measured else crossing.bits or 0
        clients = report.clients - (len(report.dropped) if is_merge else 0)
        # The measured size of a merge is a sum over clients, since clients can send different sizes.
        total = bits if is_measured and is_merge else bits * clients
        report.crossings.append(Crossing(crossing.op, crossing.kind, crossing.tensor, crossing.type, clients, total))

"""What crosses between server and clients, in bits, tensor by tensor."""

from typing import TYPE_CHECKING

import attrs

from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.intrinsics.planned import fold_of, sent_by
from fedcore.ir import Module
from fedcore.types import Type, leaves, member_of

if TYPE_CHECKING:
    from fedcore.runtime.report import Report


@attrs.frozen
class Crossing:
    """A tensor that every client receives (kind `broadcast`) or sends (kind `merge`).

    Args:
        op: the operation of the plan.
        tensor: its path in what is broadcast; for what is sent, the name and path that it has in the client stage.
        clients: how many receive or send it; those that are dropped send nothing.
        bits: of all of them; None in a plan whose types leave it open.
    """

    op: str
    kind: str
    tensor: str
    type: Type
    clients: int
    bits: int | None


def crossings(plan: Module) -> list[Crossing]:
    """What one client receives and sends."""
    found = []
    by_name, types = {op.name: op for op in plan.main.operations}, plan.main.types()
    for op in plan.main.operations:
        if op.attributes.get("bits") == 0:  # nothing crosses
            continue
        if op.kind == "broadcast":
            values = [("", member_of(op.type))]
        elif op.kind == "merge":
            fold = fold_of(op, by_name)
            sent = sent_by(fold, plan.function(fold.operands[1].name), types)
            values = [(one.label, one.type) for one in sent.values()]
        else:
            continue
        for name, type_ in values:
            for path, leaf in leaves(type_):
                tensor = f"{name}.{path}" if name and path and path[0] != "[" else name + path
                found.append(Crossing(op.name, op.kind, tensor or "value", leaf, 1, getattr(leaf, "size_bits", None)))
    return found


_crossings: IdentityCache[list[Crossing]] = IdentityCache(64)
"""Of the plans that ran last."""


def meter(plan: Module, report: "Report") -> None:
    """Tells the report what crossed: sizes that the types give, times the clients, and the others as measured."""
    measured = {name: iter(sizes) for name, sizes in report.measured.items()}
    for one in _crossings.get("crossings", [plan], lambda: crossings(plan)):
        bits = next(measured[one.op], 0) if one.bits is None and one.op in measured else one.bits or 0
        # What clients send can differ between them, so it is measured in sum.
        summed = one.bits is None and one.kind == "merge"
        clients = report.clients - (len(report.dropped) if one.kind == "merge" else 0)
        report.crossings.append(attrs.evolve(one, clients=clients, bits=bits if summed else bits * clients))

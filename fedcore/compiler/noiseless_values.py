"""Data-flow analysis of which client values are sent without randomness of the client's own.

In: a plan. Out: each tensor that a client sends and that depends on its data, but on no random number that its stage
draws. A tensor that is not listed may still have little noise, or noise that can be told apart: the analysis finds
programs that forget noise, not those that hide its lack.
"""

from fedcore.compiler.disclosures import ClientDataFlow, Disclosure, accumulation_line, tensors_of
from fedcore.compiler.leaf_sets import NOTHING, Leaves, everything
from fedcore.intrinsics.planned import sent_by
from fedcore.ir import Function, Graph, Module, Operation, Symbol
from fedcore.ir.purity import seeded_symbols
from fedcore.types import SequenceType, StructType, Type, contains


def noiseless_values(plan: Module) -> list[Disclosure]:
    """The tensors that depend on a client's data and on no random number, each once."""
    flow = ClientDataFlow(plan)
    draws = _Draws(plan, flow)
    values = []
    for fold, stage, tainted in flow.folds():
        drawn = draws.inside(stage)
        for name, sent in sent_by(fold, stage, flow.types).items():
            for path, type_ in tensors_of(sent.type, tainted.get(name, NOTHING) - drawn.get(name, NOTHING)):
                tensor = f"{sent.label}.{path}" if path and path[0] != "[" else sent.label + path
                line = accumulation_line(stage, name) or fold.location
                values.append(Disclosure(tensor, type_, line))
    return list(dict.fromkeys(values))


class _Draws:
    """Finds the leaves that depend on random numbers."""

    def __init__(self, plan: Module, flow: ClientDataFlow) -> None:
        self._plan = plan
        self._flow = flow
        self._seeded = seeded_symbols(plan)
        self._symbols = plan.symbols()

    def inside(self, stage: Function) -> dict[str, Leaves]:
        """The leaves of each value of a stage that depend on random numbers that the stage draws."""
        drawn: dict[str, Leaves] = {p.name: NOTHING for p in stage.parameters}
        types = stage.types()
        for op in stage.operations:
            drawn[op.name] = self._flow.tainted_leaves(op, types, drawn) | self._own(op)
        return drawn

    def _own(self, op: Operation) -> Leaves:
        """The leaves of an operation's result that depend on random numbers that it draws itself."""
        symbols = [o.name for o in op.operands if isinstance(o, Symbol) and o.name in self._seeded]
        if not symbols and "salt" not in op.attributes:
            return NOTHING
        callee = self._symbols.get(symbols[0]) if symbols else None
        if op.kind != "call" or not isinstance(callee, Graph):
            return everything(op.type)
        return _seeded_leaves(self._plan.blob(callee.digest), callee.type.result)


def _seeded_leaves(data: bytes, type_: Type) -> Leaves:
    from fedcore.compiler.leaf_sets import flat
    from fedcore.graphs.graphdef.analysis.dependencies import seeded_results

    if contains(type_, lambda t: isinstance(t, SequenceType)):
        return everything(type_)
    solid = [i for i, leaf in enumerate(flat(type_)) if not isinstance(leaf, StructType)]
    return frozenset(i for i, seeded in zip(solid, seeded_results(data), strict=True) if seeded)

"""Data-flow analysis of which leaves of a client stage depend on random numbers that the stage draws.

A leaf that is listed may still have little noise, or noise that can be told apart.
"""

from fedcore.compiler.client_data import ClientData
from fedcore.compiler.leaf_sets import NOTHING, Leaves, everything, holds_sequence, nonempty_leaves
from fedcore.ir import Function, Graph, Module, Operation, Symbol
from fedcore.ir.purity import seeded_symbols


class DrawnLeaves:
    """Finds the leaves that depend on random numbers."""

    def __init__(self, plan: Module, data: ClientData) -> None:
        self._plan = plan
        self._data = data
        self._seeded = seeded_symbols(plan)
        self._symbols = plan.symbols()

    def inside(self, stage: Function) -> dict[str, Leaves]:
        """The leaves of each value of a stage that depend on random numbers that the stage draws."""
        drawn: dict[str, Leaves] = {p.name: NOTHING for p in stage.parameters}
        types = stage.types()
        for op in stage.operations:
            drawn[op.name] = self._data.tainted_leaves(op, types, drawn) | self._drawn_by(op)
        return drawn

    def _drawn_by(self, op: Operation) -> Leaves:
        """The leaves of an operation's result that depend on random numbers that it draws itself."""
        symbols = [o.name for o in op.operands if isinstance(o, Symbol) and o.name in self._seeded]
        if not symbols and "salt" not in op.attributes:
            return NOTHING
        callee = self._symbols.get(symbols[0]) if symbols else None
        if op.kind != "call" or not isinstance(callee, Graph):
            return everything(op.type)
        return _seeded_leaves(callee, self._plan.blob(callee.digest))


def _seeded_leaves(graph: Graph, data: bytes) -> Leaves:
    """The leaves of a graph's result that depend on its implicit seed; all leaves if one is a sequence."""
    from fedcore.graphs.graphdef.analysis.dependencies import seeded_results
    from fedcore.graphs.graphdef.form.captured_graph import captured_graph

    type_ = graph.type.result
    if holds_sequence(type_):
        return everything(type_)
    seeded = seeded_results(captured_graph(graph, data))
    return frozenset(i for i, is_seeded in zip(nonempty_leaves(type_), seeded, strict=True) if is_seeded)

"""Liveness analysis of a plan, leaf by leaf.

In: a plan after `partition`, in which values cross as parameters and results of stages. Out: for each value of the main
function, and inside of a stage for some leaves of its result, the set of leaves on which the program's result depends.
If clients read only `a` of a broadcast `<a=float32,b=float32>`, its live leaves are `{0}`. The analysis walks the
operations backwards; around a fold and its merge it repeats until no leaf is added.

Policies of sites rely on it: what it misses could leave a client unseen (decision 0312).
"""

import functools
import operator
from collections.abc import Mapping

import attrs

from fedcore.compiler.leaf_sets import (
    NOTHING,
    Leaves,
    can_stand_in,
    count,
    elements_of,
    everything,
    flat,
    has_empty,
    holds_sequence,
    nonempty_leaves,
    start_of,
    with_empty,
    within,
)
from fedcore.ir import Function, Graph, Module, Operation, Ref, Symbol
from fedcore.ir.purity import effectful_symbols
from fedcore.types import TensorType, Type, fits

LEAFWISE = (
    "append_rows",
    "as_row",
    "cast",
    "equal",
    "generic_divide",
    "generic_minus",
    "generic_multiply",
    "generic_plus",
    "generic_zero",
    "less",
    "maximum",
    "minimum",
    "modulo",
    "where",
)
"""Operations that compute each leaf from the leaves at the same position, and from operands with one leaf."""

Live = dict[str, Leaves]
"""By the name of a binding or parameter its needed leaves; other names need none."""


class _Needs:
    """The needed leaves of each value of a function; the sets grow during the analysis.

    Args:
        types: by name the types of all values.
    """

    def __init__(self, types: Mapping[str, Type]) -> None:
        self.count = 0
        """The number of needed leaves of all values."""
        self._types = types
        self._needed: dict[str, set[int]] = {}  # by name
        self._frozen: dict[str, Leaves] = {}  # copies of these sets, until they grow

    def add(self, name: str, leaves: Leaves) -> None:
        """Adds needed leaves of a value, and the empty structs beside them (`with_empty`)."""
        needed_leaves = self._needed.setdefault(name, set())
        old_count = len(needed_leaves)
        needed_leaves.update(leaves)
        if len(needed_leaves) > old_count:
            if has_empty(self._types[name]):
                needed_leaves.update(with_empty(self._types[name], frozenset(needed_leaves)))
            self.count += len(needed_leaves) - old_count
            self._frozen.pop(name, None)

    def of(self, name: str) -> Leaves:
        if name not in self._frozen:
            self._frozen[name] = frozenset(self._needed.get(name, NOTHING))
        return self._frozen[name]

    def within(self, name: str, start: int, type_: Type) -> Leaves:
        """The needed leaves of an element of a value, as positions in the element; see `leaf_sets.within`."""
        return within(self._needed.get(name, NOTHING), start, type_)

    def all(self) -> Live:
        return {name: self.of(name) for name in self._needed}


@attrs.frozen(eq=False)
class _Reads:
    """Dependencies of the result of a graph.

    Args:
        masks: for each leaf of the result the bit mask of the argument tensors that it depends on.
        leaf_of: for each argument tensor the position of its leaf in the parameter.
    """

    masks: list[int]
    leaf_of: list[int]

    def of(self, live_leaves: Leaves) -> Leaves:
        """The leaves of the parameter that some leaves of the result depend on."""
        from fedcore.graphs.graphdef.analysis.dependencies import positions

        union = functools.reduce(operator.or_, (self.masks[i] for i in live_leaves), 0)
        return frozenset(self.leaf_of[i] for i in positions(union))


class Liveness:
    """Backward analysis from results to parameters, leaf by leaf.

    Args:
        counts_failures: a graph also reads what may make it fail, or what any of its results reads.
    Attributes:
        effects: the symbols whose calls have effects, so that they need all their operands.
    """

    def __init__(self, module: Module, *, counts_failures: bool = False) -> None:
        self.module = module
        self._counts_failures = counts_failures
        self.symbols = module.symbols()
        self.effects = effectful_symbols(module)
        self._reads: dict[str, _Reads | None] = {}  # by name of a graph, see `_reads_of`
        self._live: dict[tuple[str, Leaves], Live] = {}  # by name of a function and live leaves of its result

    def has_effect(self, op: Operation) -> bool:
        return any(isinstance(o, Symbol) and o.name in self.effects for o in op.operands)

    def of(self, function: Function, live_leaves: Leaves) -> Live:
        """The needed leaves inside a function, a stage or the body of a loop, for some leaves of its result."""
        key = (function.name, live_leaves)
        if key not in self._live:
            self._live[key] = self._analyse(function, live_leaves)
        return self._live[key]

    def _analyse(self, function: Function, live_leaves: Leaves) -> Live:
        types = function.types()
        needs = _Needs(types)
        if isinstance(function.result, Ref):
            needs.add(function.result.name, live_leaves)
        for op in reversed(function.operations):
            needed_leaves = everything(op.type) if self.has_effect(op) else needs.of(op.name)
            if needed_leaves:
                for operand, leaves in zip(op.operands, self.needs(op, needed_leaves, types), strict=True):
                    if isinstance(operand, Ref):
                        needs.add(operand.name, leaves)
        return needs.all()

    def needs(self, op: Operation, live_leaves: Leaves, types: dict[str, Type]) -> list[Leaves]:
        """For each operand the leaves that a local operation needs for some leaves of its result; none for symbols."""
        operand_types = [types[o.name] if isinstance(o, Ref) else None for o in op.operands]
        if op.kind == "struct":
            return [within(live_leaves, start_of(op.type, i), t) for i, t in enumerate(elements_of(op.type))]
        if op.kind == "item" and operand_types[0] is not None:
            start = start_of(operand_types[0], op.attributes["index"])
            return [frozenset(start + i for i in live_leaves)]
        if op.kind in LEAFWISE:
            return [
                live_leaves if count(t) == count(op.type) else everything(t) for t in operand_types if t is not None
            ]
        if op.kind == "call" and isinstance(op.operands[0], Symbol) and not self.has_effect(op):
            return [NOTHING, *self._call_needs(op, live_leaves, operand_types[1:])]
        if op.kind == "bind" and isinstance(op.operands[0], Symbol):
            return [NOTHING, *self._capture_needs(op.operands[0].name, operand_types[1:])]
        return [NOTHING if t is None else everything(t) for t in operand_types]

    def _call_needs(self, op: Operation, live_leaves: Leaves, operand_types: list) -> list[Leaves]:
        """For each argument of a call of a graph the leaves that `live_leaves` of the result depend on.

        A leaf for which no dummy constant can stand in is always needed, since the call takes it anyway.
        """
        whole = [NOTHING if t is None else everything(t) for t in operand_types]
        callee = self.symbols.get(op.operands[0].name)
        if not isinstance(callee, Graph) or any(t is None for t in operand_types):
            return whole
        reads = self._reads_of(callee)
        if reads is None:
            return whole
        read = reads.of(live_leaves)
        needs, start = [], 0
        for type_ in operand_types:
            required_leaves = {i for i, leaf in enumerate(flat(type_)) if not can_stand_in(leaf)}
            needs.append(within(read, start, type_) | required_leaves)
            start += count(type_)
        return needs

    def _reads_of(self, graph: Graph) -> "_Reads | None":
        """The dependencies of a graph's result; None if each leaf is taken to depend on the whole parameter."""
        if graph.digest not in self.module.blobs or graph.type.parameter is None:
            return None
        if graph.attributes.get("stateful") or graph.attributes.get("effects"):
            return None
        if holds_sequence(graph.type):
            return None
        if graph.name not in self._reads:
            from fedcore.graphs.graphdef.analysis.dependencies import dependencies_of, shows_all
            from fedcore.graphs.graphdef.form.captured_graph import captured_graph

            captured = captured_graph(graph, self.module.blobs[graph.digest])
            masks = dependencies_of(captured)
            if self._counts_failures:  # each result then reads what any result reads
                masks = [functools.reduce(operator.or_, masks, 0)] * len(masks)
            reads = _Reads(
                [0 if tensor is None else masks[tensor] for tensor in _tensor_positions(graph.type.result)],
                nonempty_leaves(graph.type.parameter),
            )
            is_unknown = self._counts_failures and not shows_all(captured)
            self._reads[graph.name] = None if is_unknown else reads
        return self._reads[graph.name]

    def argument_reads(self, symbol: str) -> list[bool]:
        """For each leaf of the arguments of a function or a graph, in order, whether its result depends on it."""
        callee = self.symbols[symbol]
        if isinstance(callee, Function):
            reads = zip(self._parameter_needs(callee, everything(callee.result_type)), callee.parameters, strict=True)
            return [leaf in read for read, parameter in reads for leaf in range(count(parameter.type))]
        parameter, graph_reads = callee.type.parameter, self._reads_of(callee)
        if parameter is None:
            return []
        read = everything(parameter) if graph_reads is None else graph_reads.of(everything(callee.type.result))
        return [leaf in read for leaf in range(count(parameter))]

    def _capture_needs(self, name: str, operand_types: list) -> list[Leaves]:
        """For each captured value of a `bind` the leaves that the bound function may read.

        The callers of the bound function are unknown here, so all leaves of its result count as live.

        Args:
            name: the function or graph whose first arguments are bound.
            operand_types: types of the captured values; None for a symbol, which has no leaves.
        """
        callee = self.symbols[name]
        if isinstance(callee, Function) and len(operand_types) <= len(callee.parameters):
            pairs = zip(operand_types, callee.parameters, strict=False)
            if all(t is not None and fits(t, p.type) for t, p in pairs):  # else a struct may hold several arguments
                return self._parameter_needs(callee, everything(callee.result_type))[: len(operand_types)]
        return [NOTHING if t is None else everything(t) for t in operand_types]

    # The main function of a plan.

    def analyse_plan(self) -> Live:
        """The needed leaves of each value of the main function for the result of the plan.

        The accumulation of a partial reads the partial, so the analysis repeats until no leaf is added.
        """
        main = self.module.main
        types = main.types()
        needs = _Needs(types)
        needs.add(main.result.name, everything(main.result_type))
        while True:
            old_count = needs.count
            for op in reversed(main.operations):
                if self.has_effect(op) and not needs.of(op.name):
                    needs.add(op.name, everything(op.type))
                if needs.of(op.name):
                    self._add_needs(op, needs, types)
            if needs.count == old_count:
                return {name: needs.of(name) for name in types}

    def _add_needs(self, op: Operation, needs: "_Needs", types: dict[str, Type]) -> None:
        """Adds the leaves of its operands that an operation of `main` needs for the needed leaves of its result."""
        needed, need = needs.of, needs.add
        operands = [o.name for o in op.operands if isinstance(o, Ref)]
        stages = [self.module.function(o.name) for o in op.operands if isinstance(o, Symbol)]
        if op.kind == "item":
            # It has all leaves that its source keeps, such as those of a partial that only the accumulation reads.
            start = start_of(types[operands[0]], op.attributes["index"])
            need(op.name, needs.within(operands[0], start, op.type))
        if op.kind in ("struct", "item"):
            for name, leaves in zip(operands, self.needs(op, needed(op.name), types), strict=True):
                need(name, leaves)
        elif op.kind == "broadcast":
            need(operands[0], needed(op.name))
        elif op.kind == "merge":
            live_leaves = needed(op.name) | needed(operands[0])
            for name in (op.name, operands[0]):  # a merge gives what it takes
                need(name, live_leaves.union(*self._parameter_needs(stages[0], live_leaves)))
        elif op.kind == "fold":
            self._add_needs_of_fold(op, operands, stages, needs)
        else:
            for name, leaves in zip(operands, self._parameter_needs(stages[0], needed(op.name)), strict=True):
                need(name, leaves)

    def _add_needs_of_fold(self, op: Operation, operands: list, stages: list, needs: "_Needs") -> None:
        """Adds what a fold needs: leaves of its operands, and leaves of the partial that its accumulation reads.

        Args:
            operands: the names of its values; `stages` are its zero and its stage.
        """
        needed, need = needs.of, needs.add
        zero, stage = stages
        partial, *kept_types = elements_of(stage.result_type) if op.attributes.get("keeps") else (stage.result_type,)
        for start, type_ in zip((0, count(partial)), (partial, *kept_types), strict=False):
            if not needs.within(op.name, start, type_):  # no part of <partial, kept values> loses all its leaves
                need(op.name, frozenset(range(start, start + count(type_))))
        read, *operand_leaves = self._parameter_needs(stage, needed(op.name))
        need(op.name, read)
        for name, leaves in zip(operands, operand_leaves, strict=True):
            need(name, leaves)
        zero_leaves = self._parameter_needs(zero, needs.within(op.name, 0, partial))
        for name, leaves in zip(operands, zero_leaves, strict=False):  # what is broadcast comes first
            need(name, leaves)

    def _parameter_needs(self, stage: Function, live_leaves: Leaves) -> list[Leaves]:
        """For each parameter of a function the leaves that `live_leaves` of its result depend on."""
        live = self.of(stage, live_leaves)
        return [live.get(p.name, NOTHING) for p in stage.parameters]


@functools.lru_cache(maxsize=1024)
def _tensor_positions(type_: Type) -> list[int | None]:
    """For each leaf of a type without sequences its position among the tensors; None for an empty struct."""
    positions: list[int | None] = []
    tensors = 0
    for leaf in flat(type_):
        positions.append(tensors if isinstance(leaf, TensorType) else None)
        tensors += isinstance(leaf, TensorType)
    return positions

"""Data-flow analysis of which client values reach the server outside of secure sums.

In: a module at any stage. Out: for each crossing of a value that depends on client data, and is not in a secure sum,
the value's name and line. None is a proof that the server gets sums only, if the runtime has a protocol for these.
A client value that the program returns stays at the clients. Constants, broadcasts and random numbers are no client
data; the sizes of a client's tensors are, unless its type gives them.

Decision 0141.
"""

from collections.abc import Container, Iterator

import attrs

from fedcore.compiler.leaf_sets import NOTHING, Leaves, count, everything, flat, start_of, within
from fedcore.compiler.liveness import Live, Liveness
from fedcore.compiler.pipeline import LOWERING, compile_module
from fedcore.errors import Location
from fedcore.intrinsics.planned import fold_of, sent_by
from fedcore.intrinsics.secure_ranges import OPEN
from fedcore.ir import Function, Graph, Module, Operation, Ref, Symbol
from fedcore.types import FederatedType, StructType, TensorType, Type, is_static, leaves

Taints = dict[str, Leaves]
"""The leaves that depend on client data, by the name of the binding or parameter."""


@attrs.frozen
class Disclosure:
    """A tensor of a single client that the server gets.

    Args:
        tensor: its path, or the name of the value that holds it.
        location: the line of the aggregation; None if the module has no lines.
        grows: whether the partial that holds it has more rows with each client: the server gets the tensor itself.
    """

    tensor: str
    type: Type
    location: Location | None
    grows: bool = False


def disclosures(module: Module) -> list[Disclosure]:
    """The tensors that depend on a client's data and reach the server outside of secure sums, each once."""
    if module.stage != "planned":
        lowering = f"{LOWERING}," if module.stage == "traced" else ""
        module = compile_module(module, f"{lowering}partition,dead-leaf-elimination")
    unique: dict[tuple, Disclosure] = {}
    for disclosure in ClientDataFlow(module).disclosures():
        key = disclosure.tensor, disclosure.type, disclosure.location
        if key not in unique or disclosure.grows:
            unique[key] = disclosure
    return list(unique.values())


class ClientDataFlow:
    """Follows clients' data through a plan, leaf by leaf."""

    def __init__(self, plan: Module) -> None:
        self.plan = plan
        self.live = Liveness(plan)
        self.types = plan.main.types()
        self.by_name = {op.name: op for op in plan.main.operations}

    def disclosures(self) -> Iterator[Disclosure]:
        """The tensors that depend on clients' data and are merged outside of secure sums."""
        for op, fold, stage, inside in self._merges():
            yield from self._merge_disclosures(op, fold, stage, inside)

    def folds(self) -> Iterator[tuple[Operation, Function, Taints]]:
        """Each fold that is merged, its stage, and the leaves of the stage's values that depend on clients' data."""
        for _, fold, stage, inside in self._merges():
            yield fold, stage, inside

    def _merges(self) -> Iterator[tuple[Operation, Operation, Function, Taints]]:
        main = self.plan.main
        taints: Taints = {p.name: _client_leaves(p.type) for p in main.parameters}
        stages: dict[str, tuple[Function, Taints]] = {}
        for op in main.operations:
            operands = [o.name for o in op.operands if isinstance(o, Ref)]
            if op.kind in ("struct", "item"):
                taints[op.name] = self.tainted_leaves(op, self.types, taints)
            elif op.kind in ("fold", "collect"):
                stage = self.plan.function(op.operands[-len(operands) - 1].name)
                inside = self._stage_taints(op, stage, [taints[name] for name in operands])
                stages[op.name] = stage, inside
                taints[op.name] = inside[stage.result.name]
            else:  # at the server, or sent from it
                taints[op.name] = NOTHING
            if op.kind == "merge":
                fold = fold_of(op, self.by_name)
                yield op, fold, *stages[fold.name]

    def tainted_leaves(self, op: Operation, types: dict[str, Type], taints: Taints) -> Leaves:
        """The leaves of a local operation's result that depend on tainted leaves of its operands."""
        names = [o.name if isinstance(o, Ref) else None for o in op.operands]
        if not any(taints.get(n) for n in names if n is not None):
            return NOTHING
        if op.kind == "item":
            start = start_of(types[op.operands[0].name], op.attributes["index"])
            return within(taints[op.operands[0].name], start, op.type)
        tainted = set()
        for leaf in range(count(op.type)):
            needs = self.live.needs(op, frozenset([leaf]), types)
            if any(taints.get(n, NOTHING) & need for n, need in zip(names, needs, strict=True) if n is not None):
                tainted.add(leaf)
        return frozenset(tainted)

    def _inside(self, function: Function, arguments: list[Leaves]) -> Taints:
        taints: Taints = dict(zip((p.name for p in function.parameters), arguments, strict=True))
        types = function.types()
        for op in function.operations:
            taints[op.name] = self.tainted_leaves(op, types, taints)
        return taints

    def _stage_taints(self, op: Operation, stage: Function, arguments: list[Leaves]) -> Taints:
        """The taints inside a client stage; the partial depends on what was folded into it."""
        if op.kind == "collect":
            return self._inside(stage, arguments)
        merges = (m for m in self.by_name.values() if m.kind == "merge" and fold_of(m, self.by_name) is op)
        joins = [self.plan.function(m.operands[0].name) for m in merges]
        partial = NOTHING
        while True:
            inside = self._inside(stage, [partial, *arguments])
            new_partial = inside[stage.result.name]
            if op.attributes.get("keeps"):
                new_partial = within(new_partial, 0, stage.parameters[0].type)
            for join in joins:
                new_partial |= self._inside(join, [new_partial, new_partial])[join.result.name]
            if new_partial <= partial:
                return inside
            partial |= new_partial

    def _merge_disclosures(
        self, op: Operation, fold: Operation, stage: Function, taints: Taints
    ) -> Iterator[Disclosure]:
        partial = stage.parameters[0]
        tensors = [i for i, leaf in enumerate(flat(partial.type)) if not isinstance(leaf, StructType)]
        marks = op.attributes.get("secure", (OPEN,) * len(tensors))
        bare = frozenset(i for i, mark in zip(tensors, marks, strict=True) if mark == OPEN)
        for leaf in sorted(bare & taints[partial.name]):
            live = self.live.of(stage, frozenset([leaf]))
            grows = not _is_static(flat(partial.type)[leaf]) and self._appends(stage, live)
            sent_values = sent_by(fold, stage, self.types)
            for name in sent_for(live, stage, sent_values):
                sent = sent_values[name]
                for path, type_ in tensors_of(sent.type, live[name] & taints[name]):
                    tensor = f"{sent.label}.{path}" if path and path[0] != "[" else sent.label + path
                    yield Disclosure(tensor, type_, accumulation_line(stage, name) or op.location, grows)

    def _appends(self, stage: Function, live: Live) -> bool:
        """Whether an operation on live leaves of the partial puts rows together."""
        from fedcore.graphs.graphdef.form.parsed_graph import operations_of

        folded = {stage.parameters[0].name}
        for op in stage.operations:
            if folded.intersection(o.name for o in op.operands if isinstance(o, Ref)):
                folded.add(op.name)
                graphs = [self.plan[o.name] for o in op.operands if isinstance(o, Symbol)]
                inside = [operations_of(g.digest, self.plan.blob(g.digest)) for g in graphs if isinstance(g, Graph)]
                if live.get(op.name) and (op.kind == "append_rows" or any("ConcatV2" in ops for ops in inside)):
                    return True
        return False


def _is_static(leaf: Type) -> bool:
    return not isinstance(leaf, TensorType) or is_static(leaf.shape)


def _client_leaves(type_: Type) -> Leaves:
    """The leaves of a parameter of the program that clients hold."""
    if isinstance(type_, FederatedType):
        return everything(type_) if type_.placement.name == "CLIENTS" else NOTHING
    if not isinstance(type_, StructType):
        return NOTHING
    parts = enumerate(type_.types)
    return frozenset(start_of(type_, i) + leaf for i, element in parts for leaf in _client_leaves(element))


def tensors_of(type_: Type, leaf_set: Leaves) -> Iterator[tuple[str, Type]]:
    """The paths and types of some leaves."""
    solid = (i for i, leaf in enumerate(flat(type_)) if not isinstance(leaf, StructType))
    yield from (tensor for i, tensor in zip(solid, leaves(type_), strict=True) if i in leaf_set)


def sent_for(live: Live, stage: Function, sent: Container[str]) -> list[str]:
    """The values that clients send for some leaves of the partial, in order of the stage.

    A value that is sent for other leaves only is left out, also where these leaves are computed from it.

    Args:
        live: the liveness of the stage for the leaves.
        sent: the names of all values that clients send.
    """
    by_name = {op.name: op for op in stage.operations}
    folded = {stage.parameters[0].name}
    names = [stage.result.name]
    for op in stage.operations:
        operands = [o.name for o in op.operands if isinstance(o, Ref)]
        if folded.intersection(operands):
            folded.add(op.name)
            names += operands if live.get(op.name) else []
    waiting = [n for n in names if n not in folded and live.get(n)]
    visited = set(waiting)
    while waiting:
        name = waiting.pop()
        if name not in sent and name in by_name:
            operands = [o.name for o in by_name[name].operands if isinstance(o, Ref)]
            waiting += (new := [n for n in operands if n not in visited and live.get(n)])
            visited.update(new)
    return [n for n in (*(p.name for p in stage.parameters), *by_name) if n in visited and n in sent]


def accumulation_line(stage: Function, name: str) -> Location | None:
    """The line of the operation that accumulates a client's value into the partial, the first parameter of a stage."""
    folded = {stage.parameters[0].name}
    for op in stage.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if folded.intersection(names):
            folded.add(op.name)
            if name in names:
                return op.location
    return None

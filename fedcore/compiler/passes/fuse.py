"""The pass `fuse`: few large TensorFlow graphs in the place of many small operations of a stage.

A run is a set of operations with one key (`_graph_keys`), which become one call: no operation outside of graphs, such
as a reduction of a sequence, lies between them, and all of them are on one side of what clients send (`ALONE` …).
`fedcore.graphs.stages.fusing` traces the graph of a run.
"""

import collections
import graphlib
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

import attrs

from fedcore.compiler.distinct_results import (
    Contributions,
    assemble,
    contributions,
    distinct_results,
    part_operations,
)
from fedcore.compiler.passes.cse import cse
from fedcore.compiler.passes.dce import dce
from fedcore.compiler.passes.grappler import grappler as optimised
from fedcore.compiler.pipeline import compiler_pass
from fedcore.intrinsics.planned import split_operands
from fedcore.intrinsics.sent_values import client_cut
from fedcore.ir import Builder, Function, Module, ModuleBuilder, Operation, Parameter, Ref, Value
from fedcore.ir.module import Graph
from fedcore.ir.module_builder import rename_symbols
from fedcore.ir.operations import lookup
from fedcore.ir.structural import call, item
from fedcore.ir.value_names import ValueNames
from fedcore.types import FunctionType, SequenceType, StructType, Type, contains

if TYPE_CHECKING:
    from fedcore.graphs.capture.graph_capture import TracedGraph

GraphKeys = dict[str, tuple[int, int]]
"""By operation or parameter the key of its graph, (side, level): its side of what clients send (`ALONE` …), and the
number of operations outside graphs on the longest path to it."""

ALONE, RECOMPUTED, DEPENDENT = range(3)
"""Sides: a client's own values, values that follow from what it sends, and values that depend on the partial."""

Users = collections.defaultdict[str, list[Operation]]
"""By binding the operations that take it as an operand, in their order."""

_CONSTANTS = ("literal", "generic_zero")
_BOOKKEEPING = ("struct", "item", *_CONSTANTS)  # a run of these only becomes no graph


@compiler_pass("fuse")
def fuse(module: Module, *, grappler: bool = False) -> Module:
    """Merges each maximal run of operations between two sequence operations of a stage into one graph.

    Operations that depend on the partial get a graph apart from those of a client alone, so that clients can be
    vectorised while their fold keeps its order. Operations that follow from what a client sends get one too, so that
    their results are not sent (`client_cut`). Equal operations of a stage run once; a graph has no inputs that it
    does not read. With `grappler`, the pass `grappler` then runs over the graphs.
    """
    if module.stage != "planned":
        return module
    fused = dce(cse(module))
    fusion = _Fusion(fused)
    if any(map(fusion.changes, fused.functions[:-1])):
        fused = dce(cse(fusion.run()))  # equal literals and items beside the graphs
    return optimised(fused) if grappler else fused


def _runs(function: Function, keys: GraphKeys, users: Users) -> list[list[Operation]]:
    """The runs of a function in the order of their keys, without runs of bookkeeping only."""
    runs: dict[tuple, list[Operation]] = {}
    outside = _find_outside_graphs(function)
    for op in function.operations:
        if op.name not in outside and not _pairs_kept_values(function, op):
            runs.setdefault(keys[op.name], []).append(op)
    ordered = [runs[key] for key in sorted(runs) if any(op.kind not in _BOOKKEEPING for op in runs[key])]
    return [_without_bookkeeping(function, run, users) for run in ordered]


def _users(function: Function) -> Users:
    users: Users = collections.defaultdict(list)
    for op in function.operations:
        for name in dict.fromkeys(o.name for o in op.operands if isinstance(o, Ref)):
            users[name].append(op)
    return users


def _without_bookkeeping(function: Function, run: list[Operation], users: Users) -> list[Operation]:
    """The only call of a run instead of the run, unless a graph of the run would take or return less."""
    work = [op for op in run if op.kind not in _BOOKKEEPING]
    if len(work) != 1 or work[0].kind != "call":
        return run
    return run if _takes_constants(run, work[0]) or _returns_too_much(function, work[0], users) else work


def _takes_constants(run: list[Operation], call_: Operation) -> bool:
    """Whether a constant of the run is among the operands of the call, perhaps inside structs."""
    made_by = {op.name: op for op in run}
    stack, visited = [call_], {call_.name}
    while stack:
        op = stack.pop()
        if op.kind in _CONSTANTS:
            return True
        names = {o.name for o in op.operands if isinstance(o, Ref) and o.name in made_by}
        stack += [made_by[n] for n in names - visited]
        visited |= names
    return False


def _returns_too_much(function: Function, call_: Operation, users: Users) -> bool:
    """Whether only some elements of the call's result are used."""
    if function.result == Ref(call_.name) or any(op.kind != "item" for op in users[call_.name]):
        return False
    used_indices = {op.attributes["index"] for op in users[call_.name]}
    return isinstance(call_.type, StructType) and len(used_indices) < len(call_.type)


def _find_outside_graphs(function: Function) -> set[str]:
    """The operations that no graph takes: those on sequences and functions, and messages.

    So are operations that append rows to others, the items that select their operands, and the structs of their
    results, so that a graph reads no rows of other clients.
    """
    appended_to = {o.name for op in function.operations if op.kind == "append_rows" for o in op.operands}
    for op in reversed(function.operations):
        if op.kind == "item" and op.name in appended_to:
            appended_to.add(op.operands[0].name)
    outside, with_rows = set[str](), set[str]()
    for op in function.operations:
        names = {o.name for o in op.operands if isinstance(o, Ref)}
        if op.kind == "append_rows" or (op.kind == "struct" and names & with_rows):
            with_rows.add(op.name)
        selects_rows = op.kind == "item" and names <= appended_to
        if (
            selects_rows
            or _is_per_element(op)
            or op.kind in ("bind", "message")
            or contains(op.type, _is_sequence_or_function)
        ):
            outside.add(op.name)
    return outside | with_rows


def _is_per_element(op: Operation) -> bool:
    """Whether the operation runs a function for each element of a sequence."""
    return lookup(op.kind).per_element is not None


def _pairs_kept_values(function: Function, op: Operation) -> bool:
    """Whether the operation makes the result <partial,kept> of a fold's stage, which no graph of the stage takes."""
    is_pair = isinstance(op.type, StructType) and op.type.names == ("partial", "kept")
    return function.result == Ref(op.name) and op.kind == "struct" and is_pair


def _is_sequence_or_function(type_: Type) -> bool:
    return isinstance(type_, SequenceType | FunctionType)


def _graph_keys(function: Function, partial: str | None, recomputed: Set[str]) -> GraphKeys:
    """The keys of all operations and parameters. Operations with equal keys can be merged into one graph.

    Args:
        partial: the parameter that holds the partial; None if there is none.
        recomputed: the operations that follow from what clients send, see `ClientCut`.
    """
    keys = {p.name: (DEPENDENT if p.name == partial else ALONE, 0) for p in function.parameters}
    in_graphs, outside = set[str](), _find_outside_graphs(function)
    for op in function.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        side = max((keys[n][0] for n in names), default=ALONE)
        level = max((keys[n][1] for n in names), default=0)
        if op.name not in outside:
            in_graphs.add(op.name)
        elif _is_per_element(op) or not in_graphs.isdisjoint(names):  # others read no graph, so they split none
            level += 1
        keys[op.name] = (max(side, RECOMPUTED) if op.name in recomputed else side, level)
    return keys


def _units(function: Function, runs: list[list[Operation]]) -> list[list[Operation]]:
    """The runs, and each operation outside of them as a list of one, in topological order."""
    unit_of = {op.name: run for run in runs for op in run}
    for op in function.operations:
        unit_of.setdefault(op.name, [op])
    sorter: graphlib.TopologicalSorter = graphlib.TopologicalSorter()
    for op in function.operations:
        unit_name = unit_of[op.name][0].name  # of its first operation
        operands = [o.name for o in op.operands if isinstance(o, Ref) and o.name in unit_of]
        sorter.add(unit_name, *sorted({unit_of[n][0].name for n in operands} - {unit_name}))
    return [unit_of[name] for name in sorter.static_order()]


def _is_used_outside(function: Function, op: Operation, inside: set[str], users: Users) -> bool:
    """Whether the result of the operation is used outside of its run, whose operations are `inside`."""
    return function.result == Ref(op.name) or any(user.name not in inside for user in users[op.name])


def _find_open_structs(run: list[Operation], output_names: set[str]) -> list[Operation]:
    """The structs of the client contribution, which are put together outside of the graph so that their parts show.

    Args:
        output_names: the operations of the run whose results the graph returns; gets the operands of the structs.
    """
    inside = {op.name for op in run}
    structs = []
    for op in reversed(run):
        if op.name in output_names and op.kind == "struct" and op.operands:
            structs.append(op)
            output_names.update(o.name for o in op.operands if o.name in inside)
    return structs[::-1]


class _Fusion:
    """Fuses the runs of all functions of a planned module; `run` returns the new module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.target = ModuleBuilder(module.stage)
        self.target.blobs.update(module.blobs)
        self.names: dict[str, str] = {}  # by name of a function or graph in `module`, its name in `target`
        types = module.main.types()
        self.broadcasts: dict[str, int] = {}  # by name of a fold's stage, the number of broadcasts among its operands
        self.recomputed: dict[str, Set[str]] = {}  # by name of a fold's stage, see `ClientCut.recomputed`
        for op in module.main.operations:
            if op.kind == "fold":
                operands = [types[o.name] for o in op.operands if isinstance(o, Ref)]
                self.broadcasts[op.operands[1].name] = split_operands(operands)
                self.recomputed[op.operands[1].name] = client_cut(module, op).recomputed

    def _keys(self, function: Function) -> GraphKeys:
        return _graph_keys(function, self._partial(function), self.recomputed.get(function.name, frozenset()))

    def _partial(self, function: Function) -> str | None:
        """The parameter that holds the partial, the first of a fold's stage; None in other functions."""
        return function.parameters[0].name if function.name in self.broadcasts else None

    def changes(self, function: Function) -> bool:
        """Whether a run of the function becomes another graph."""
        keys = self._keys(function)
        contributions = self._contributions(function, keys)
        return not all(self._is_final(run, contributions) for run in _runs(function, keys, _users(function)))

    def run(self) -> Module:
        main = self.module.main
        for function in self.module.functions[:-1]:
            self.names[function.name] = self._add_fused(function)
        self.target.add(rename_symbols(main, self.names))
        return self.target.build()

    def _symbol(self, builder: Builder, name: str) -> Value:
        """The function or graph of `module` as a symbol of the target; a graph is added at its first use."""
        if name not in self.names:
            self.names[name] = self.target.add(self.module[name])
        return builder.symbol(self.names[name])

    def _add_fused(self, function: Function) -> str:
        """Adds the function to the target, with a call of a graph in place of each run; returns its name there."""
        builder = Builder(self.target, locate=lambda: None)
        bindings = {p.name: builder.parameter(p.name, p.type) for p in function.parameters}
        keys, users = self._keys(function), _users(function)
        contributions = self._contributions(function, keys)
        runs = _runs(function, keys, users)
        run_ids = {id(run) for run in runs}
        for unit in _units(function, runs):
            if id(unit) in run_ids:
                side, _ = keys[unit[0].name]
                self._fuse_run(builder, function, unit, bindings, users, contributions, dependent=side == DEPENDENT)
                continue
            (op,) = unit
            operands = [bindings[o.name] if isinstance(o, Ref) else self._symbol(builder, o.name) for o in op.operands]
            with builder.at(op.location):
                bindings[op.name] = builder.append(op.kind, operands, op.type, op.attributes)
        return builder.finish(
            function.name,
            bindings[function.result.name],
            placement=function.placement,
            attributes=function.attributes,
            location=function.location,
        )

    def _fuse_run(
        self,
        builder: Builder,
        function: Function,
        run: list[Operation],
        bindings: dict[str, Value],
        users: Users,
        contributions: Contributions,
        *,
        dependent: bool,
    ) -> None:
        """Replaces a run by one call; binds the results that are used outside of the run.

        Args:
            builder: of the new function.
            function: the function of the run.
            bindings: by the names of `function`, the values of `builder`; gets the results of the run.
            dependent: whether the run depends on the partial.
        """
        inside = {op.name for op in run}
        output_names = {op.name for op in run if _is_used_outside(function, op, inside, users)}
        is_contribution = self._partial(function) is not None and not dependent
        opened = _find_open_structs(run, output_names) if is_contribution else []
        output_names -= {op.name for op in opened}
        outputs = []
        for op in (op for op in run if op.name in output_names):
            if op.kind not in _CONSTANTS:
                outputs.append(op)
                continue
            with builder.at(op.location):  # as a result of a graph, a constant would count as a value of each client
                bindings[op.name] = builder.append(op.kind, [], op.type, op.attributes)
        if self._is_final(run, contributions):
            (op,) = run
            operands = [self._symbol(builder, op.operands[0].name), *(bindings[o.name] for o in op.operands[1:])]
            with builder.at(op.location):
                bindings[op.name] = builder.append("call", operands, op.type, op.attributes)
            return
        self._call_run(builder, function, run, outputs, bindings, contributions, dependent=dependent)
        for op in opened:
            with builder.at(op.location):
                parts = [bindings[o.name] for o in op.operands]
                bindings[op.name] = builder.append("struct", parts, op.type, op.attributes)

    def _call_run(
        self,
        builder: Builder,
        function: Function,
        run: list[Operation],
        outputs: list[Operation],
        bindings: dict[str, Value],
        contributions: Contributions,
        *,
        dependent: bool,
    ) -> None:
        """Calls the graph of a run, and binds its outputs; see `_fuse_run`.

        The graph does not return constants and leaves that clients send anyway: these are put together outside of it.

        Args:
            outputs: the operations of the run whose results are used outside of it.
        """
        inside = {op.name for op in run}
        operands = [o.name for op in run for o in op.operands if isinstance(o, Ref)]
        inputs = {name: bindings[name].type for name in operands if name not in inside}
        work = [op for op in run if op.kind not in _BOOKKEEPING]
        name = f"{function.name}_{'fold' if dependent else 'work'}"
        if len(work) == 1 and work[0].kind == "call":
            name = work[0].operands[0].name  # of the graph that becomes smaller
        traced, used = self._trace(function, run, inputs, outputs)
        distinct = None
        if "effects" not in traced.side_effects and any(op.name in contributions.sent for op in outputs):
            result_types = [(op.name, op.type) for op in outputs]
            distinct = distinct_results(
                traced, traced.data, [(n, inputs[n]) for n in used], result_types, contributions
            )
        if distinct is None:
            self._call(builder, name, run, (traced, used), outputs, bindings)
            return
        chains = part_operations(outputs, distinct.computed)
        computed = [chain[-1] for chain in chains]
        if computed:
            run = [*run, *{op.name: op for chain in chains for op in chain[1:]}.values()]
            self._call(builder, name, run, self._trace(function, run, inputs, computed), computed, bindings)
        results = [bindings[op.name] for op in computed]
        for op, source in zip(outputs, distinct.sources, strict=True):
            with builder.at(op.location):
                bindings[op.name] = assemble(builder, source, op.type, bindings, results)

    def _is_final(self, run: list[Operation], contributions: Contributions) -> bool:
        """Whether a run is one call of a graph that cannot be made smaller, so that the call stays as it is."""
        if len(run) > 1 or run[0].kind != "call":
            return False
        op, graph = run[0], self.module[run[0].operands[0].name]
        if not isinstance(graph, Graph):
            return False
        if op.name not in contributions.sent or graph.attributes.get("effects"):
            return True
        types = [] if graph.type.parameter is None else [graph.type.parameter]
        if len(op.operands) > 2 and isinstance(graph.type.parameter, StructType):  # several arguments are one struct
            types = list(graph.type.parameter.types)
        inputs = [(o.name, t) for o, t in zip(op.operands[1:], types, strict=True)]
        return (
            distinct_results(graph, self.module.blob(graph.digest), inputs, [(op.name, op.type)], contributions) is None
        )

    def _contributions(self, function: Function, keys: GraphKeys) -> Contributions:
        """The contributions of clients in the stage of a fold; none in other functions."""
        if function.name not in self.broadcasts:
            return Contributions()
        dependent = {name for name, (side, _) in keys.items() if side == DEPENDENT}
        return contributions(function, dependent, self.broadcasts[function.name])

    def _call(
        self,
        builder: Builder,
        name: str,
        run: list[Operation],
        traced: "tuple[TracedGraph, list[str]]",
        outputs: list[Operation],
        bindings: dict[str, Value],
    ) -> None:
        """Calls the graph of a run; binds the results of the output operations.

        Args:
            traced: as `_trace` returns it.
        """
        graph, used = traced
        self.target.blobs[graph.digest] = graph.data
        with builder.at(next((op.location for op in reversed(run) if op.location), None)):
            callee = builder.symbol(self.target.add(graph.with_name(name)))
            out = call.emit([callee, *(bindings[n] for n in used)], builder=builder)
            for i, op in enumerate(outputs):
                bindings[op.name] = out if len(outputs) == 1 else item.emit([out], builder=builder, index=i)

    def _trace(
        self, function: Function, run: list[Operation], inputs: Mapping[str, Type], outputs: list[Operation]
    ) -> "tuple[TracedGraph, list[str]]":
        """Traces a run as one graph: (the graph, the names of the inputs that it reads, in the order of parameters).

        Args:
            function: the stage of the run; names of the graph's results follow its values.
            run: operations of the stage, perhaps with items of their results that the stage does not have.
            inputs: by name of each value outside of the run that it reads, its type.
            outputs: the operations of the run whose results the graph returns.
        """
        from fedcore.graphs.stages.fusing import trace_operations

        local = attrs.evolve(
            function,
            parameters=tuple(Parameter(name, type_) for name, type_ in inputs.items()),
            operations=tuple(run),
            placement=None,
        )
        whole = attrs.evolve(function, operations=(*function.operations, *run))
        element_names = ValueNames(whole).distinct([op.name for op in outputs], unnamed=self._partial(function))
        return trace_operations(self.module, local, list(inputs), element_names)

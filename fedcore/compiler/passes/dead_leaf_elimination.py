"""Dead-leaf elimination, and one broadcast for each leaf.

In: a plan after `partition`. Out: the plan with stages that take and return live leaves only. If clients read only `a`
of a broadcast `<a=float32,b=float32>`, the stage that makes it returns `a` alone, and 32 bits cross in place of 64.
`liveness` computes the live leaves. This pass rebuilds each function. It represents a value of the old plan by a tree:
a `_Held` is one value of the new plan with some of its leaves, a tuple has a tree for each element.

Decision 0020.
"""

import collections
import functools
from collections.abc import Mapping

import attrs
import numpy as np

from fedcore.compiler.leaf_origins import LeafOrigins, Numbers
from fedcore.compiler.leaf_sets import (
    NOTHING,
    Leaves,
    count,
    elements_of,
    everything,
    flat,
    has_zero,
    nonempty_leaves,
    part_of,
    split,
    start_of,
    within,
)
from fedcore.compiler.liveness import LEAFWISE, Live, Liveness
from fedcore.compiler.passes.dce import dce
from fedcore.compiler.pipeline import compiler_pass
from fedcore.ir import Builder, Function, Module, ModuleBuilder, Operation, Ref, Symbol, Value
from fedcore.ir.module_builder import rename_symbols
from fedcore.ir.operations import lookup
from fedcore.ir.reachable import named_by
from fedcore.ir.structural import item
from fedcore.types import FederatedType, StructType, TensorType, Type, is_static, member_of

_STRUCTURAL = ("struct", "item")


@compiler_pass("dead-leaf-elimination")
def dead_leaf_elimination(module: Module) -> Module:
    """Drops dead leaves from the parameters and results of stages, and so from broadcasts and partials.

    If clients read one element of a broadcast struct, only that element is broadcast. A partial holds the leaves that
    the server or its own accumulation reads. Client values of the caller stay whole.
    """
    if module.stage != "planned":
        return module
    elimination = _DeadLeafElimination(module)
    pruned = dce(elimination.run())
    if elimination.sent_once:  # some results of server stages may be dead now
        pruned = dce(_DeadLeafElimination(pruned).run())
    return module if _forms(pruned) == _forms(module) else pruned


def _forms(module: Module) -> collections.Counter:
    return collections.Counter(map(_form, module.functions))


def _form(function: Function) -> tuple:
    """Types of parameters, operations and result, without structs and items: equal if nothing was dropped."""
    types = function.types()
    work = tuple(
        (op.kind, op.type, *(types[o.name] for o in op.operands if isinstance(o, Ref)))
        for op in function.operations
        if op.kind not in _STRUCTURAL
    )
    return tuple(p.type for p in function.parameters), work, function.result_type


@attrs.define(eq=False)
class _Held:
    """A value of the new plan that holds the leaves `kept` of a value that has `type` in the old plan."""

    value: Value
    type: Type
    kept: Leaves
    parts: dict[int, "_Tree"] = attrs.field(factory=dict)

    @functools.cached_property
    def positions(self) -> dict[int, int]:
        """Positions in `value` of the elements of `type` that have kept leaves."""
        is_kept = [bool(mine) for _, _, mine in split(StructType(elements_of(self.type)), self.kept)]
        return {i: position for position, i in enumerate(i for i, mine in enumerate(is_kept) if mine)}


_Tree = _Held | tuple | None
"""A value of the old plan: one value with some of its leaves, or a tree for each element; None without live leaves."""


class _Body:
    """A function under construction, with conversions between trees and values."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.declared: dict[int, _Held] = {}  # the parameter of each broadcast, by the id of its value

    def held(self, value: Value, type_: Type, leaf_set: Leaves | None = None) -> _Held:
        return _Held(value, type_, everything(type_) if leaf_set is None else leaf_set)

    def element(self, tree: _Tree, index: int) -> _Tree:
        if tree is None or isinstance(tree, tuple):
            return None if tree is None else tree[index]
        if index not in tree.parts:
            tree.parts[index] = self._element(tree, index)
        return tree.parts[index]

    def _element(self, tree: _Held, index: int) -> _Tree:
        leaf_set = within(tree.kept, start_of(tree.type, index), elements_of(tree.type)[index])
        if not leaf_set:
            return None
        positions, value = tree.positions, tree.value
        if len(positions) > 1 or len(tree.kept) == count(tree.type):  # else the value is the only kept element
            value = item.emit([value], builder=self.builder, index=positions[index])
        return _Held(value, _element_type(tree.type, index), leaf_set)

    def value(self, tree: _Tree, type_: Type, live_leaves: Leaves) -> Value:
        """A value with exactly the wanted leaves of the tree, which has the type in the old plan."""
        if isinstance(tree, _Held) and tree.kept == live_leaves:
            return tree.value
        struct_type = part_of(type_, live_leaves)
        elements = enumerate(elements_of(type_))
        parts = [(i, t, within(live_leaves, start_of(type_, i), t)) for i, t in elements]
        values = [self.value(self.element(tree, i), t, mine) for i, t, mine in parts if mine]
        if len(values) == 1 and len(live_leaves) != count(type_):
            return values[0]
        return self.builder.append("struct", values, struct_type)

    def whole(self, tree: _Tree, type_: Type) -> Value:
        """A value of the type, with zeros, false or empty text in place of dead leaves."""
        if isinstance(tree, _Held) and len(tree.kept) == count(type_):
            return tree.value
        if elements_of(type_) and not (tree is None and has_zero(type_)):
            parts = [self.whole(self.element(tree, i), t) for i, t in enumerate(elements_of(type_))]
            return self.builder.append("struct", parts, type_)
        if has_zero(type_):
            return self.builder.append("generic_zero", [], type_)
        assert isinstance(type_, TensorType)
        assert is_static(type_.shape)
        return self.builder.literal(np.full(type_.shape, b"" if type_.dtype.name == "str" else False), type_)


def _is_empty(leaf: Type) -> bool:
    return isinstance(member_of(leaf), StructType)


def _paths(type_: Type) -> list[tuple[int, ...]]:
    """The path of indices to each leaf; an empty struct counts as a leaf."""
    elements = elements_of(type_)
    if not elements:
        return [()]
    return [(i, *path) for i, element in enumerate(elements) for path in _paths(element)]


def _element_type(type_: Type, index: int) -> Type:
    element = elements_of(type_)[index]
    return attrs.evolve(type_, member=element) if isinstance(type_, FederatedType) else element


def _holding(tree: _Tree, live_leaves: Leaves, type_: Type) -> list[_Held]:
    """The values of the tree that hold wanted leaves, in order."""
    if isinstance(tree, _Held):
        return [tree] if tree.kept & live_leaves else []
    holders = []
    for i, part in enumerate(tree or ()):
        element = elements_of(type_)[i]
        holders += _holding(part, within(live_leaves, start_of(type_, i), element), element)
    return holders


class _DeadLeafElimination:
    """Rebuilds a plan from the live leaves of each value."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.live = Liveness(module)
        self.needed = self.live.analyse_plan()
        self.target = ModuleBuilder(module.stage)
        self.target.blobs.update(module.blobs)
        self.names: dict[str, str] = {}
        self.main = _Body(Builder(self.target, locate=lambda: None))
        self.known: dict[str, _Tree] = {}
        self.crossed: dict[int, tuple[_Held, tuple[int, ...]]] = {}  # broadcast leaves, by value number
        self.sent_once = False
        """Whether duplicate leaves of broadcasts were removed."""

    def run(self) -> Module:
        main, builder = self.module.main, self.main.builder
        for p in main.parameters:
            self.known[p.name] = self.main.held(builder.parameter(p.name, p.type), p.type)
        for op in main.operations:
            live_leaves = self.needed[op.name]
            with builder, builder.at(op.location):
                self.known[op.name] = self._operation(op, live_leaves) if live_leaves else None
        with builder, builder.at(main.result_location):
            result = self.main.value(self.known[main.result.name], main.result_type, everything(main.result_type))
        builder.finish(main.name, result, attributes=main.attributes, location=main.location)
        return self.target.build()

    # The main function.

    def _operation(self, op: Operation, live_leaves: Leaves) -> _Tree:
        trees = [self.known[o.name] for o in op.operands if isinstance(o, Ref)]
        stages = [self.module.function(o.name) for o in op.operands if isinstance(o, Symbol)]
        if op.kind == "struct":
            return tuple(trees)
        if op.kind == "item":
            return self.main.element(trees[0], op.attributes["index"])
        if op.kind == "broadcast":
            return self._broadcast(op, trees[0], op.type, live_leaves, self._origins.of[op.name])
        if op.kind == "merge":
            return self._merge(op, stages[0], trees[0], live_leaves)
        if op.kind == "fold":
            return self._fold(op, stages[0], stages[1], trees, live_leaves)
        live = self.live.of(stages[0], live_leaves)
        return self._emit(op, [self._stage(stages[0], self._inputs(stages[0], trees, live), live_leaves)], live_leaves)

    def _emit(self, op: Operation, rebuilt_stages: list[tuple[str, list[Value]]], live_leaves: Leaves) -> _Tree:
        """Appends the operation on rebuilt stages, with the arguments of the last stage."""
        symbols = [self.main.builder.symbol(name) for name, _ in rebuilt_stages]
        value = lookup(op.kind).emit([*symbols, *rebuilt_stages[-1][1]], builder=self.main.builder, **_without_bits(op))
        return self.main.held(value, op.type, live_leaves)

    def _inputs(self, stage: Function, trees: list[_Tree], live: Live, skip: int = 0) -> list[tuple[_Tree, Leaves]]:
        """For each parameter its argument and its live leaves."""
        parameters = stage.parameters[skip:]
        return [(tree, live.get(p.name, NOTHING)) for tree, p in zip(trees, parameters, strict=True)]

    @functools.cached_property
    def _origins(self) -> LeafOrigins:
        return LeafOrigins(self.module)

    def _broadcast(self, op: Operation, tree: _Tree, type_: Type, live_leaves: Leaves, numbers: Numbers) -> _Tree:
        """Broadcasts the wanted leaves: together if one value at the server holds exactly these, else by element.

        A leaf that was broadcast before is taken from that broadcast. The broadcast of a constant has 0 bits, unless
        it is sent once.
        """
        constants = set() if op.attributes.get("once") else self._origins.constants
        elements = elements_of(type_)
        alone = not elements and not _is_empty(type_)
        if alone and numbers[0] in self.crossed and op.name not in self._returned:
            self.sent_once = True
            held, path = self.crossed[numbers[0]]
            crossed: _Tree = held
            for index in path:
                crossed = self.main.element(crossed, index)
            return crossed
        together = not elements or op.name in self._returned or self._is_new(type_, live_leaves, numbers, constants)
        if together and isinstance(tree, _Held) and tree.kept == live_leaves:
            attributes = _without_bits(op)
            if alone and numbers[0] in constants:
                attributes["bits"] = 0
            value = lookup("broadcast").emit([tree.value], builder=self.main.builder, **attributes)
            held = self.main.held(value, type_, live_leaves)
            self.crossed.update((numbers[i], (held, path)) for i, path in enumerate(_paths(type_)) if i in live_leaves)
            return held
        parts: list[_Tree] = []
        for i, element in enumerate(elements):
            start = start_of(type_, i)
            mine, part_type = within(live_leaves, start, element), _element_type(type_, i)
            part_numbers = numbers[start : start + count(element)]
            parts.append(
                self._broadcast(op, self.main.element(tree, i), part_type, mine, part_numbers) if mine else None
            )
        return tuple(parts)

    @functools.cached_property
    def _returned(self) -> set[str]:
        """The values that the plan returns, alone or in structs. An all-equal one of them must stay one value."""
        names = {self.module.main.result.name}
        for op in reversed(self.module.main.operations):
            if op.name in names and op.kind in ("struct", "item"):
                names.update(o.name for o in op.operands)
        return names

    def _is_new(self, type_: Type, live_leaves: Leaves, numbers: Numbers, constants: set[int]) -> bool:
        """Whether the wanted leaves are distinct, not broadcast before, and not constant."""
        mine = [numbers[i] for i, leaf in enumerate(flat(type_)) if i in live_leaves and not _is_empty(leaf)]
        return len(set(mine)) == len(mine) and not (self.crossed.keys() & set(mine) or constants.intersection(mine))

    def _merge(self, op: Operation, join: Function, tree: _Tree, live_leaves: Leaves) -> _Tree:
        assert isinstance(tree, _Held)
        name, _ = self._stage(join, [(tree, live_leaves), (tree, live_leaves)], live_leaves)
        return self._emit(
            attrs.evolve(op, attributes=_prune_attributes(op, live_leaves)), [(name, [tree.value])], live_leaves
        )

    def _fold(self, op: Operation, zero: Function, stage: Function, trees: list[_Tree], live_leaves: Leaves) -> _Tree:
        keeps = bool(op.attributes.get("keeps"))
        partial_type = elements_of(stage.result_type)[0] if keeps else stage.result_type
        partial = within(live_leaves, 0, partial_type)
        live, live_in_zero = self.live.of(stage, live_leaves), self.live.of(zero, partial)
        operands = self._inputs(stage, trees, live, skip=1)
        for i, p in enumerate(zero.parameters):
            operands[i] = (operands[i][0], operands[i][1] | live_in_zero.get(p.name, NOTHING))
        worked = self._stage(stage, operands, live_leaves, partial=partial)
        started = self._stage(zero, operands[: len(zero.parameters)], partial)
        return self._emit(op, [started, worked], live_leaves)

    # Functions.

    def _stage(
        self,
        function: Function,
        operands: list[tuple[_Tree, Leaves]],
        live_leaves: Leaves,
        partial: Leaves | None = None,
    ) -> tuple[str, list[Value]]:
        """Rebuilds a stage with parameters for its live leaves; returns its name and the arguments.

        Args:
            operands: for each parameter its argument and its live leaves.
            live_leaves: live leaves of the result.
            partial: live leaves of the partial, a first parameter without an operand. None: there is no partial.
        """
        body = _Body(Builder(self.target, locate=lambda: None))
        bindings: dict[str, _Tree] = {}
        parameters = list(function.parameters)
        if partial is not None:
            first = parameters.pop(0)
            bindings[first.name] = self._parameter(body, first.name, first.type, partial)
        arguments: list[Value] = []
        for p, (tree, need) in zip(parameters, operands, strict=True):
            bindings[p.name] = self._declare(body, p.name, tree, p.type, need, arguments)
        return self._function(function, body, bindings, live_leaves), arguments

    def _declare(self, body: _Body, name: str, tree: _Tree, type_: Type, need: Leaves, arguments: list) -> _Tree:
        """Declares a parameter for each value of the tree that holds needed leaves; appends these to `arguments`."""
        if isinstance(tree, _Held) and id(tree.value) in body.declared:
            return body.declared[id(tree.value)]
        holding = _holding(tree, need, type_)
        if isinstance(tree, tuple):
            elements = enumerate(elements_of(type_))
            parts = [(i, t, within(need, start_of(type_, i), t)) for i, t in elements]
            inner = name if len(holding) == 1 else f"{name}_"
            return tuple(
                self._declare(body, inner if len(holding) == 1 else f"{inner}{i}", tree[i], t, mine, arguments)
                for i, t, mine in parts
            )
        if not holding:
            return None
        (held,) = holding
        arguments.append(held.value)
        parameter = self._parameter(body, name, type_, held.kept)
        if getattr(held.value.type, "all_equal", False):
            body.declared[id(held.value)] = parameter
        return parameter

    def _parameter(self, body: _Body, name: str, type_: Type, leaf_set: Leaves) -> _Held:
        while name in body.builder.parameter_types:
            name = f"{name}_"
        return body.held(body.builder.parameter(name, part_of(type_, leaf_set)), type_, leaf_set)

    def _function(self, function: Function, body: _Body, bindings: dict[str, _Tree], live_leaves: Leaves) -> str:
        """Rebuilds a function over the parameters in `bindings`; returns its name. An unchanged function is copied."""
        live, types, builder = self.live.of(function, live_leaves), function.types(), body.builder
        for op in function.operations:
            mine = everything(op.type) if self.live.has_effect(op) else live.get(op.name, NOTHING)
            with builder.at(op.location):
                bindings[op.name] = self._local(body, op, mine, bindings, types) if mine else None
        with builder.at(function.result_location):
            result = body.value(bindings[function.result.name], function.result_type, live_leaves)
        placement, attributes, location = function.placement, function.attributes, function.location
        rebuilt = (placement, attributes, location)
        candidate = Function(
            function.name,
            tuple(builder.parameters),
            tuple(builder.operations),
            result.operand,
            result.type,
            *rebuilt,
        )
        if _form(candidate) == _form(function):
            return self.symbol(function.name)
        return self.target.add(candidate)

    def _local(self, body: _Body, op: Operation, live_leaves: Leaves, bindings: dict, types: dict[str, Type]) -> _Tree:
        if op.kind == "struct":
            return tuple(bindings[o.name] for o in op.operands)
        if op.kind == "item":
            return body.element(bindings[op.operands[0].name], op.attributes["index"])
        builder = body.builder
        if op.kind in LEAFWISE:
            needs = self.live.needs(op, live_leaves, types)
            values = [
                body.value(bindings[o.name], types[o.name], need) for o, need in zip(op.operands, needs, strict=True)
            ]
            return body.held(
                builder.append(op.kind, values, part_of(op.type, live_leaves), op.attributes), op.type, live_leaves
            )
        if op.kind == "bind" and isinstance(op.operands[0], Symbol):
            values = self._bind_operands(body, op, bindings, types)
            if len(values) == 1 and not op.attributes:  # a salt is part of the function's seed
                return body.held(values[0], op.type)
        else:
            values = [
                builder.symbol(self.symbol(o.name))
                if isinstance(o, Symbol)
                else body.whole(bindings[o.name], types[o.name])
                for o in op.operands
            ]
        return body.held(builder.append(op.kind, values, op.type, op.attributes), op.type)

    def _bind_operands(self, body: _Body, op: Operation, bindings: dict, types: dict[str, Type]) -> list[Value]:
        """The operands of a `bind`: a function that captures only live leaves, and the captured values."""
        function = self.module[op.operands[0].name]
        captured = list(op.operands[1:])
        if not isinstance(function, Function) or len(captured) > len(function.parameters):
            whole = [body.whole(bindings[o.name], types[o.name]) for o in captured]
            return [body.builder.symbol(self.symbol(function.name)), *whole]
        needs = self.live.needs(op, everything(op.type), types)[1:]
        inner = _Body(Builder(self.target, locate=lambda: None))
        inside: dict[str, _Tree] = {}
        values = []
        for p, o, need in zip(function.parameters, captured, needs, strict=False):
            if need:
                values.append(body.value(bindings[o.name], types[o.name], need))
                inside[p.name] = self._parameter(inner, p.name, p.type, need)
            else:
                inside[p.name] = None
        for p in function.parameters[len(captured) :]:
            inside[p.name] = self._parameter(inner, p.name, p.type, everything(p.type))
        name = self._function(function, inner, inside, everything(function.result_type))
        return [body.builder.symbol(name), *values]

    def symbol(self, name: str) -> str:
        """Copies a function or graph, with the symbols that it names, to the new plan; returns its name."""
        for inner in named_by(self.module, name, excluded=self.names):
            node = self.module[inner]
            self.names[inner] = self.target.add(
                rename_symbols(node, self.names) if isinstance(node, Function) else node
            )
        return self.names[name]


def _prune_attributes(op: Operation, live_leaves: Leaves) -> Mapping[str, object]:
    """The attributes of a merge of the wanted leaves only."""
    if "secure" not in op.attributes:
        return op.attributes
    ranges = zip(nonempty_leaves(op.type), op.attributes["secure"], strict=True)
    marks = tuple(range_ for i, range_ in ranges if i in live_leaves)
    attributes = {key: value for key, value in op.attributes.items() if key != "secure"}
    return {**attributes, "secure": marks} if any(marks) else attributes


def _without_bits(op: Operation) -> dict:
    return {key: value for key, value in op.attributes.items() if key != "bits" or value == 0}  # 0: a constant

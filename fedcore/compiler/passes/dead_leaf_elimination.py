"""Dead-leaf elimination, and one broadcast for each leaf.

In: a plan after `partition`. Out: the plan with stages that take and return live leaves only. If clients read only `a`
of a broadcast `<a=float32,b=float32>`, the stage that makes it returns `a` alone, and 32 bits cross in place of 64.
`liveness` computes the live leaves. This pass rebuilds each function. It represents a value of the old plan by a tree:
a `_HeldValue` is a value of the new plan with some of its leaves, a tuple has a tree for each element.

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
    if elimination.has_removed_duplicates:  # some results of server stages may be dead now
        pruned = dce(_DeadLeafElimination(pruned).run())
    return module if _function_forms(pruned) == _function_forms(module) else pruned


def _function_forms(module: Module) -> collections.Counter:
    """The forms of a module's functions, counted, since the pass may reorder and rename functions."""
    return collections.Counter(map(_form, module.functions))


def _form(function: Function) -> tuple:
    """Types of parameters, operations and result, without structs and items: equal if no leaf was dropped."""
    types = function.types()
    work = tuple(
        (op.kind, op.type, *(types[o.name] for o in op.operands if isinstance(o, Ref)))
        for op in function.operations
        if op.kind not in _STRUCTURAL
    )
    return tuple(p.type for p in function.parameters), work, function.result_type


@attrs.define(eq=False)
class _HeldValue:
    """A value of the new plan that holds some leaves of a value of the old plan.

    Args:
        value: the value of the new plan.
        type: the type of the value of the old plan.
        kept: the leaves of `type` that `value` holds.
        parts: by index the elements that were asked for, so that each is selected by one `item`.
    """

    value: Value
    type: Type
    kept: Leaves
    parts: dict[int, "_Tree"] = attrs.field(factory=dict)

    @functools.cached_property
    def positions(self) -> dict[int, int]:
        """By index of an element of `type` that has kept leaves, its position in `value`."""
        parts = split(StructType(elements_of(self.type)), self.kept)
        indices = [i for i, (_, _, kept) in enumerate(parts) if kept]
        return {index: position for position, index in enumerate(indices)}


_Tree = _HeldValue | tuple | None
"""A value of the old plan: one value with some of its leaves, or a tree for each element; None without live leaves."""


class _Body:
    """A function under construction, with conversions between trees and values."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        # By the id of a broadcast's value in main, the parameter that holds it: one for all its uses.
        self.shared_parameters: dict[int, _HeldValue] = {}

    def element(self, tree: _Tree, index: int) -> _Tree:
        """The tree of an element of a struct."""
        if tree is None or isinstance(tree, tuple):
            return None if tree is None else tree[index]
        if index not in tree.parts:
            tree.parts[index] = self._element(tree, index)
        return tree.parts[index]

    def _element(self, tree: _HeldValue, index: int) -> _Tree:
        leaf_set = within(tree.kept, start_of(tree.type, index), elements_of(tree.type)[index])
        if not leaf_set:
            return None
        positions, value = tree.positions, tree.value
        if len(positions) > 1 or len(tree.kept) == count(tree.type):  # else the value is the only kept element
            value = item.emit([value], builder=self.builder, index=positions[index])
        return _HeldValue(value, _element_type(tree.type, index), leaf_set)

    def value(self, tree: _Tree, type_: Type, live_leaves: Leaves) -> Value:
        """A value with exactly the live leaves of the tree, which has the type in the old plan."""
        if isinstance(tree, _HeldValue) and tree.kept == live_leaves:
            return tree.value
        struct_type = part_of(type_, live_leaves)
        elements = enumerate(elements_of(type_))
        parts = [(i, t, within(live_leaves, start_of(type_, i), t)) for i, t in elements]
        values = [self.value(self.element(tree, i), t, mine) for i, t, mine in parts if mine]
        if len(values) == 1 and len(live_leaves) != count(type_):
            return values[0]
        return self.builder.append("struct", values, struct_type)

    def whole(self, tree: _Tree, type_: Type) -> Value:
        """A value of the whole type, with zeros, false or empty text in place of the leaves that the tree lacks."""
        if isinstance(tree, _HeldValue) and len(tree.kept) == count(type_):
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
    """Whether a leaf is a struct without elements."""
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


def _find_holders(tree: _Tree, live_leaves: Leaves, type_: Type) -> list[_HeldValue]:
    """The values of the tree, which has the type in the old plan, that hold live leaves, in order."""
    if isinstance(tree, _HeldValue):
        return [tree] if tree.kept & live_leaves else []
    holders = []
    for i, part in enumerate(tree or ()):
        element = elements_of(type_)[i]
        holders += _find_holders(part, within(live_leaves, start_of(type_, i), element), element)
    return holders


class _DeadLeafElimination:
    """Rebuilds a plan from the live leaves of each value.

    Attributes:
        live: the liveness inside of stages; `needed` has the live leaves of each value of main.
        trees: by binding of the old main, its value in the new plan.
        new_symbols: by symbol of the old plan, that of its unchanged copy in the new plan.
        broadcast_leaves: by value number (`LeafOrigins`) of a leaf that is broadcast, the broadcast and the leaf's path
            in it.
        has_removed_duplicates: a leaf that is broadcast twice in the old plan is taken from its first broadcast.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.live = Liveness(module)
        self.needed = self.live.analyse_plan()
        self.target = ModuleBuilder(module.stage)
        self.target.blobs.update(module.blobs)
        self.new_symbols: dict[str, str] = {}
        self.main = _Body(Builder(self.target, locate=lambda: None))
        self.trees: dict[str, _Tree] = {}
        self.broadcast_leaves: dict[int, tuple[_HeldValue, tuple[int, ...]]] = {}
        self.has_removed_duplicates = False

    def run(self) -> Module:
        main, builder = self.module.main, self.main.builder
        for p in main.parameters:
            self.trees[p.name] = _HeldValue(builder.parameter(p.name, p.type), p.type, everything(p.type))
        for op in main.operations:
            live_leaves = self.needed[op.name]
            with builder, builder.at(op.location):
                self.trees[op.name] = self._operation(op, live_leaves) if live_leaves else None
        with builder, builder.at(main.result_location):
            result = self.main.value(self.trees[main.result.name], main.result_type, everything(main.result_type))
        builder.finish(main.name, result, attributes=main.attributes, location=main.location)
        return self.target.build()

    # The main function.

    def _operation(self, op: Operation, live_leaves: Leaves) -> _Tree:
        """Appends an operation of main for the live leaves of its result."""
        trees = [self.trees[o.name] for o in op.operands if isinstance(o, Ref)]
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
        return self._emit(
            op, [self._rebuild_stage(stages[0], self._arguments(stages[0], trees, live), live_leaves)], live_leaves
        )

    def _emit(self, op: Operation, rebuilt_stages: list[tuple[str, list[Value]]], live_leaves: Leaves) -> _Tree:
        """Appends the operation on rebuilt stages, with the arguments of the last stage.

        Args:
            rebuilt_stages: as `_rebuild_stage` returns them.
        """
        symbols = [self.main.builder.symbol(name) for name, _ in rebuilt_stages]
        value = lookup(op.kind).emit([*symbols, *rebuilt_stages[-1][1]], builder=self.main.builder, **_without_bits(op))
        return _HeldValue(value, op.type, live_leaves)

    def _arguments(self, stage: Function, trees: list[_Tree], live: Live, skip: int = 0) -> list[tuple[_Tree, Leaves]]:
        """For each parameter of a stage its argument and its live leaves.

        Args:
            skip: how many parameters, the first ones, have no argument.
        """
        parameters = stage.parameters[skip:]
        return [(tree, live.get(p.name, NOTHING)) for tree, p in zip(trees, parameters, strict=True)]

    @functools.cached_property
    def _origins(self) -> LeafOrigins:
        return LeafOrigins(self.module)

    def _broadcast(self, op: Operation, tree: _Tree, type_: Type, live_leaves: Leaves, numbers: Numbers) -> _Tree:
        """Broadcasts the live leaves: together if one value at the server holds exactly these, else by element.

        A leaf that was broadcast before is taken from that broadcast. The broadcast of a constant has 0 bits, unless
        it is sent once.

        Args:
            op: the broadcast of the old plan.
            tree, type_: the value, or the element of it, that is broadcast here, and its type in the old plan.
            live_leaves, numbers: live leaves and value numbers of that element.
        """
        constants = set() if op.attributes.get("once") else self._origins.constants
        elements = elements_of(type_)
        is_tensor = not elements and not _is_empty(type_)
        if is_tensor and numbers[0] in self.broadcast_leaves and op.name not in self._returned:
            self.has_removed_duplicates = True
            held, path = self.broadcast_leaves[numbers[0]]
            leaf: _Tree = held
            for index in path:
                leaf = self.main.element(leaf, index)
            return leaf
        together = not elements or op.name in self._returned or self._are_new(type_, live_leaves, numbers, constants)
        if together and isinstance(tree, _HeldValue) and tree.kept == live_leaves:
            attributes = _without_bits(op)
            if is_tensor and numbers[0] in constants:
                attributes["bits"] = 0
            value = lookup("broadcast").emit([tree.value], builder=self.main.builder, **attributes)
            held = _HeldValue(value, type_, live_leaves)
            self.broadcast_leaves.update(
                (numbers[i], (held, path)) for i, path in enumerate(_paths(type_)) if i in live_leaves
            )
            return held
        parts: list[_Tree] = []
        for i, element in enumerate(elements):
            start = start_of(type_, i)
            part_leaves, part_numbers = within(live_leaves, start, element), numbers[start : start + count(element)]
            part = self.main.element(tree, i) if part_leaves else None
            part_type = _element_type(type_, i)
            parts.append(self._broadcast(op, part, part_type, part_leaves, part_numbers) if part_leaves else None)
        return tuple(parts)

    @functools.cached_property
    def _returned(self) -> set[str]:
        """The values of main that the plan returns, alone or in structs; a broadcast that is returned stays whole."""
        names = {self.module.main.result.name}
        for op in reversed(self.module.main.operations):
            if op.name in names and op.kind in ("struct", "item"):
                names.update(o.name for o in op.operands)
        return names

    def _are_new(self, type_: Type, live_leaves: Leaves, numbers: Numbers, constants: set[int]) -> bool:
        """Whether the live leaves of a value are distinct, not broadcast before, and not constant."""
        mine = [numbers[i] for i, leaf in enumerate(flat(type_)) if i in live_leaves and not _is_empty(leaf)]
        return len(set(mine)) == len(mine) and not (
            self.broadcast_leaves.keys() & set(mine) or constants.intersection(mine)
        )

    def _merge(self, op: Operation, join: Function, tree: _Tree, live_leaves: Leaves) -> _Tree:
        """Merges the live leaves of partials, which are those of both parameters and of the result of `join`."""
        assert isinstance(tree, _HeldValue)
        name, _ = self._rebuild_stage(join, [(tree, live_leaves), (tree, live_leaves)], live_leaves)
        return self._emit(
            attrs.evolve(op, attributes=_prune_attributes(op, live_leaves)), [(name, [tree.value])], live_leaves
        )

    def _fold(self, op: Operation, zero: Function, stage: Function, trees: list[_Tree], live_leaves: Leaves) -> _Tree:
        """Folds for the live leaves of its result; zero and stage read the same leaves of the broadcasts.

        Args:
            trees: of the operands, broadcasts first.
        """
        keeps = bool(op.attributes.get("keeps"))
        partial_type = elements_of(stage.result_type)[0] if keeps else stage.result_type
        partial = within(live_leaves, 0, partial_type)
        live, live_in_zero = self.live.of(stage, live_leaves), self.live.of(zero, partial)
        operands = self._arguments(stage, trees, live, skip=1)
        for i, p in enumerate(zero.parameters):  # broadcasts, with which the operands of the stage begin
            operands[i] = (operands[i][0], operands[i][1] | live_in_zero.get(p.name, NOTHING))
        worked = self._rebuild_stage(stage, operands, live_leaves, partial=partial)
        started = self._rebuild_stage(zero, operands[: len(zero.parameters)], partial)
        return self._emit(op, [started, worked], live_leaves)

    # Functions.

    def _rebuild_stage(
        self,
        function: Function,
        operands: list[tuple[_Tree, Leaves]],
        live_leaves: Leaves,
        partial: Leaves | None = None,
    ) -> tuple[str, list[Value]]:
        """Rebuilds a stage with parameters for its live leaves; returns its name and its arguments in the new main.

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
        return self._rebuild(function, body, bindings, live_leaves), arguments

    def _declare(self, body: _Body, name: str, tree: _Tree, type_: Type, need: Leaves, arguments: list) -> _Tree:
        """Declares a parameter for each value of an argument's tree that holds needed leaves.

        Args:
            name, type_: of the parameter in the old plan.
            need: the leaves that the stage needs.
            arguments: gets the values of the new parameters.
        Returns:
            The tree of the old parameter inside of the stage.
        """
        if isinstance(tree, _HeldValue) and id(tree.value) in body.shared_parameters:
            return body.shared_parameters[id(tree.value)]
        holders = _find_holders(tree, need, type_)
        if isinstance(tree, tuple):
            parts = []
            for i, element in enumerate(elements_of(type_)):
                part_name, part_need = f"{name}_{i}", within(need, start_of(type_, i), element)
                if len(holders) == 1:
                    part_name = name
                parts.append(self._declare(body, part_name, tree[i], element, part_need, arguments))
            return tuple(parts)
        if not holders:
            return None
        (held,) = holders
        arguments.append(held.value)
        parameter = self._parameter(body, name, type_, held.kept)
        if getattr(held.value.type, "all_equal", False):
            body.shared_parameters[id(held.value)] = parameter
        return parameter

    def _parameter(self, body: _Body, name: str, type_: Type, leaf_set: Leaves) -> _HeldValue:
        """Declares a parameter that holds some leaves of a type, under a name that no other parameter has."""
        while name in body.builder.parameter_types:
            name = f"{name}_"
        return _HeldValue(body.builder.parameter(name, part_of(type_, leaf_set)), type_, leaf_set)

    def _rebuild(self, function: Function, body: _Body, bindings: dict[str, _Tree], live_leaves: Leaves) -> str:
        """Rebuilds a function for the live leaves of its result; returns its name. An unchanged function is copied.

        Args:
            body: the new function, in which the parameters are declared.
            bindings: by name in the old function its tree; has the parameters, and gets the operations.
        """
        live, types, builder = self.live.of(function, live_leaves), function.types(), body.builder
        for op in function.operations:
            mine = everything(op.type) if self.live.has_effect(op) else live.get(op.name, NOTHING)
            with builder.at(op.location):
                bindings[op.name] = self._rebuild_operation(body, op, mine, bindings, types) if mine else None
        with builder.at(function.result_location):
            result = body.value(bindings[function.result.name], function.result_type, live_leaves)
        candidate = attrs.evolve(
            function,
            parameters=tuple(builder.parameters),
            operations=tuple(builder.operations),
            result=result.operand,
            result_type=result.type,
        )
        if _form(candidate) == _form(function):
            return self.symbol(function.name)
        return self.target.add(candidate)

    def _rebuild_operation(
        self, body: _Body, op: Operation, live_leaves: Leaves, bindings: dict, types: dict[str, Type]
    ) -> _Tree:
        """Appends an operation of a function for the live leaves of its result; only some kinds leave others out."""
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
            value = builder.append(op.kind, values, part_of(op.type, live_leaves), op.attributes)
            return _HeldValue(value, op.type, live_leaves)
        if op.kind == "bind" and isinstance(op.operands[0], Symbol):
            values = self._bind_operands(body, op, bindings, types)
            if len(values) == 1 and not op.attributes:  # a salt is part of the function's seed
                return _HeldValue(values[0], op.type, everything(op.type))
        else:
            values = [
                builder.symbol(self.symbol(o.name))
                if isinstance(o, Symbol)
                else body.whole(bindings[o.name], types[o.name])
                for o in op.operands
            ]
        return _HeldValue(builder.append(op.kind, values, op.type, op.attributes), op.type, everything(op.type))

    def _bind_operands(self, body: _Body, op: Operation, bindings: dict, types: dict[str, Type]) -> list[Value]:
        """The operands of a `bind`: a function that captures only live leaves, and the captured values."""
        function = self.module[op.operands[0].name]
        captured = list(op.operands[1:])
        if not isinstance(function, Function) or len(captured) > len(function.parameters):
            whole = [body.whole(bindings[o.name], types[o.name]) for o in captured]
            return [body.builder.symbol(self.symbol(function.name)), *whole]
        needs = self.live.needs(op, everything(op.type), types)[1:]
        inner = _Body(Builder(self.target, locate=lambda: None))
        inside: dict[str, _Tree] = {}  # by parameter of the bound function
        values = []
        for p, o, need in zip(function.parameters, captured, needs, strict=False):
            if need:
                values.append(body.value(bindings[o.name], types[o.name], need))
                inside[p.name] = self._parameter(inner, p.name, p.type, need)
            else:
                inside[p.name] = None
        for p in function.parameters[len(captured) :]:
            inside[p.name] = self._parameter(inner, p.name, p.type, everything(p.type))
        name = self._rebuild(function, inner, inside, everything(function.result_type))
        return [body.builder.symbol(name), *values]

    def symbol(self, name: str) -> str:
        """Copies a function or graph, with the symbols that it names, to the new plan; returns its name."""
        for inner in named_by(self.module, name, excluded=self.new_symbols):
            node = self.module[inner]
            self.new_symbols[inner] = self.target.add(
                rename_symbols(node, self.new_symbols) if isinstance(node, Function) else node
            )
        return self.new_symbols[name]


def _prune_attributes(op: Operation, live_leaves: Leaves) -> Mapping[str, object]:
    """The attributes of a merge of the live leaves only."""
    if "secure" not in op.attributes:
        return op.attributes
    ranges = zip(nonempty_leaves(op.type), op.attributes["secure"], strict=True)
    marks = tuple(range_ for i, range_ in ranges if i in live_leaves)
    attributes = {key: value for key, value in op.attributes.items() if key != "secure"}
    return {**attributes, "secure": marks} if any(marks) else attributes


def _without_bits(op: Operation) -> dict:
    """The attributes without the bits, which other leaves change; 0 bits stay, the mark of a constant."""
    return {key: value for key, value in op.attributes.items() if key != "bits" or value == 0}

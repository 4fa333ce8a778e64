import attrs

from fedcore.compiler.inlining import Inliner
from fedcore.compiler.pipeline import compiler_pass
from fedcore.compiler.reachable import reachable
from fedcore.compiler.steps import Steps, run_steps
from fedcore.ir import Builder, Function, Module, ModuleBuilder, Operation, Ref, Symbol, Value
from fedcore.ir.interpret import salt_of
from fedcore.ir.module import Graph
from fedcore.ir.module_builder import rename_symbols
from fedcore.ir.operations import lookup
from fedcore.ir.structural import call
from fedcore.types import StructType, strip_placement

_MAPS = ("federated_map", "federated_apply")


@compiler_pass("fuse-maps")
def fuse_maps(module: Module) -> Module:
    """Turns `map(g, map(f, x))` into `map(g.f, x)`, and a map over a zip of maps into one map.

    Only if the inner map has one user; otherwise clients would run `f` twice.
    """
    # Fusing the users of a map may leave it with one user.
    while module.stage != "planned":
        fusion = _MapFusion(module)
        if not fusion.absorbing:
            break
        module = fusion.run()
    return module


def _users(function: Function) -> dict[str, int]:
    counts: dict[str, int] = {}
    for operand in (function.result, *(o for op in function.operations for o in op.operands)):
        if isinstance(operand, Ref):
            counts[operand.name] = counts.get(operand.name, 0) + 1
    return counts


@attrs.define
class _Mapped:
    """Expression tree of nested maps and zips: a leaf with a `value`, a map with a `function`, or a zip of `parts`."""

    value: str | None = None
    function: str | None = None
    parts: tuple["_Mapped", ...] = ()
    struct: Operation | None = None  # zip: the struct of its parts
    salt: str = ""  # map: its salt

    has_map: bool = attrs.field(init=False)

    @has_map.default
    def _has_map(self) -> bool:
        return any(p.function is not None or p.has_map for p in self.parts)

    def values(self) -> list[str]:
        found: dict[str, None] = {}
        stack = [self]
        while stack:
            current = stack.pop()
            if current.value is not None:
                found[current.value] = None
            stack.extend(reversed(current.parts))
        return list(found)


class _Trees:
    """Expression trees of the operations of main. A value with several users is a leaf."""

    def __init__(self, module: Module):
        self.made = {op.name: op for op in module.main.operations}
        self.users = _users(module.main)

    def of_map(self, op: Operation) -> _Mapped:
        """The tree of a map, which may have several users itself."""
        return run_steps(self._of_map(op))

    def _of_map(self, op: Operation) -> Steps:
        parts = ((yield self._of(op.operands[1].name)),)
        return _Mapped(function=op.operands[0].name, parts=parts, salt=salt_of(op, 0))

    def _of(self, name: str) -> Steps:
        op = self.made.get(name)
        if op is None or self.users.get(name) != 1:
            return _Mapped(value=name)
        if op.kind in _MAPS and isinstance(op.operands[0], Symbol):
            return (yield self._of_map(op))
        if op.kind == "federated_zip":
            return (yield self._of_zip(op.operands[0].name)) or _Mapped(value=name)
        return _Mapped(value=name)

    def _of_zip(self, name: str) -> Steps:
        struct = self.made.get(name)
        if struct is None or struct.kind != "struct" or self.users.get(name) != 1 or not struct.operands:
            return None
        if any(isinstance(o, Symbol) for o in struct.operands):
            return None
        parts = []
        for o in struct.operands:
            parts.append((yield self._of_zip(o.name)) or (yield self._of(o.name)))
        return _Mapped(parts=tuple(parts), struct=struct)


class _MapFusion:
    def __init__(self, module: Module):
        self.module = module
        self.target = ModuleBuilder(module.stage)
        self.inliner = Inliner(module, self.target)
        self.trees = _Trees(module)
        self.known: dict[str, Value] = {}
        self.absorbing: dict[str, _Mapped] = {}
        """The trees of the maps into which others are fused, by name."""
        self.absorbed = self._absorbed()
        """The operations that are fused into a later map: inner maps, and the zips and structs between."""

    def run(self) -> Module:
        main = self.module.main
        names = {s: self.inliner.symbol(Builder(self.target), s).operand.name for s in self._symbols()}
        builder = Builder(self.target, locate=lambda: None)
        self.known = {p.name: builder.parameter(p.name, p.type) for p in main.parameters}
        for op in rename_symbols(main, names).operations:
            if op.name in self.absorbed:
                continue
            with builder.at(op.location):
                self.known[op.name] = self._operation(builder, op)
        result = (
            self.known[main.result.name] if isinstance(main.result, Ref) else builder.symbol(names[main.result.name])
        )
        builder.finish(main.name, result, attributes=main.attributes, location=main.location)
        return reachable(self.target.build())

    def _symbols(self) -> list[str]:
        main = self.module.main
        operands = [*(o for op in main.operations for o in op.operands), main.result]
        return list(dict.fromkeys(o.name for o in operands if isinstance(o, Symbol)))

    def _absorbed(self) -> set[str]:
        before = self.trees.made
        gone: set[str] = set()
        for op in reversed(self.module.main.operations):
            if op.name in gone or op.kind not in _MAPS or not isinstance(op.operands[0], Symbol):
                continue
            tree = self.trees.of_map(op)
            if not tree.has_map:
                continue
            self.absorbing[op.name] = tree
            stack, values = [op.operands[1].name], set(tree.values())
            while stack:
                name = stack.pop()
                if name not in values and name in before and name not in gone:
                    gone.add(name)
                    stack.extend(o.name for o in before[name].operands if isinstance(o, Ref))
        return gone

    def _operation(self, builder: Builder, op: Operation) -> Value:
        if op.name not in self.absorbing:
            operands = [self.known[o.name] if isinstance(o, Ref) else builder.symbol(o.name) for o in op.operands]
            return builder.append(op.kind, operands, op.type, op.attributes)
        tree = self.absorbing[op.name]
        values = [self.known[v] for v in tree.values()]
        with builder:
            zipped = len(values) > 1 or isinstance(values[0].type, StructType)  # a struct of placed values needs a zip
            whole = lookup("federated_zip")(values[0] if len(values) == 1 else tuple(values)) if zipped else values[0]
            function = self._function(op, tree, [strip_placement(v.type) for v in values])
            return builder.append(op.kind, [builder.symbol(function), whole], op.type)

    def _function(self, op: Operation, tree: _Mapped, types: list) -> str:
        builder = Builder(self.target, locate=lambda: op.location)
        names = dict(zip(tree.values(), types, strict=True))
        known = {n: builder.parameter(f"x{i}", t) for i, (n, t) in enumerate(names.items())}
        result = run_steps(self._value(builder, tree, known))
        return builder.finish(f"{tree.function}_fused", result, location=op.location)

    def _value(self, builder: Builder, tree: _Mapped, known: dict[str, Value]) -> Steps:
        if tree.value is not None:
            return known[tree.value]
        parts = []
        for p in tree.parts:
            parts.append((yield self._value(builder, p, known)))
        if tree.function is None:
            assert tree.struct is not None
            assert isinstance(tree.struct.type, StructType)
            return builder.append("struct", parts, _unplaced(tree.struct.type, [p.type for p in parts]))
        node = self.module[tree.function]
        if isinstance(node, Graph):
            salt = {"salt": tree.salt} if tree.salt else {}
            return call.emit([self.inliner.symbol(builder, tree.function), *parts], builder=builder, **salt)
        return self.inliner.materialized(builder, self.inliner.body(builder, node, parts, tree.salt))


def _unplaced(struct: StructType, types: list) -> StructType:
    return attrs.evolve(struct, elements=list(zip(struct.names, types, strict=True)))

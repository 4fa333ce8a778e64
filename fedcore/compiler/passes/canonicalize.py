"""The pass `canonicalize`: one form for equivalent expressions, so that later passes see each in one form only.

A rule looks at one operation and at the operations that compute its operands.
"""

import attrs

from fedcore.compiler.pipeline import compiler_pass
from fedcore.errors import FedcoreError
from fedcore.ir import Function, Graph, Module, Operation, Ref, Symbol
from fedcore.ir.module import Operand
from fedcore.ir.operations import lookup
from fedcore.ir.reachable import reachable
from fedcore.types import FederatedType, StructType

_MAPS = ("federated_map", "federated_apply")


@compiler_pass("canonicalize")
def canonicalize(module: Module) -> Module:
    """Rewrites equivalent expressions to one form, the shortest.

    The rules, by examples:
        item(struct(%a, %b), 0)                  %a
        item(zip(struct(%a, %b)), 0)             %a
        struct(item(%x, 0), item(%x, 1))         %x, if it has two elements
        zip(struct(zip(%a), %b))                 zip(struct(%a, %b))
        federated_map(@f, %x), %x at SERVER      federated_apply(@f, %x)
        federated_map(@identity, %x)             %x
        broadcast(federated_value(1, SERVER))    federated_value(1, CLIENTS)
    """
    if module.stage == "planned":
        return module
    symbols: dict[str, Function | Graph] = {g.name: g for g in module.graphs}
    functions = []
    for function in module.functions:
        functions.append(_Rewrite(function, symbols).run())
        symbols[function.name] = functions[-1]
    rewritten = tuple(functions)
    return module if rewritten == module.functions else reachable(module, rewritten)


class _Rewrite:
    """Rewrites one function. Bindings keep their names, so an equal function is unchanged.

    Args:
        symbols: the functions, already rewritten, and graphs that it may name.
    Attributes:
        types: by binding its type.
        originals: by name the operations before the rewrite.
        operations: the operations after the rewrite, in order, and `producers` these by name.
        replacements: by a binding that a rule replaced, the binding that has the same value.
        constants: the bindings that are literals, zeros, or structs of these.
    """

    def __init__(self, function: Function, symbols: dict[str, Function | Graph]) -> None:
        self.function = function
        self.symbols = symbols
        self.types = function.types()
        self.producers: dict[str, Operation] = {}
        self.replacements: dict[str, Ref] = {}
        self.operations: list[Operation] = []
        self.originals = {op.name: op for op in function.operations}
        self.constants: set[str] = set()

    def run(self) -> Function:
        for op in self.function.operations:
            operands = tuple(self._replaced(o) for o in op.operands)
            op = op if operands == op.operands else attrs.evolve(op, operands=operands)
            replacement = self._rewrite(op)
            if isinstance(replacement, Ref):
                self.replacements[op.name] = replacement
            else:
                self._append(replacement)
        used = self._used(self._replaced(self.function.result))
        operations = tuple(op for op in self.operations if op.name in used)
        new = attrs.evolve(self.function, operations=operations, result=self._replaced(self.function.result))
        return self.function if new == self.function else new

    def _used(self, result: Operand) -> set[str]:
        """The operations to keep: all except operations without symbols whose last user a rule replaced.

        Operations that were unused before stay; `dce` drops them.
        """
        originally_used = {o.name for op in self.function.operations for o in op.operands if isinstance(o, Ref)}
        used = {result.name}
        for op in reversed(self.operations):
            works = op.name not in originally_used or any(isinstance(o, Symbol) for o in op.operands)
            if op.name in used or works:
                used.add(op.name)
                used.update(o.name for o in op.operands if isinstance(o, Ref))
        return used

    def _replaced(self, operand: Operand) -> Operand:
        """The operand after the rewrite."""
        return self.replacements.get(operand.name, operand) if isinstance(operand, Ref) else operand

    def _append(self, op: Operation) -> None:
        self.operations.append(op)
        self.producers[op.name] = op
        self.types[op.name] = op.type
        if op.kind in ("literal", "generic_zero", "struct") and all(map(self._is_constant, op.operands)):
            self.constants.add(op.name)

    def _rewrite(self, op: Operation) -> Ref | Operation:
        """The replacement of `op`: an operation, perhaps `op` itself, or a binding that has its value already."""
        if op.kind == "item":
            return self._item(op)
        if op.kind == "struct":
            return self._struct(op)
        if op.kind == "federated_zip":
            return self._zip(op)
        if op.kind in _MAPS:
            return self._map(op)
        if op.kind == "federated_broadcast":
            return self._broadcast(op)
        return op

    def _producer(self, operand: Operand, kind: str) -> Operation | None:
        """The operation that computes the operand, if it is of the kind."""
        op = self.producers.get(operand.name) if isinstance(operand, Ref) else None
        return op if op is not None and op.kind == kind else None

    # The rules, one for each kind; `canonicalize` lists them by examples.

    def _item(self, op: Operation) -> Ref | Operation:
        index = op.attributes["index"]
        struct = self._producer(op.operands[0], "struct")
        if struct is not None:
            return self._if_same_type(struct.operands[index], op)
        zipped = self._producer(op.operands[0], "federated_zip")
        struct = self._producer(zipped.operands[0], "struct") if zipped is not None else None
        if struct is None:
            return op
        part = struct.operands[index]
        if isinstance(part, Ref) and isinstance(self.types[part.name], StructType):
            return self._if_computed(attrs.evolve(op, kind="federated_zip", operands=(part,), attributes={}))
        return self._if_same_type(part, op)

    def _if_same_type(self, operand: Operand, op: Operation) -> Ref | Operation:
        """The operand in the place of `op`, if it has the type of `op`, with its names and containers; else `op`."""
        return operand if isinstance(operand, Ref) and self.types[operand.name] == op.type else op

    def _if_computed(self, op: Operation) -> Operation:
        """A new form `op` of an operation, if its operands give exactly its type; else the operation as it was."""
        try:
            computed = lookup(op.kind).result_type([self.types[o.name] for o in op.operands], op.attributes)
        except FedcoreError:
            computed = None
        return op if computed == op.type else self.originals[op.name]

    def _struct(self, op: Operation) -> Ref | Operation:
        sources = [self._producer(o, "item") for o in op.operands]
        if not sources or any(s is None or s.attributes["index"] != i for i, s in enumerate(sources)):
            return op
        whole = {s.operands[0] for s in sources if s is not None}
        if len(whole) != 1:
            return op
        return self._if_same_type(whole.pop(), op)

    def _zip(self, op: Operation) -> Operation:
        """The zip of a struct that has zips as elements; of a new struct, which has their operands in their place."""
        struct = self._producer(op.operands[0], "struct")
        if struct is None:
            return op
        inner = [self._producer(o, "federated_zip") for o in struct.operands]
        if not any(inner):
            return op
        parts = [o if z is None else z.operands[0] for o, z in zip(struct.operands, inner, strict=True)]
        name = f"{op.name}_flat"
        if name in self.types:  # the program has this name: the zip stays nested
            return op
        assert isinstance(struct.type, StructType)
        type_ = struct.type.with_types([self.types[p.name] for p in parts])
        flat = Operation(name, "struct", tuple(parts), type_, {}, struct.location)
        try:
            computed = lookup("federated_zip").result_type([type_], {})
        except FedcoreError:
            return op
        if computed != op.type:
            return op
        self._append(flat)
        return attrs.evolve(op, operands=(Ref(name),))

    def _map(self, op: Operation) -> Ref | Operation:
        function, argument = op.operands
        if isinstance(function, Symbol) and self._is_identity(function) and self.types[argument.name] == op.type:
            return Ref(argument.name)
        type_ = self.types[argument.name]
        if op.kind == "federated_map" and isinstance(type_, FederatedType) and type_.placement.name == "SERVER":
            return attrs.evolve(op, kind="federated_apply")
        return op

    def _is_identity(self, symbol: Symbol) -> bool:
        """Whether a function returns its parameter, or the struct of its parameters in their order."""
        node = self.symbols[symbol.name]
        if not isinstance(node, Function) or node.placement is not None or not node.parameters:
            return False
        if len(node.parameters) == 1:
            return not node.operations and node.result == Ref(node.parameters[0].name)
        if len(node.operations) != 1 or node.operations[0].kind != "struct":
            return False
        return node.operations[0].operands == tuple(Ref(p.name) for p in node.parameters)

    def _broadcast(self, op: Operation) -> Operation:
        value = self._producer(op.operands[0], "federated_value")
        if value is None or not self._is_constant(value.operands[0]):
            return op
        placed = attrs.evolve(op, kind="federated_value", operands=value.operands, attributes={"placement": "CLIENTS"})
        return self._if_computed(placed)

    def _is_constant(self, operand: Operand) -> bool:
        return isinstance(operand, Ref) and operand.name in self.constants

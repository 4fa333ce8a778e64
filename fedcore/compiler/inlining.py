"""Inliner: copies functions into a new module, with each call of a function replaced by its body."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, cast

import attrs

from fedcore.compiler.steps import Steps, run_steps
from fedcore.errors import FedcoreError
from fedcore.ir import Builder, Function, Module, ModuleBuilder, Operation, Ref, Symbol, Value
from fedcore.ir.calls import check_inlined_size, equal_calls
from fedcore.ir.interpret import join_salts, salt_of
from fedcore.ir.limits import MAX_INLINED
from fedcore.ir.module import Graph
from fedcore.ir.operations import PLACED, lookup
from fedcore.ir.structural import bind, call, item
from fedcore.types import FederatedType, StructType, Type, member_of, placement

_PLACEMENTS = {"federated_map": None, "federated_apply": "SERVER"}
"""By operation that maps a function, the placement of its argument; None where the argument's type has it."""


@attrs.frozen
class Bound:
    """Partial application whose `bind` is not emitted: a lambda and the values and functions that it captures.

    Args:
        function: the symbol of the lambda in the target.
        captured: its first arguments, in order.
    """

    function: Value
    captured: tuple["Value | Bound", ...]


def _is_known_function(captured: "Value | Bound") -> bool:
    """Whether a captured function has a name, so that it can be written into others; a parameter has none."""
    return isinstance(captured, Bound) or isinstance(captured.operand, Symbol)


class Inliner:
    """Rebuilds functions of `module` in `target`.

    Guarantees:
      - Calls of functions are replaced by the operations of the callee; calls of graphs stay.
      - Every operation keeps its location.
      - Duplicate calls in a function are inlined once.
      - Calls nest on an explicit stack, not on Python's.

    Raises:
        FedcoreError: the program is too large after inlining.
    """

    def __init__(self, module: Module, target: ModuleBuilder) -> None:
        check_inlined_size(module)
        self.symbols = module.symbols()
        self.target = target
        self._module = module
        self._names: dict[str, str] = {}  # by symbol of the module, that of its copy in the target
        self._sources: dict[str, Function | Graph] = {}  # by symbol of the target, what it is a copy of
        self._equal_calls: dict[str, dict[str, str]] = {}  # by function, see `equal_calls`
        target.blobs.update(module.blobs)

    def add_main(self, module: Module) -> str:
        """Rebuilds the main function and, before it, every function that it names."""
        return run_steps(self._rebuild(module.main))

    def symbol(self, builder: Builder, name: str) -> Value:
        """The symbol in the target module; added there on first use."""
        return run_steps(self._symbol(builder, name))

    def _symbol(self, builder: Builder, name: str) -> Steps:
        """Steps of `symbol`."""
        if name not in self._names:
            node = self.symbols[name]
            added = self.target.add(node) if isinstance(node, Graph) else (yield self._rebuild(node))
            self._names[name] = added
            self._sources.setdefault(added, node)
        return builder.symbol(self._names[name])

    def _rebuild(self, function: Function) -> Steps:
        """Steps that add the function to the target; their result is its name there."""
        builder = Builder(self.target)
        arguments = [builder.parameter(p.name, p.type) for p in function.parameters]
        result = yield self._materialized(builder, (yield self._body(builder, function, arguments)))
        return builder.finish(
            function.name,
            result,
            placement=function.placement,
            attributes=function.attributes,
            location=function.location,
        )

    def body(self, builder: Builder, function: Function, arguments: list, salt: str = "") -> Any:
        """Appends the function's operations on `arguments`; returns its result, a Value or a `Bound`.

        Args:
            salt: salt of the inlined call, which is joined in front of the salts of the operations.
        """
        return run_steps(self._body(builder, function, arguments, salt))

    def _body(self, builder: Builder, function: Function, arguments: list, salt: str = "") -> Steps:
        """Steps of `body`."""
        arguments = yield self._match_parameters(builder, function, arguments)
        bindings = dict(zip((p.name for p in function.parameters), arguments, strict=True))

        if function.name not in self._equal_calls:
            self._equal_calls[function.name] = equal_calls(function, self._module)
        equal = self._equal_calls[function.name]
        for op in function.operations:
            if op.name in equal:
                bindings[op.name] = bindings[equal[op.name]]
                continue
            with builder.at(op.location):
                if op.kind == "call":
                    bindings[op.name] = yield self._call(builder, _add_salt(op, salt), bindings)
                    continue
                values = []
                for o in op.operands:
                    values.append((yield self._symbol(builder, o.name)) if isinstance(o, Symbol) else bindings[o.name])
                bindings[op.name] = yield self._operation(builder, _add_salt(op, salt), values)
        result = function.result
        return (yield self._symbol(builder, result.name)) if isinstance(result, Symbol) else bindings[result.name]

    def _match_parameters(self, builder: Builder, function: Function, arguments: list) -> Steps:
        """Steps that give an argument for each parameter, of its type: a struct may stand for several arguments."""
        if len(arguments) < len(function.parameters):
            *first, last = arguments
            arguments = [*first, *(element(builder, last, i) for i in range(len(last)))]
        if len(arguments) > len(function.parameters):  # the last parameter is a struct of the surplus arguments
            alone, packed = len(function.parameters) - 1, member_of(function.parameters[-1].type)
            assert isinstance(packed, StructType)
            parts = []
            for argument in arguments[alone:]:
                parts.append((yield self._materialized(builder, argument)))
            arguments = [*arguments[:alone], builder.struct(list(zip(packed.names, parts, strict=True)))]
        return [self._conform(builder, a, p.type) for a, p in zip(arguments, function.parameters, strict=True)]

    def _conform(self, builder: Builder, value: Any, parameter_type: Type) -> Any:
        """Converts an argument to its parameter's type, up to shapes, so that the function's result keeps its type.

        Changes names and containers, and maps an all-equal value to a value of each client.
        """
        if not isinstance(value, Value) or value.type == parameter_type:
            return value
        type_ = _named_as(value.type, parameter_type)
        if type_ == value.type:
            return value
        if isinstance(type_, StructType):
            parts = [self._conform(builder, element(builder, value, i), t) for i, t in enumerate(type_.types)]
            return builder.append("struct", parts, type_)
        member = member_of(type_)
        with builder:
            same = builder.function(lambda x: self._conform(x.builder, x, member), member_of(value.type), "same")
            return lookup("federated_map").emit([same, value], builder=builder)

    def _operation(self, builder: Builder, op: Operation, values: list) -> Steps:
        """Steps that append an operation other than a call; their result is its value, or a `Bound`.

        Args:
            values: the operands in the target, values and `Bound`s.
        """
        if op.kind == "item":
            return element(builder, values[0], op.attributes["index"])
        if op.kind == "bind":
            return Bound(values[0], tuple(values[1:]))
        if any(isinstance(v, Bound) for v in values):
            if op.kind in _PLACEMENTS:
                return self._placed_with_captures(builder, op, values)
            whole = []
            for value in values:
                whole.append((yield self._materialized(builder, value, consumer=op)))
            values = whole
        type_ = op.type
        if op.kind == "struct" and isinstance(type_, StructType):  # the elements may have narrower types now
            type_ = type_.with_types([v.type for v in values])
        return builder.append(op.kind, values, type_, op.attributes)

    def _call(self, builder: Builder, op: Operation, bindings: dict) -> Steps:
        """Steps that inline the call of a function, or append the call of a graph or of a parameter.

        Args:
            bindings: by name in the calling function its value in the target.
        """
        function: Any = op.operands[0]
        captured: tuple = ()
        operands = []
        for o in op.operands[1:]:
            operands.append((yield self._symbol(builder, o.name)) if isinstance(o, Symbol) else bindings[o.name])
        if not isinstance(function, Symbol):
            function = bindings[function.name]
            if isinstance(function, Bound):
                function, captured = function.function, function.captured
            if not isinstance(function.operand, Symbol):
                return (yield self._emit_call(builder, op, function, operands))
            target = self.target_function(function.operand.name)
        else:
            target = self.symbols[function.name]
        arguments = [*captured, *operands]
        if isinstance(target, Function):
            if len(builder.operations) > MAX_INLINED:
                raise FedcoreError(f"@{target.name} is called so often that its callers have too many operations")
            return (yield self._body(builder, target, arguments, salt_of(op, 0)))
        callee = (yield self._symbol(builder, function.name)) if isinstance(function, Symbol) else function
        return (yield self._emit_call(builder, op, callee, arguments))

    def _emit_call(self, builder: Builder, op: Operation, callee: Value, arguments: list) -> Steps:
        values = []
        for argument in arguments:
            values.append((yield self._materialized(builder, argument)))
        return call.emit([callee, *values], builder=builder, **op.attributes)

    def target_function(self, name: str) -> Function | Graph:
        """The function or graph of the source module whose copy has the name in the target."""
        return self._sources[name]

    def materialize(self, builder: Builder, value: Value | Bound) -> Value:
        """The value in the target; a function with captures becomes an operation `bind`."""
        return run_steps(self._materialized(builder, value))

    def _materialized(self, builder: Builder, value: Value | Bound, consumer: Operation | None = None) -> Steps:
        """Steps of `materialize`, which also write captured known functions into a function.

        Args:
            consumer: the operation that takes the value; if it is placed, the function may not capture values.
        """
        if not isinstance(value, Bound):
            return value
        if any(map(_is_known_function, value.captured)):
            value = yield self._specialise(builder, value)
        if value.captured and consumer is not None and lookup(consumer.kind).level == PLACED:
            raise FedcoreError(
                f"{consumer.kind} ({consumer.location}): its functions may capture constants only; put what they "
                "need into the value"
            )
        captured = cast(tuple[Value, ...], value.captured)
        return bind.emit([value.function, *captured], builder=builder) if captured else value.function

    def _specialise(self, builder: Builder, bound: Bound) -> Steps:
        """The function with the known functions that it captures written into it, bound to the captured values."""
        target = self.target_function(bound.function.operand.name)
        assert isinstance(target, Function), "a graph captures nothing"
        inner = Builder(self.target)
        values = yield self._captured_values(bound)
        parameters = [inner.parameter(f"capture_{i}", v.type) for i, v in enumerate(values)]
        inner_bound = yield self._with_captured_values(bound, iter(parameters))
        unbound_parameters = [inner.parameter(p.name, p.type) for p in target.parameters[len(bound.captured) :]]
        result = yield self._body(inner, target, [*inner_bound.captured, *unbound_parameters])
        name = inner.finish(target.name, (yield self._materialized(inner, result)), location=target.location)
        return Bound(builder.symbol(name), tuple(values))

    def _captured_values(self, bound: Bound) -> Steps:
        """The captured values of the function and of the functions that it captures, in order."""
        values: list[Value] = []
        for captured in bound.captured:
            if isinstance(captured, Bound):
                values += yield self._captured_values(captured)
            elif not _is_known_function(captured):
                values.append(captured)
        return values

    def _with_captured_values(self, bound: Bound, values: Iterator[Value]) -> Steps:
        """The function with other captured values, in the order of `_captured_values`."""
        captured: list[Value | Bound] = []
        for value in bound.captured:
            if isinstance(value, Bound):
                captured.append((yield self._with_captured_values(value, values)))
            else:
                captured.append(value if _is_known_function(value) else next(values))
        return Bound(bound.function, tuple(captured))

    def _placed_with_captures(self, builder: Builder, op: Operation, values: list) -> Value:
        """Appends a map whose function captures values, which become elements of the value that it is mapped over."""
        function, argument = values
        target = self.target_function(function.function.operand.name)
        if not isinstance(target, Function):
            raise FedcoreError(f"{op.kind} ({op.location}): the graph @{target.name} captures nothing")
        captured_values = run_steps(self._captured_values(function))
        with builder:
            where = placement(_PLACEMENTS[op.kind] or argument.type.placement.name)
            captured = [lookup("federated_value")(v, where) for v in captured_values]
            zipped = lookup("federated_zip")((*captured, argument)) if captured else argument

            def apply(*parts: Any) -> Any:
                remaining = iter(parts)
                inner = run_steps(self._with_captured_values(function, remaining))  # takes the captured values
                return self.body(parts[0].builder, target, [*inner.captured, *remaining])

            count = len(captured) + 1
            wrapped = builder.function(with_parameters(apply, count), member_of(zipped.type), op.kind)
            return lookup(op.kind).emit([wrapped, zipped], builder=builder, **op.attributes)


def _named_as(have: Type, want: Type) -> Type:
    """The type `have`, with the element names, containers and all-equal bits of `want`, which it fits.

    A federated type stays as it is where `want` is all-equal at the clients.
    """
    if isinstance(have, StructType) and isinstance(want, StructType):
        return want.with_types([_named_as(h, w) for h, w in zip(have.types, want.types, strict=True)])
    if isinstance(have, FederatedType) and isinstance(want, FederatedType) and (_is_server(want) or not want.all_equal):
        return FederatedType(_named_as(have.member, want.member), have.placement, want.all_equal)
    return have


def _is_server(type_: FederatedType) -> bool:
    return type_.placement.name == "SERVER"


def _add_salt(op: Operation, salt: str) -> Operation:
    """The operation with the salt of a call put before its own, so that each inlined copy draws other numbers."""
    if not salt or "salt" not in op.attributes:
        return op
    return attrs.evolve(op, attributes={**op.attributes, "salt": join_salts(salt, op.attributes["salt"])})


def element(builder: Builder, value: Value, index: int) -> Value:
    """Element `index` of a struct: the operand of the `struct` in this function that made it, else a new `item`."""
    producer = builder.operation(value)
    operand = producer.operands[index] if producer is not None and producer.kind == "struct" else None
    if isinstance(operand, Ref):
        return Value(builder, operand, builder.type_of(operand))
    return item.emit([value], builder=builder, index=index)


def with_parameters(fn: Callable, count: int) -> Callable:
    """`fn` with a `__signature__` of `count` parameters, which tracing inspects."""

    def call_fn(*arguments: object) -> Any:
        return fn(*arguments)

    names = [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(count)]
    vars(call_fn)["__signature__"] = inspect.Signature(names)
    return call_fn

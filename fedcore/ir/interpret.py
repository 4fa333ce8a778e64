"""Interpreter for functions of a module. The caller supplies the evaluation of operations, by numpy or TensorFlow."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fedcore.errors import FedcoreError
from fedcore.ir.calls import called_function, equal_calls
from fedcore.ir.module import Function, Module, Operation, Symbol
from fedcore.ir.purity import seeded_symbols
from fedcore.ir.structural import spread
from fedcore.seeds import fold_in
from fedcore.types import Type

if TYPE_CHECKING:
    import tensorflow as tf


@attrs.frozen
class Seed:
    """Seed of a random operation: the seed of its place, and the path of salts that leads to the operation.

    The salt of a call is joined in front of the salts inside its callee. Joining is associative, so inlining keeps
    every path and therefore the bits.

    Args:
        base: seed of the server or of one client, an int or an int64 tensor.
        fold: (seed, number) -> seed, for seeds of the type of `base`.
    """

    base: "int | tf.Tensor"
    fold: Callable = fold_in
    path: str = ""

    def at(self, op: Operation, index: int) -> "Seed":
        """The seed of the function operand `index` of an operation."""
        return attrs.evolve(self, path=join_salts(self.path, salt_of(op, index)))

    def number(self) -> "int | tf.Tensor":
        """The seed as a number: `base` folded with a hash of the path, or `base` itself for an empty path."""
        return self.fold(self.base, _hash_path(self.path)) if self.path else self.base

    def for_client(self, index: int) -> "Seed":
        return attrs.evolve(self, base=self.fold(self.base, index))

    def for_element(self, index: "int | tf.Tensor") -> "Seed":
        """The seed of one element of a sequence."""
        return Seed(self.fold(self.number(), index), self.fold)


def salt_of(op: Operation, index: int) -> str:
    """The salt of function operand `index`; an aggregation has several function operands."""
    salt = op.attributes.get("salt", "")
    return f"{salt}:{index}" if salt and index else salt


def join_salts(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer and inner else outer or inner


@functools.cache
def _hash_path(path: str) -> int:
    """The first 64 bits of the path's SHA-256, with a sign."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big", signed=True)


@attrs.frozen(eq=False)
class Callee:
    """Function value that may draw random numbers, as a Python callable with the seed of its user."""

    apply: Callable  # (seed, *arguments) -> result
    seed: Seed | None = None

    def __call__(self, *arguments: Any) -> Any:
        return self.apply(self.seed, *arguments)

    def at(self, seed: Seed | None) -> "Callee":
        return Callee(self.apply, seed)

    def for_client(self, index: int) -> "Callee":
        return self if self.seed is None else self.at(self.seed.for_client(index))

    def for_element(self, index: "int | tf.Tensor") -> "Callee":
        return self if self.seed is None else self.at(self.seed.for_element(index))


@attrs.frozen(eq=False)
class _Body:
    """A function of the module that draws nothing, as a function value."""

    interpreter: "Interpreter"
    function: Function

    def __call__(self, *arguments: Any) -> Any:
        return self.interpreter.run(self.function, *arguments)


class Interpreter:
    """Runs functions of a module over values of any kind.

    Args:
        evaluate: (operation, operand types, operand values, the operation's seed or None) -> the result's value.
        graph: (graph, bytes) -> Python function over nested tuples; for a seeded graph it takes the keyword `seed`.
    """

    def __init__(self, module: Module, evaluate: Callable, graph: Callable) -> None:
        self._symbols = module.symbols()
        self._module = module
        self.evaluate = evaluate
        self._graph = graph
        self._graphs: dict[str, Callable] = {}  # results of `graph` by name
        self._drawing = seeded_symbols(module)
        self._equal: dict[str, dict[str, str]] = {}  # `equal_calls` of each function that ran, by name

    def function(self, name: str, seed: Seed | None = None) -> Callable:
        """The symbol as a Python function; a last argument may be a tuple of the remaining arguments."""
        node = self._symbols[name]
        if isinstance(node, Function):
            if name not in self._drawing:
                return _Body(self, node)
            return Callee(lambda seed, *arguments: self.run(node, *arguments, seed=seed), seed)
        if name not in self._graphs:
            self._graphs[name] = self._graph(node, self._module.blob(node.digest))
        graph = self._graphs[name]
        if name not in self._drawing:
            return graph
        return Callee(
            lambda seed, *arguments: graph(*arguments, seed=require_seed(seed, f"@{node.name}").number()), seed
        )

    def run(self, function: Function, *arguments: Any, seed: Seed | None = None) -> Any:
        """The result of a function. Calls of other functions nest on an explicit stack, not on Python's."""
        stack = [self._frame(function, arguments, seed)]
        while True:
            frame = stack[-1]
            op = next(frame.waiting, None)
            if op is None:
                stack.pop()
                result = self._result(frame)
                if not stack:
                    return result
                stack[-1].scope[frame.returns_to] = result
                continue
            callee, captured = self._callee(op, frame.scope)
            if op.name in frame.equal:
                frame.scope[op.name] = frame.scope[frame.equal[op.name]]
            elif callee is None:
                self._operation(op, frame.scope, frame.types, frame.seed)
                continue
            else:
                _, operands = self._operands(op, frame.scope, frame.types, frame.seed)
                at = None if frame.seed is None or callee.name not in self._drawing else frame.seed.at(op, 0)
                stack.append(self._frame(callee, (*captured, *operands[1:]), at, returns_to=op.name))
            frame.types[op.name] = op.type

    def _callee(self, op: Operation, scope: dict) -> tuple[Function | None, tuple]:
        """The function that an operation calls, by name or as a value, and the arguments that the value is bound to."""
        if op.kind != "call" or isinstance(op.operands[0], Symbol):
            return called_function(op, self._symbols), ()
        value = scope[op.operands[0].name]
        captured = value.args if isinstance(value, functools.partial) else ()
        body = value.func if isinstance(value, functools.partial) else value
        return (body.function, captured) if isinstance(body, _Body) and body.interpreter is self else (None, ())

    def _frame(self, function: Function, arguments: tuple, seed: Seed | None, returns_to: str = "") -> "_Frame":
        """The record of a call: a single struct is spread over the parameters; equal calls are found once."""
        arguments = spread(arguments, len(function.parameters)) if function.parameters else ()
        scope = dict(zip([p.name for p in function.parameters], arguments, strict=True))
        types = {p.name: p.type for p in function.parameters}
        if function.name not in self._equal:
            self._equal[function.name] = equal_calls(function, self._module)
        return _Frame(function, iter(function.operations), scope, types, seed, self._equal[function.name], returns_to)

    def _result(self, frame: "_Frame") -> Any:
        result = frame.function.result
        return self.function(result.name, frame.seed) if isinstance(result, Symbol) else frame.scope[result.name]

    def operations(
        self, operations: Sequence[Operation], scope: dict, types: dict[str, Type], seed: Seed | None = None
    ) -> None:
        """Evaluates operations in order; adds their values and types to `scope` and `types`."""
        for op in operations:
            self._operation(op, scope, types, seed)

    def _operation(self, op: Operation, scope: dict, types: dict[str, Type], seed: Seed | None) -> None:
        operand_types, values = self._operands(op, scope, types, seed)
        scope[op.name] = self.evaluate(op, operand_types, values, None if seed is None else seed.at(op, 0))
        types[op.name] = op.type

    def _operands(self, op: Operation, scope: dict, types: dict[str, Type], seed: Seed | None) -> tuple[list, list]:
        """The types and the values of an operation's operands."""
        operand_types: list[Type] = []
        values: list = []
        for index, operand in enumerate(op.operands):
            at = None if seed is None else seed.at(op, index)
            if isinstance(operand, Symbol):
                operand_types.append(self._symbols[operand.name].type)
                values.append(self.function(operand.name, at))
            else:
                operand_types.append(types[operand.name])
                values.append(_with_seed(scope[operand.name], at))
        return operand_types, values


@attrs.define(eq=False)
class _Frame:
    """Activation record of a call.

    Args:
        waiting: operations still to evaluate.
        equal: duplicate calls of the function, from `equal_calls`.
        returns_to: name of the call in the caller.
    """

    function: Function
    waiting: Iterator[Operation]
    scope: dict
    types: dict[str, Type]
    seed: Seed | None
    equal: dict[str, str]
    returns_to: str


def require_seed(seed: Seed | None, what: str) -> Seed:
    """The seed; an error if it is None, since `what` draws random numbers."""
    if seed is None:
        raise FedcoreError(f"{what} draws random numbers, and is called without a seed")
    return seed


def _with_seed(value: object, seed: Seed | None) -> object:
    """The value; a function value gets the seed of the operation that takes it."""
    if isinstance(value, Callee):
        return value.at(seed)
    if isinstance(value, functools.partial) and isinstance(value.func, Callee):
        function, captured = value.func, value.args
        return Callee(lambda at, *arguments: function.apply(at, *captured, *arguments), seed)
    return value

"""`Builder`: calling an operation on Values appends it to the function being built."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from fedcore.errors import Location, TracingError, brief
from fedcore.ir.active import active
from fedcore.ir.function_parameters import function_name, parameter_names
from fedcore.ir.locations import describe, traced_location, user_location
from fedcore.ir.module import Attributes, Constant, Function, Operand, Operation, Parameter, Ref, Symbol
from fedcore.ir.module_builder import ModuleBuilder
from fedcore.ir.one_placement import broadcast_of, placements_of
from fedcore.ir.values import Value, is_placed
from fedcore.types import (
    DType,
    FunctionType,
    Placement,
    StructType,
    TensorType,
    Type,
    as_dtype,
    check_nesting,
    elements_and_class,
)
from fedcore.types.python_values import as_array, holds

# Converters of callables without `__fedcore_function__`, such as a tf.function, to function values:
# (builder, callable, parameter type, name) -> Value, or None for a callable of another kind.
function_converters: list[Callable] = []


class Builder:
    """Builds one function. As a context manager, it is the builder that traced calls append to.

    Args:
        outer: builder of the enclosing function, whose values may be captured.
        locate: gives the location of a new operation.
        salt_prefix: prefix of the salts of new operations that draw random numbers or take a function that draws.
            None: new operations get no salt, as in a pass, which copies the salts of the program.
    Attributes:
        lowered: the derived operation that is being lowered; None outside of `lowering`.
        captures: the values of enclosing functions that this function reads, each with its parameter here.
    """

    def __init__(
        self,
        module: ModuleBuilder,
        *,
        outer: "Builder | None" = None,
        locate: Callable[[], Location | None] = user_location,
        salt_prefix: str | None = None,
    ) -> None:
        self.salt_prefix = salt_prefix
        self.lowered: Operation | None = None
        self.module = module
        self.outer = outer
        self.locate = locate
        self.parameters: list[Parameter] = []
        self.captures: list[tuple[Value, Parameter]] = []
        self._captured: dict[tuple[int, Operand], Parameter] = {}  # by the id of a value's builder, and its operand
        self.parameter_types: dict[str, Type] = {}
        self.operations: list[Operation] = []
        self._tokens: list[contextvars.Token] = []  # one for each `with` block that is open

    def __enter__(self) -> Self:
        self._tokens.append(active.set(self))
        return self

    def __exit__(self, *exc: object) -> None:
        active.reset(self._tokens.pop())

    @contextlib.contextmanager
    def lowering(self, op: Operation) -> Iterator[None]:
        """Functions that are traced inside are named after the derived operation and have its location."""
        previous_op, self.lowered = self.lowered, op
        try:
            yield
        finally:
            self.lowered = previous_op

    @contextlib.contextmanager
    def at(self, location: Location | None) -> Iterator[None]:
        """Sets the location of the operations that are appended inside, so that rewrites keep the user's lines."""
        previous_locate, self.locate = self.locate, lambda: location
        try:
            yield
        finally:
            self.locate = previous_locate

    def parameter(self, name: str, type_: Type) -> Value:
        self.parameters.append(Parameter(name, type_))
        self.parameter_types[name] = type_
        return Value(self, Ref(name), type_)

    def append(
        self,
        kind: str,
        operands: Sequence[Value],
        type_: Type,
        attributes: Attributes | None = None,
        *,
        draws: bool = False,
    ) -> Value:
        """Appends an operation whose result type is already known.

        Args:
            draws: the operation itself draws random numbers, not only a function that it takes.
        """
        local_operands = tuple(self.localize(v).operand for v in operands)  # may append literals, which take names
        name = str(len(self.operations))
        attributes = dict(attributes or {})
        lacks_salt = self.salt_prefix is not None and "salt" not in attributes
        if lacks_salt and (draws or any(map(self._may_draw, operands))):
            attributes["salt"] = f"{self.salt_prefix}{name}"
        self.operations.append(Operation(name, kind, local_operands, type_, attributes, self.locate()))
        return Value(self, Ref(name), type_)

    def _may_draw(self, value: Value) -> bool:
        """Whether an operand is a function that draws random numbers, or a function value of unknown origin."""
        if not isinstance(value.type, FunctionType):
            return False
        if isinstance(value.operand, Symbol):
            return self.module.draws(value.operand.name)
        operation = value.builder.operation(value)
        return operation is None or "salt" in operation.attributes

    def operation(self, value: Value) -> Operation | None:
        """The operation of this function whose result the value is; None for parameters and symbols."""
        if value.builder is not self or not isinstance(value.operand, Ref):
            return None
        return self._operation(value.operand)

    def _operation(self, ref: Ref) -> Operation | None:
        """The operation that binds a name; None for a parameter. `append` names operation n `n`."""
        index = int(ref.name) if ref.name.isdigit() else len(self.operations)
        return self.operations[index] if index < len(self.operations) else None

    def type_of(self, ref: Ref) -> Type:
        """The type of a parameter or binding of this function."""
        operation = self._operation(ref)
        return operation.type if operation is not None else self.parameter_types[ref.name]

    def symbol(self, name: str) -> Value:
        return Value(self, Symbol(name), self.module.type_of(name))

    def localize(self, value: Value) -> Value:
        """The value for use in this function; a value of an enclosing function is captured as a parameter."""
        if value.builder is self or isinstance(value.operand, Symbol):
            return value
        capture = self._captured.get((id(value.builder), value.operand))
        if capture is not None:
            return Value(self, Ref(capture.name), capture.type)
        if is_placed(value.type):
            hint = f"; to clients, {broadcast_of(value)} sends it" if "SERVER" in placements_of(value.type) else ""
            raise TracingError(
                f"a function captures a value of type {value.type}: placed values cannot travel inside a function. "
                f"Pass it as an argument (federated_map takes a tuple of values{hint})"
            )
        if self.outer is None:
            raise TracingError(f"a value of type {value.type} belongs to another computation; pass it as an argument")
        constant = self._copied_constant(value)
        if constant is not None:
            return constant
        parameter = Parameter(f"capture_{len(self.captures)}", value.type)
        self.captures.append((value, parameter))
        self._captured[id(value.builder), value.operand] = parameter
        return Value(self, Ref(parameter.name), parameter.type)

    def _copied_constant(self, value: Value) -> Value | None:
        """A copy of a literal or zero of an enclosing function; None for other values, which are captured."""
        op = value.builder.operation(value)
        if op is None or op.operands or op.kind not in ("literal", "generic_zero"):
            return None
        return self.append(op.kind, [], op.type, op.attributes)

    def finish(
        self,
        name: str,
        result: Value,
        *,
        placement: Placement | None = None,
        attributes: Attributes | None = None,
        location: Location | None = None,
    ) -> str:
        """Adds the function to the module, with the captures as its first parameters; returns its unique name."""
        result = self.localize(result)
        parameters = (*(p for _, p in self.captures), *self.parameters)
        function = Function(
            name,
            parameters,
            tuple(self.operations),
            result.operand,
            result.type,
            placement,
            attributes or {},
            location,
        )
        return self.module.add(function)

    def value(self, x: object, like: Type | None = None) -> Value:
        """Converts a container of values or a Python constant to a Value; Values are unchanged.

        Args:
            like: type whose dtypes Python numbers take, if these dtypes hold them.
        Raises:
            InvalidValue: the containers nest too deep, or have too many parts.
        """
        if isinstance(x, Value):
            return x
        check_nesting(x)
        return self._value(x, like)

    def _value(self, x: Any, like: Type | None) -> Value:
        """`value` of an object whose nesting is checked."""
        if isinstance(x, Value):
            return x
        if isinstance(x, Constant):
            return self.append("literal", [], TensorType(as_dtype(x.dtype), x.shape), {"value": x})
        container = elements_and_class(x)
        if container is not None:
            return self._container(*container, like)
        if isinstance(like, StructType) and isinstance(x, int | float | complex):
            return self.struct([(n, self._value(x, t)) for n, t in like.items()])
        return self.constant(x, like if isinstance(like, TensorType) else None)

    def _container(self, pairs: list[tuple[str | None, Any]], container: type | None, like: Type | None) -> Value:
        """The struct of (name, element) pairs; its elements take the dtypes of `like`, a struct of as many elements."""
        likes = like.types if isinstance(like, StructType) and len(like) == len(pairs) else [None] * len(pairs)
        return self.struct([(n, self._value(v, t)) for (n, v), t in zip(pairs, likes, strict=True)], container)

    def struct(self, elements: Sequence[tuple[str | None, Value]], container: type | None = None) -> Value:
        from fedcore.ir.structural import struct_type

        type_ = struct_type([(n, v.type) for n, v in elements], container)
        return self.append("struct", [v for _, v in elements], type_)

    def constant(self, x: ArrayLike, like: TensorType | None = None) -> Value:
        """A literal for a number, a string, or an array.

        A Python number takes the dtype of `like` if that holds it. Otherwise a float is a float32, and an int has the
        first of int32, int64 and uint64 that holds it.
        """
        if callable(x):
            raise TracingError(f"a function ({brief(x)}) stands where a value of the computation is wanted")
        if isinstance(x, bool | int | float | complex) and not hasattr(x, "dtype"):
            return self.literal(x, TensorType(_dtype_of_number(x, like), ()))
        try:
            array = as_array(x)
            type_ = TensorType(type(x) if np.ndim(x) == 0 and not hasattr(x, "dtype") else array.dtype, array.shape)
        except Exception as error:
            raise TracingError(f"{brief(x)} is no value of a computation: {error}") from None
        return self.literal(array, type_)

    def literal(self, x: ArrayLike, type_: TensorType) -> Value:
        return self.append("literal", [], type_, {"value": Constant.of(x, type_.dtype)})

    def function(self, fn: Callable, parameter_type: Type | None, name: str | None = None) -> Value:
        """A function value for a traced function, a computation, or a Python function to trace now."""
        if isinstance(fn, Value):
            return fn
        if hasattr(fn, "__fedcore_function__"):
            return fn.__fedcore_function__(self, parameter_type)
        for convert in function_converters:
            value = convert(self, fn, parameter_type, name)
            if value is not None:
                return value
        return self._trace(fn, parameter_type, name or function_name(fn, "fn"))

    def _trace(self, fn: Callable, parameter_type: Type | None, name: str) -> Value:
        """Traces a Python function to a function of the module; its captures are bound to it."""
        from fedcore.ir.structural import bind

        location, lowered = traced_location(fn), self.lowered
        if lowered is not None:
            name = lowered.kind if name == "<lambda>" else f"{lowered.kind}_{name}"
            location = lowered.location
        inner = Builder(self.module, outer=self, locate=self.locate, salt_prefix=self.salt_prefix)
        with inner:
            args = declare_parameters(inner, fn, parameter_type)
            result = fn(*args)
            if result is None:
                raise TracingError(f"{describe(fn)} returns None; a function of a computation returns a value")
            symbol = inner.finish(name, inner.value(result), location=location)
        function = Value(self, Symbol(symbol), self.module.type_of(symbol))
        if not inner.captures:
            return function
        return bind.emit([function, *(self.localize(v) for v, _ in inner.captures)], builder=self)


def _dtype_of_number(x: int | float | complex, like: TensorType | None) -> DType:
    """Dtype of a literal: the dtype of `like` if that holds the number, else the default for its Python type."""
    if like is not None and holds(like.dtype, x):
        return like.dtype
    is_integer = isinstance(x, int) and not isinstance(x, bool)
    names = ("int32", "int64", "uint64") if is_integer else (as_dtype(type(x)).name,)
    for name in names:
        if holds(as_dtype(name), x):
            return as_dtype(name)
    if is_integer:
        raise TracingError(f"{x} is no value of a computation: no integer dtype holds it")
    wide = "complex128" if isinstance(x, complex) else "float64"
    raise TracingError(
        f"{x!r} is no value of a computation: Python's numbers become {names[0]}, which does not hold it\n"
        f"  fix: np.{wide}({x!r}) is a {wide}"
    )


def declare_parameters(builder: Builder, fn: Callable, parameter_type: Type | None) -> list[Value]:
    """Declares the parameters of `fn` in `builder`; several parameters take the elements of a struct."""
    names = parameter_names(fn, inner=True)
    if parameter_type is None and not names:
        return []
    if len(names) == 1 and parameter_type is not None:
        return [builder.parameter(names[0], parameter_type)]
    if not isinstance(parameter_type, StructType) or len(parameter_type) != len(names):
        takes = f"{len(names)} parameter{'s' * (len(names) != 1)} ({', '.join(names) or 'none'})"
        raise TracingError(f"{describe(fn)} takes {takes}, but is given {parameter_type or 'none'}")
    return [builder.parameter(n, t) for n, t in zip(names, parameter_type.types, strict=True)]

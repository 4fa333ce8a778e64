"""Operands of a traced call: conversion of the Python arguments of an intrinsic to Values.

Constants become literals, containers become structs, and Python functions are traced. For `federated_map(f, x)` with
`x: {float32}@CLIENTS` the operands are a function value of type `(float32 -> U)` and `x`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeGuard

from fedcore.errors import TracingError, TypeMismatch, brief
from fedcore.ir.builder import Builder
from fedcore.ir.locations import user_location
from fedcore.ir.module import Ref
from fedcore.ir.registry import lookup
from fedcore.ir.values import Value, is_placed
from fedcore.types import (
    PENDING,
    AbstractType,
    FederatedType,
    FunctionType,
    StructType,
    Type,
    fits,
    float_fix,
    member_of,
    substitute,
)
from fedcore.types.fits import join_shapes
from fedcore.types.signatures import Binding

if TYPE_CHECKING:
    from fedcore.ir.operations import Intrinsic


def as_values(op: "Intrinsic", builder: Builder, arguments: Mapping) -> dict:
    """The arguments by parameter, with constants and containers as Values; functions are unchanged.

    `op.constants` maps a parameter to another one: a Python number for the first takes the dtypes of the second's
    argument.
    """

    def as_value(name: str, argument: object) -> Value | Callable:
        if isinstance(argument, Value) or _is_function(argument):
            return argument
        like = arguments.get(op.constants.get(name, ""))
        return builder.value(argument, member_of(like.type) if isinstance(like, Value) else None)

    return {name: as_value(name, argument) for name, argument in arguments.items()}


def operands_of(op: "Intrinsic", builder: Builder, arguments: list) -> list[Value]:
    """One operand for each Value or function. Structs of placed values are zipped; functions are traced last.

    Raises:
        TracingError: a function captures a value, and the operation's functions may not.
        TypeMismatch: the other operands do not fit, or a function stands in place of a value.
    """
    plain_values = [None if _is_function(a) else _zip_placed(op, i, a) for i, a in enumerate(arguments)]
    types = [PENDING if v is None else v.type for v in plain_values]
    values = []
    for i, (value, argument) in enumerate(zip(plain_values, arguments, strict=True)):
        if value is None:
            value = _trace_argument(op, builder, types, i, argument)
            types[i] = value.type
        if isinstance(value.type, FunctionType):
            _check_captures(op, builder, value)
        values.append(value)
    return values


def _zip_placed(op: "Intrinsic", index: int, value: Value) -> Value:
    """The value; a struct of placed values is zipped where the signature has a placed value."""
    if op.signature is None or not isinstance(value.type, StructType) or not is_placed(value.type):
        return value
    parameter_types = [a.parameters[index].type for a in op.signature.alternatives if index < len(a.parameters)]
    takes_struct = any(isinstance(t, StructType) for t in parameter_types) or op.name == "federated_zip"
    if takes_struct or not any(isinstance(t, FederatedType) for t in parameter_types):
        return value
    return lookup("federated_zip")(value)


def _trace_argument(op: "Intrinsic", builder: Builder, types: list, index: int, fn: Callable) -> Value:
    """The function argument `index`, traced for the parameter type that the other operands determine.

    A variable that widens another one is first bound to the same type. If the function returns a wider type, the
    variable is bound to the join of both, and the function is traced again.

    Args:
        types: the type of each operand; PENDING for a function that is not traced yet.
    """
    binding = op.required_signature().match(types, name=op.name, location=user_location())
    expected = binding.alternative.parameters[index].type
    if not isinstance(expected, FunctionType):
        raise TypeMismatch(f"{op.name}: a function ({brief(fn)}) stands where {expected} is wanted")
    starts = {wide: binding.variables[narrow] for wide, narrow in op.widens.items()}
    variables = {**starts, **binding.variables}

    def trace() -> Value:
        parameter = expected.parameter
        return builder.function(fn, None if parameter is None else substitute(parameter, variables, binding.placements))

    try:
        value = trace()
    except TypeMismatch as error:
        raise TypeMismatch(f"{error}{_note_of_start(op, binding, expected, variables)}") from error
    except TypeError as error:  # TensorFlow's
        if note := _note_of_start(op, binding, expected, variables):
            error.add_note(note.strip())
        raise
    if not isinstance(expected.result, AbstractType) or expected.result.label not in op.widens:
        return value
    for _ in range(3):  # sizes become unknown, then ranks
        assert isinstance(value.type, FunctionType)
        state, returned = variables[expected.result.label], value.type.result
        wider = None if fits(returned, state) else join_shapes(state, returned)
        if wider is None:
            break
        variables[expected.result.label] = wider
        value = trace()
    return value


def _note_of_start(op: "Intrinsic", binding: Binding, expected: FunctionType, variables: Mapping[str, Type]) -> str:
    """The line of an error in a function whose first argument starts as another operand, as in a fold from `zero`.

    It names that operand and its type; empty for other functions.
    """
    result, parameter = expected.result, expected.parameter
    if not isinstance(result, AbstractType) or result.label not in op.widens or not isinstance(parameter, StructType):
        return ""
    start = next(p for p in binding.alternative.parameters if p.type == AbstractType(op.widens[result.label]))
    type_ = variables[result.label]
    value_type = substitute(parameter.types[1], variables, binding.placements)  # what the function folds into it
    fix = float_fix(type_, value_type)
    note = f"\n  note: the first argument of this function has the type of `{start.name}`, {type_}"
    return f"{note}; {fix}" if fix else note


def _check_captures(op: "Intrinsic", builder: Builder, function: Value) -> None:
    """Checks that a function captures no values, unless the intrinsic takes functions that do.

    Raises:
        TracingError: names the type of a captured value.
    """
    if op.takes_captures:
        return
    operation = builder.operation(function)
    if operation is None or operation.kind != "bind":
        return
    captured = [builder.type_of(o) for o in operation.operands[1:] if isinstance(o, Ref)]
    values = [t for t in captured if not isinstance(t, FunctionType)]
    if values:
        raise TracingError(
            f"{op.name}: a function of it captures a value of type {values[0]}, which only constants can be. "
            "Put it into the value: fc.federated_zip it with fc.federated_value(captured, placement)"
        )


def _is_function(x: object) -> TypeGuard[Callable]:
    return callable(x) and not isinstance(x, Value)

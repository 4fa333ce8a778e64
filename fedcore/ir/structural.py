"""The operations that the builder itself appends: structs, literals, and functions as values."""

import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedcore.errors import TypeMismatch
from fedcore.ir.module import Attributes, Constant
from fedcore.ir.operations import operation
from fedcore.types import (
    FederatedType,
    FunctionType,
    StructType,
    StructWithPythonType,
    TensorType,
    Type,
    explain,
    fits,
    member_of,
    register_container,
)


def struct_type(elements: Iterable[tuple[str | None, Type]], container: type | str | None = None) -> StructType:
    """The struct of (name, type) pairs, with the Python class of its values."""
    if container is None:
        return StructType(elements)
    name = container if isinstance(container, str) else register_container(container)
    return StructWithPythonType(elements, name)


def spread(arguments: tuple, count: int) -> tuple:
    """The arguments for `count` parameters: unpacks a last struct, or packs surplus arguments into a struct."""
    if len(arguments) > count:
        return (*arguments[: count - 1], arguments[count - 1 :])
    return arguments if len(arguments) == count else (*arguments[:-1], *arguments[-1])


def _struct_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    # Names and container are in the declared type only; the verifier compares the elements.
    return StructType([(None, t) for t in types])


@operation(_struct_typing)
def struct(*elements: object) -> tuple:
    """Makes a struct of its operands; the result type holds the names."""
    return tuple(elements)


def _item_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    (type_,) = types
    member = member_of(type_)
    index = attributes["index"]
    if not isinstance(member, StructType) or not 0 <= index < len(member):
        raise TypeMismatch(f"item: a value of type {type_} has no element {index}")
    element = member.types[index]
    return FederatedType(element, type_.placement, type_.all_equal) if isinstance(type_, FederatedType) else element


@operation(_item_typing)
def item(value: tuple, *, index: int) -> object:
    """Takes element `index` of a struct; the element of a placed struct has its placement."""
    return value[index]


def _literal_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    constant: Constant = attributes["value"]
    return TensorType(constant.dtype, constant.shape)


@operation(_literal_typing)
def literal(*, value: Constant) -> np.ndarray:
    """A constant."""
    return value.to_numpy()


def application_type(function: Type, arguments: list[Type], name: str = "call") -> Type:
    """The result type of applying `function`; several arguments are the elements of its struct parameter."""
    if not isinstance(function, FunctionType):
        raise TypeMismatch(f"{name}: a value of type {function} is not a function")
    parameter = function.parameter
    if parameter is None and not arguments:
        return function.result
    if len(arguments) == 1 and parameter is not None and fits(arguments[0], parameter):
        return function.result
    have = StructType([(None, t) for t in arguments])
    if not (isinstance(parameter, StructType) and fits(have, parameter)):
        argument_type = arguments[0] if len(arguments) == 1 else have
        if parameter is None:
            raise TypeMismatch(f"{name}: the function takes no argument, but is given {argument_type}")
        raise TypeMismatch(explain(f"{name}: the argument does not fit", argument_type, parameter))
    return function.result


def _call_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    return application_type(types[0], list(types[1:]))


@operation(_call_typing)
def call(function: Callable, *arguments: object) -> object:
    """Applies a function or a graph to its arguments."""
    return function(*arguments)


def _bind_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    """The function's type without its bound parameters; a single parameter that remains is not in a struct."""
    function, *captured = types
    if not isinstance(function, FunctionType) or function.parameter is None:
        raise TypeMismatch(f"bind: a function with parameters is wanted, not {function}")
    if isinstance(function.parameter, StructType) and len(captured) <= len(function.parameter):
        parameters = list(function.parameter.items())
        if all(fits(have, want) for have, (_, want) in zip(captured, parameters, strict=False)):
            remaining = parameters[len(captured) :]
            if len(remaining) == 1:
                return FunctionType(remaining[0][1], function.result)
            return FunctionType(StructType(remaining) if remaining else None, function.result)
    if len(captured) == 1 and fits(captured[0], function.parameter):
        return FunctionType(None, function.result)
    raise TypeMismatch(f"bind: {function} does not take {', '.join(map(str, captured))} first")


@operation(_bind_typing)
def bind(function: Callable, *captured: object) -> functools.partial:
    """Partial application: binds the leading arguments of a function, such as the captures of a lambda."""
    return functools.partial(function, *captured)

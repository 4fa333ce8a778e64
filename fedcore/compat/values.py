"""TFF's functions of values: `to_value`, and the protocol of objects with a type."""

import abc
from typing import Protocol, runtime_checkable

from fedcore.errors import TracingError, TypeMismatch
from fedcore.ir import Value
from fedcore.ir.active import active_builder
from fedcore.types import FunctionType, Type, explain, fits, member_of, to_type


@runtime_checkable
class TypedObject(Protocol):
    """An object with a type of the language, such as a computation, a traced value or a reference of a program."""

    @property
    @abc.abstractmethod
    def type_signature(self) -> Type:
        """The type of the object."""


def to_value(
    arg: object, type_spec: object = None, *, parameter_type_hint: object = None, zip_if_needed: bool = False
) -> Value:
    """Converts a Python object to a value of the computation that is being traced.

    Args:
        arg: a value, a computation or function, a Python or numpy constant, or a container of these.
        type_spec: the type of the value; anything that `to_type` takes. Default: the type of `arg`.
        parameter_type_hint: for a function without types: the type of its parameter. Default: that of `type_spec`.
        zip_if_needed: whether a struct of placed values becomes a placed struct where `type_spec` is placed.
    Raises:
        TracingError: no computation is being traced.
        TypeMismatch: the value does not fit `type_spec`.
    Example:
        >>> @fc.federated_computation
        ... def seven():
        ...     return fc.to_value(7, 'int64')
        >>> str(seven.type_signature)
        '(-> int64)'
    """
    builder = active_builder()
    if builder is None:
        raise TracingError("to_value is used outside a computation: it makes values of the computation being traced")
    want = None if type_spec is None else to_type(type_spec)
    if callable(arg) and not isinstance(arg, Value):
        parameter = want.parameter if isinstance(want, FunctionType) else None
        value = builder.function(arg, parameter if parameter_type_hint is None else to_type(parameter_type_hint))
    else:
        value = builder.value(arg, None if want is None else member_of(want))
    if zip_if_needed and want is not None and not fits(value.type, want):
        from fedcore.intrinsics import federated_zip

        value = federated_zip(value)
    if want is not None and not fits(value.type, want):
        raise TypeMismatch(explain("to_value: the value does not fit", value.type, want))
    return value

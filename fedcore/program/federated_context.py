"""Contexts in which calls of computations return at once, with references to their results."""

import abc
from typing import Any

from fedcore import context
from fedcore.computation import Computation
from fedcore.errors import InvalidValue
from fedcore.types import FederatedType, FunctionType, StructType, Type


class FederatedContext(abc.ABC):
    """Runs computations for a program: a call returns a structure of `MaterializableValueReference`s."""

    @abc.abstractmethod
    def invoke(self, comp: Computation, arg: Any) -> Any:
        """Begins a call.

        Args:
            arg: the argument, or a tuple of the arguments; None for a computation without parameters.
        """


def contains_only_server_placed_data(type_signature: Type) -> bool:
    """Whether a type has no value of clients and no function."""
    if isinstance(type_signature, StructType):
        return all(map(contains_only_server_placed_data, type_signature.types))
    if isinstance(type_signature, FederatedType):
        return type_signature.placement.name == "SERVER"
    return not isinstance(type_signature, FunctionType)


def check_in_federated_context() -> None:
    """Checks that calls run in a `FederatedContext`.

    Raises:
        InvalidValue: they do not.
    """
    runtime = context.current_runtime()
    if not isinstance(runtime, FederatedContext):
        raise InvalidValue(
            f"this program runs in a fc.program.FederatedContext, not in a {type(runtime).__name__}\n"
            "  fix: fc.set_runtime(fc.program.NativeFederatedContext(fc.runtime.local()))"
        )

from collections.abc import Callable
from typing import Any

from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import FederatedType, FunctionType


@intrinsic(
    "(fn: (T -> U), arg: {T}@CLIENTS -> {U}@CLIENTS) | (fn: (T -> U), arg: T@SERVER -> U@SERVER)",
    per_client="fn",
)
def federated_map(
    fn: Callable[[NumpyValue], NumpyValue], arg: Any, *, operand_types: tuple[FunctionType, FederatedType]
) -> NumpyValue:
    """Applies `fn` to every client's value (or to the server's).

    A tuple of client values is zipped first. No clients: `fn` is not called.

    Example:
        >>> celsius = fc.federated_map(to_celsius, readings)
    """
    at_clients = operand_types[1].placement.name == "CLIENTS"
    return [fn(x) for x in arg] if at_clients else fn(arg)


@federated_map.in_stage
def _(fn: Callable[[Value], Value], arg: Value) -> Value:
    return fn(arg)

from collections.abc import Callable

from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value


@intrinsic("(fn: (T -> U), arg: T@SERVER -> U@SERVER)")
def federated_apply(fn: Callable[[NumpyValue], NumpyValue], arg: NumpyValue) -> NumpyValue:
    """Applies `fn` to the server's value.

    Example:
        >>> degrees = fc.federated_apply(to_celsius, mean)
    """
    return fn(arg)


@federated_apply.in_stage
def _(fn: Callable[[Value], Value], arg: Value) -> Value:
    return fn(arg)

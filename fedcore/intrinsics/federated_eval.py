from collections.abc import Callable

from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value


@intrinsic("(fn: (-> U) -> U@SERVER) | (fn: (-> U) -> {U}@CLIENTS)", attributes=("placement",), per_client="fn")
def federated_eval(fn: Callable[[], NumpyValue], placement: str, *, clients: int) -> NumpyValue:
    """Runs `fn`, which takes no argument, at `placement`.

    Example:
        >>> state = fc.federated_eval(make_initial_state, fc.SERVER)
    """
    return [fn() for _ in range(clients)] if placement == "CLIENTS" else fn()


@federated_eval.in_stage
def _(fn: Callable[[], Value]) -> Value:
    return fn()

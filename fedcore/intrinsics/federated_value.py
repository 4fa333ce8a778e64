from fedcore.intrinsics.all_equal import AllEqual
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.operations import TO_CLIENTS, intrinsic


@intrinsic("(value: T -> T@SERVER) | (value: T -> T@CLIENTS)", attributes=("placement",), crosses=TO_CLIENTS)
def federated_value(value: NumpyValue, placement: str, *, clients: int) -> NumpyValue:
    """Places an unplaced value: `placement` is fc.SERVER or fc.CLIENTS.

    Example:
        >>> one = fc.federated_value(1, fc.CLIENTS)
    """
    return AllEqual(value, clients) if placement == "CLIENTS" else value

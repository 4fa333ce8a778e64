from fedcore.intrinsics.all_equal import AllEqual
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.operations import TO_CLIENTS, intrinsic


@intrinsic("(value: T@SERVER -> T@CLIENTS)", crosses=TO_CLIENTS)
def federated_broadcast(value: NumpyValue, *, clients: int) -> AllEqual:
    """Sends the server's value to every client.

    A computation that returns the result gives the value, even without clients.

    Example:
        >>> weights_at_clients = fc.federated_broadcast(weights)
    """
    return AllEqual(value, clients)

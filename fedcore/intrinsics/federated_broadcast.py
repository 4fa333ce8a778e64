from fedcore.intrinsics.all_equal import AllEqual
from fedcore.ir.operations import intrinsic


@intrinsic("(value: T@SERVER -> T@CLIENTS)")
def federated_broadcast(value, *, clients):
    """Sends the server's value to every client.

    No clients: the value is still one value, and a computation that returns it gives it.

    Example:
        >>> weights_at_clients = fc.federated_broadcast(weights)
    """
    return AllEqual(value, clients)

from fedcore.ir.operations import intrinsic


@intrinsic("(value: T@SERVER -> T@CLIENTS)")
def federated_broadcast(value, *, clients):
    """Sends the server's value to every client.

    Example:
        >>> weights_at_clients = fc.federated_broadcast(weights)
    """
    return [value] * clients

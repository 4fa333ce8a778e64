from fedcore.intrinsics.federated_select import SIGNATURE, select_by_broadcast, selected
from fedcore.ir.operations import intrinsic


@intrinsic(SIGNATURE)
def federated_secure_select(client_keys, max_key, server_val, select_fn):
    """As `federated_select`, for keys that the server must not learn.

    Simulated: the slices are those of `federated_select`. No key leaves its client, since the whole of `server_val` is
    sent to every client.

    Example:
        >>> rows = fc.federated_secure_select(keys, fc.federated_value(99, fc.SERVER), table, take_row)
    """
    return selected(client_keys, max_key, server_val, select_fn)


federated_secure_select.lowering(select_by_broadcast)

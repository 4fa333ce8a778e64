import numpy as np

from fedcore.intrinsics.federated_select import SIGNATURE, select_by_broadcast, select_slices
from fedcore.intrinsics.numerics import BinaryFunction, NumpyValue
from fedcore.ir.operations import intrinsic


@intrinsic(SIGNATURE)
def federated_secure_select(
    client_keys: list[np.ndarray], max_key: np.ndarray, server_val: NumpyValue, select_fn: BinaryFunction
) -> list[list[NumpyValue]]:
    """`federated_select` with keys that the server must not learn.

    The lowering is that of `federated_select`: every client receives all of `server_val`, so no key leaves its client.

    Example:
        >>> rows = fc.federated_secure_select(keys, fc.federated_value(99, fc.SERVER), table, take_row)
    """
    return select_slices(client_keys, max_key, server_val, select_fn)


federated_secure_select.lowering(select_by_broadcast)

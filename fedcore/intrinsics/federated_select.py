from collections.abc import Callable

import numpy as np

from fedcore.intrinsics.federated_broadcast import federated_broadcast
from fedcore.intrinsics.federated_map import federated_map
from fedcore.intrinsics.federated_zip import federated_zip
from fedcore.intrinsics.maximum import maximum
from fedcore.intrinsics.minimum import minimum
from fedcore.intrinsics.numerics import BinaryFunction, NumpyValue
from fedcore.intrinsics.rows import sequence_from_rows
from fedcore.intrinsics.sequence_map import sequence_map
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value

SIGNATURE = (
    "(client_keys: {int32[?]}@CLIENTS, max_key: int32@SERVER, server_val: T@SERVER, select_fn: (<T,int32> -> U)"
    " -> {U*}@CLIENTS)"
)


def select_slices(
    client_keys: list[np.ndarray], max_key: np.ndarray, server_val: NumpyValue, select_fn: BinaryFunction
) -> list[list[NumpyValue]]:
    """The meaning of `federated_select` and `federated_secure_select`."""
    clipped = [np.minimum(np.maximum(keys, 0), max_key).astype(np.int32) for keys in client_keys]
    return [[select_fn(server_val, key) for key in keys] for keys in clipped]


@intrinsic(SIGNATURE)
def federated_select(
    client_keys: list[np.ndarray], max_key: np.ndarray, server_val: NumpyValue, select_fn: BinaryFunction
) -> list[list[NumpyValue]]:
    """Gives each client the slices of the server's value for its keys, as a sequence in the order of the keys.

    Keys are clipped to 0 … `max_key`. A client without keys gets an empty sequence. `select_fn(server_val, key)`
    computes a slice when it is drawn from the sequence. The lowering broadcasts all of `server_val` to every client,
    and metering counts this.

    Example:
        >>> rows = fc.federated_select(keys, fc.federated_value(99, fc.SERVER), table, take_row)
    """
    return select_slices(client_keys, max_key, server_val, select_fn)


@federated_select.lowering
def select_by_broadcast(
    client_keys: Value, max_key: Value, server_val: Value, select_fn: Callable[[Value, Value], Value]
) -> Value:
    """The lowering of both selections: clients get all of `server_val`, and take their slices themselves."""

    def slices(keys: Value, last: Value, value: Value) -> Value:
        clipped = minimum(maximum(keys, 0), last)
        return sequence_map(lambda key: select_fn(value, key), sequence_from_rows(clipped))

    sent = (federated_broadcast(max_key), federated_broadcast(server_val))
    return federated_map(slices, federated_zip((client_keys, *sent)))

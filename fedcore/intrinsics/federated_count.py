import numpy as np

from fedcore.intrinsics.federated_map import federated_map
from fedcore.intrinsics.federated_sum import federated_sum
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value


@intrinsic("(value: {T}@CLIENTS -> int32@SERVER)")
def federated_count(value: list[NumpyValue]) -> np.int32:
    """Counts the clients; the value itself is ignored. No clients give 0.

    Example:
        >>> clients = fc.federated_count(readings)
    """
    return np.int32(len(value))


@federated_count.lowering
def _(value: Value) -> Value:
    return federated_sum(federated_map(lambda _: 1, value))

from functools import reduce

from fedcore.intrinsics import numerics
from fedcore.intrinsics.federated_map import federated_map
from fedcore.intrinsics.federated_sum import federated_sum
from fedcore.intrinsics.maximum import maximum
from fedcore.intrinsics.minimum import minimum
from fedcore.intrinsics.rules import meets
from fedcore.ir.operations import intrinsic


@intrinsic(
    "(value: {T}@CLIENTS, max_input: M -> T@SERVER) where T: integer, M: integer",
    rule=meets("max_input"),
    constants={"max_input": "value"},
)
def federated_secure_sum(value, max_input, *, T):
    """Adds client integers of 0 to `max_input`, for a protocol that hides each client's value.

    Simulated in the clear: gives the protocol's result, but hides nothing. Values are clipped to 0 … `max_input` first.
    `max_input` is a number for all leaves, or a struct with a number for each leaf. The sum wraps, as in
    `federated_sum`. No clients give zeros.

    Example:
        >>> total = fc.federated_secure_sum(counts, 1000)
    """
    clipped = [numerics.minimum(numerics.maximum(x, numerics.zeros_like(x)), max_input) for x in value]
    return reduce(numerics.add, clipped, numerics.zeros(T))


@federated_secure_sum.lowering
def _(value, max_input):
    return federated_sum(federated_map(lambda x: minimum(maximum(x, 0), max_input), value))

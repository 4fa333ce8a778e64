"""An intrinsic, whose first lowering is wrong, and one with an attribute."""

import fedcore as fc
from fedcore.intrinsics import numerics


@fc.intrinsic("({T}@CLIENTS -> T@SERVER) where T: inexact")
def federated_mean_square(value, *, T):
    """The mean of the squares, leaf by leaf; no clients give zeros.

    Example:
        >>> power = federated_mean_square(readings)
    """
    total = numerics.zeros(T)
    for x in value:
        total = numerics.add(total, numerics.multiply(x, x))
    return numerics.leafwise(lambda t: t / t.dtype.type(max(len(value), 1)), total)


# Without clients, `federated_mean` is 0/0. The check finds it.
@federated_mean_square.lowering
def _(value):
    return fc.federated_mean(fc.federated_map(lambda x: fc.generic_multiply(x, x), value))


broken_law = ""
try:
    fc.testing.check_intrinsic(federated_mean_square)
except fc.testing.LawBroken as broken:
    broken_law = str(broken)
assert "the lowering gives the meaning's result" in broken_law


@federated_mean_square.lowering
def _(value):
    count = fc.federated_map(lambda n: fc.maximum(n, 1), fc.federated_count(value))
    squares = fc.federated_sum(fc.federated_map(lambda x: fc.generic_multiply(x, x), value))
    return fc.federated_map(lambda total, n: fc.generic_divide(total, n), (squares, count))


assert fc.testing.check_intrinsic(federated_mean_square) > 0


# The meaning and the lowering get attributes by name.
@fc.intrinsic("(value: {T}@CLIENTS -> T@SERVER) where T: inexact", attributes=("factor",))
def federated_scaled(value, factor, *, T):
    """The sum of the values, times a factor of the program.

    Example:
        >>> total = federated_scaled(readings, factor=2.0)
    """
    total = numerics.zeros(T)
    for x in value:
        total = numerics.add(total, x)
    return numerics.leafwise(lambda t: t * t.dtype.type(factor), total)


@federated_scaled.lowering
def _(value, *, factor):
    return fc.federated_map(lambda total: fc.generic_multiply(total, factor), fc.federated_sum(value))


@fc.federated_computation(fc.types.at_clients("float32"))
def doubled(readings):
    return federated_scaled(readings, factor=2.0)


assert doubled([1.0, 2.0]) == 6.0
assert "{factor=2.0}" in doubled.to_text()

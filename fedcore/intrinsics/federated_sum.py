from functools import reduce

from fedcore.intrinsics.federated_aggregate import federated_aggregate
from fedcore.intrinsics.generic_plus import generic_plus
from fedcore.intrinsics.generic_zero import generic_zero
from fedcore.intrinsics.numerics import NumpyValue, add, zeros
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import Type, member_of


@intrinsic("(value: {T}@CLIENTS -> T@SERVER) where T: numeric")
def federated_sum(value: list[NumpyValue], *, T: Type) -> NumpyValue:
    """Adds a client value leaf by leaf; no clients give zeros of T.

    Integer overflow wraps, as in numpy.

    Example:
        >>> total = fc.federated_sum(counts)
    """
    return reduce(add, value, zeros(T))


@federated_sum.lowering
def _(value: Value) -> Value:
    zero = generic_zero(member_of(value.type))
    return federated_aggregate(
        value, zero, lambda a, b: generic_plus(a, b), lambda a, b: generic_plus(a, b), lambda a: a
    )

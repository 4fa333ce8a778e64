from functools import reduce

from fedcore.intrinsics.generic_plus import generic_plus
from fedcore.intrinsics.generic_zero import generic_zero
from fedcore.intrinsics.numerics import add, zeros
from fedcore.intrinsics.sequence_reduce import sequence_reduce
from fedcore.ir.operations import LOCAL, intrinsic


@intrinsic("(value: T* -> T) where T: numeric", level=LOCAL)
def sequence_sum(value, *, T):
    """Adds the elements of a sequence leaf by leaf; an empty sequence gives zeros of T.

    Example:
        >>> total = fc.sequence_sum(sequence)
    """
    return reduce(add, value, zeros(T))


@sequence_sum.lowering
def _(value):
    return sequence_reduce(value, generic_zero(value.type.element), lambda a, b: generic_plus(a, b))

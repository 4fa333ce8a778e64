from functools import reduce

from fedcore.intrinsics.generic_plus import generic_plus
from fedcore.intrinsics.generic_zero import generic_zero
from fedcore.intrinsics.numerics import NumpyValue, add, zeros
from fedcore.intrinsics.sequence_reduce import sequence_reduce
from fedcore.ir.operations import LOCAL, intrinsic
from fedcore.ir.values import Value
from fedcore.types import SequenceType, Type


@intrinsic("(value: T* -> T) where T: numeric", level=LOCAL)
def sequence_sum(value: list[NumpyValue], *, T: Type) -> NumpyValue:
    """Adds the elements of a sequence leaf by leaf; an empty sequence gives zeros of T.

    Example:
        >>> total = fc.sequence_sum(sequence)
    """
    return reduce(add, value, zeros(T))


@sequence_sum.lowering
def _(value: Value) -> Value:
    assert isinstance(value.type, SequenceType)
    return sequence_reduce(value, generic_zero(value.type.element), lambda a, b: generic_plus(a, b))

from functools import reduce

from fedcore.intrinsics import numerics
from fedcore.intrinsics.extremum import extremum
from fedcore.intrinsics.minimum import minimum
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import Type


@intrinsic("(value: {T}@CLIENTS -> T@SERVER) where T: real")
def federated_min(value: list[NumpyValue], *, T: Type) -> NumpyValue:
    """The smallest client value, element by element.

    No clients: the largest finite number of the dtype. NaN at any client gives NaN.

    Example:
        >>> coldest = fc.federated_min(readings)
    """
    limit = numerics.extreme(T, lowest=False)
    return reduce(numerics.minimum, value) if value else limit


@federated_min.lowering
def _(value: Value) -> Value:
    return extremum(value, minimum, lowest=False)

from functools import reduce

from fedcore.intrinsics import numerics
from fedcore.intrinsics.extremum import extremum
from fedcore.intrinsics.maximum import maximum
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import Type


@intrinsic("(value: {T}@CLIENTS -> T@SERVER) where T: real")
def federated_max(value: list[NumpyValue], *, T: Type) -> NumpyValue:
    """The largest client value, element by element.

    No clients: the least finite number of the dtype. NaN at any client gives NaN.

    Example:
        >>> hottest = fc.federated_max(readings)
    """
    limit = numerics.extreme(T, lowest=True)
    return reduce(numerics.maximum, value) if value else limit


@federated_max.lowering
def _(value: Value) -> Value:
    return extremum(value, maximum, lowest=True)

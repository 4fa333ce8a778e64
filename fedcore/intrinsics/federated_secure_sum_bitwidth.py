from collections.abc import Sequence
from functools import reduce

import numpy as np

from fedcore.intrinsics import numerics
from fedcore.intrinsics.federated_secure_sum import federated_secure_sum
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import check_whole
from fedcore.ir.module import Attributes
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import StructType, TensorType, Type, member_of


def _check_bitwidth(name: str, types: Sequence[Type], attributes: Attributes) -> None:
    check_whole(name, "bitwidth", attributes["bitwidth"], 1, 64)


@intrinsic(
    "(value: {T}@CLIENTS -> T@SERVER) where T: integer",
    attributes=("bitwidth",),
    rule=_check_bitwidth,
)
def federated_secure_sum_bitwidth(value: list[NumpyValue], bitwidth: int, *, T: Type) -> NumpyValue:
    """`federated_secure_sum` of integers from 0 to 2**bitwidth - 1.

    If the bitwidth exceeds the dtype, values are clipped to 0 and the dtype's maximum.

    Example:
        >>> total = fc.federated_secure_sum_bitwidth(counts, 10)
    """
    most = _largest(T, bitwidth)
    clipped = [numerics.minimum(numerics.maximum(x, numerics.zeros_like(x)), most) for x in value]
    return reduce(numerics.add, clipped, numerics.zeros(T))


@federated_secure_sum_bitwidth.lowering
def _(value: Value, bitwidth: int) -> Value:
    return federated_secure_sum(value, _largest(member_of(value.type), bitwidth))


def _largest(type_: Type, bits: int) -> NumpyValue:
    """For each leaf the largest number of `bits` bits that its dtype holds, nested as the type is."""
    if isinstance(type_, StructType):
        return tuple(_largest(t, bits) for t in type_.types)
    assert isinstance(type_, TensorType)
    numpy = type_.dtype.numpy
    return numpy.type(min(2**bits - 1, int(np.iinfo(numpy).max)))

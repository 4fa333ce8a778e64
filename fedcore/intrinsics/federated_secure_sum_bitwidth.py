from collections.abc import Sequence
from functools import reduce

import numpy as np

from fedcore.errors import TypeMismatch, brief
from fedcore.intrinsics import numerics
from fedcore.intrinsics.federated_secure_sum import federated_secure_sum
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.module import Attributes
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import StructType, TensorType, Type, member_of


def _bits(name: str, types: Sequence[Type], attributes: Attributes) -> None:
    bits = attributes["bitwidth"]
    if not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= 64:
        raise TypeMismatch(f"{name}: `bitwidth` is a whole number of 1 to 64, not {brief(bits)}")


@intrinsic(
    "(value: {T}@CLIENTS -> T@SERVER) where T: integer",
    attributes=("bitwidth",),
    rule=_bits,
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
    if isinstance(type_, StructType):
        return tuple(_largest(t, bits) for t in type_.types)
    assert isinstance(type_, TensorType)
    numpy = type_.dtype.numpy
    return numpy.type(min(2**bits - 1, int(np.iinfo(numpy).max)))

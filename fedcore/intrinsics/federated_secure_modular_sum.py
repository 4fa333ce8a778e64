from collections.abc import Sequence

import numpy as np

from fedcore.errors import TypeMismatch
from fedcore.intrinsics import numerics
from fedcore.intrinsics.federated_map import federated_map
from fedcore.intrinsics.federated_secure_aggregate import secure_sum_of
from fedcore.intrinsics.generic_minus import generic_minus
from fedcore.intrinsics.generic_plus import generic_plus
from fedcore.intrinsics.generic_zero import generic_zero
from fedcore.intrinsics.less import less
from fedcore.intrinsics.modulo import modulo
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rules import check_whole
from fedcore.intrinsics.secure_ranges import SecureRange
from fedcore.intrinsics.where import where
from fedcore.ir.module import Attributes
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import StructType, TensorType, Type, member_of, tensor_leaves


def _check_modulus(name: str, types: Sequence[Type], attributes: Attributes) -> None:
    """The `Rule` of the intrinsic: the dtypes of all leaves hold the modulus."""
    modulus = attributes["modulus"]
    check_whole(name, "modulus", modulus, 1)
    small = [t for t in tensor_leaves(types[0]) if modulus > np.iinfo(t.dtype.numpy).max]
    if small:
        raise TypeMismatch(f"{name}: `modulus` is {modulus}, which {small[0].dtype} does not hold")


@intrinsic(
    "(value: {T}@CLIENTS -> T@SERVER) where T: integer",
    attributes=("modulus",),
    rule=_check_modulus,
)
def federated_secure_modular_sum(value: list[NumpyValue], modulus: int, *, T: Type) -> NumpyValue:
    """The sum of client integers modulo `modulus`, 0 to `modulus - 1`, in a secure sum: the server learns it only.

    `fc.runtime.local(secure_aggregation='masked')` runs the protocol; other runtimes give its result, but hide nothing.
    The sum is exact: no intermediate sum overflows, and a negative value counts by its remainder. No clients: zeros.

    Example:
        >>> total = fc.federated_secure_modular_sum(masked, 2**16)
    """
    return _modular_sum(value, T, modulus)


def _modular_sum(values: list, type_: Type, modulus: int) -> NumpyValue:
    """The sum of values of a type, modulo the modulus, in Python's integers, which do not overflow."""
    if isinstance(type_, StructType):
        parts = zip(*values, strict=True) if values else [()] * len(type_)
        return tuple(_modular_sum(list(p), t, modulus) for p, t in zip(parts, type_.types, strict=True))
    assert isinstance(type_, TensorType)
    total = np.asarray(numerics.zeros(type_)).astype(object)
    for x in values:
        total = (total + np.asarray(x).astype(object)) % modulus
    return np.asarray(total).astype(type_.dtype.numpy)


@federated_secure_modular_sum.lowering
def _(value: Value, modulus: int) -> Value:
    member = member_of(value.type)
    remainders = federated_map(lambda x: modulo(x, modulus), value)
    ranges = (str(SecureRange(modulus - 1, modulus)),) * len(tensor_leaves(member))
    if modulus & (modulus - 1) == 0:  # sums that wrap are congruent modulo a power of 2
        return secure_sum_of(remainders, ranges, report=lambda total: modulo(total, modulus))

    def add_modular(a: Value, b: Value) -> Value:
        complement = generic_minus(generic_plus(generic_zero(member), modulus), b)  # a + b might be too large
        return where(less(a, complement), generic_plus(a, b), generic_minus(a, complement))

    return secure_sum_of(remainders, ranges, add_modular)

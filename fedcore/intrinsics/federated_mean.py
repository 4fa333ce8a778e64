from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcore.errors import TypeMismatch
from fedcore.intrinsics import numerics
from fedcore.intrinsics.cast import cast_leaves
from fedcore.intrinsics.federated_apply import federated_apply
from fedcore.intrinsics.federated_map import federated_map
from fedcore.intrinsics.federated_sum import federated_sum
from fedcore.intrinsics.federated_zip import federated_zip
from fedcore.intrinsics.generic_divide import generic_divide
from fedcore.intrinsics.generic_multiply import generic_multiply
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.module import Attributes
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import TensorType, Type, as_dtype, member_of


def _check_weight(name: str, types: Sequence[Type], attributes: Attributes) -> None:
    """The `Rule` of the intrinsic: the weight, if there is one, is a real scalar."""
    weight = member_of(types[1]) if len(types) > 1 else None
    if weight is not None and not (
        isinstance(weight, TensorType) and weight.shape == () and not weight.dtype.is_complex
    ):
        raise TypeMismatch(f"{name}: `weight` is one real number a client, not {weight}")


@intrinsic(
    "(value: {T}@CLIENTS, weight?: {W}@CLIENTS -> T@SERVER) where T: inexact, W: numeric",
    rule=_check_weight,
)
def federated_mean(value: list[NumpyValue], weight: list[np.ndarray] | None = None, *, T: Type) -> NumpyValue:
    """The mean of a client value, weighted by the scalar `weight` if it is given.

    Each leaf is computed in its own dtype, floats of 16 bits in float32. Integer weights, and those of a value with a
    float64 or complex128, are added in float64, which does not overflow. No clients, or weights that add to zero, give
    NaN.

    Example:
        >>> average = fc.federated_mean(updates, num_examples)
    """
    weights = [np.ones((), np.float32)] * len(value) if weight is None else list(map(np.asarray, weight))
    wide = numerics.sum_type(T)
    total = numerics.zeros(wide)
    weight_sum: Any = np.float64(0)
    for x, w in zip(value, weights, strict=True):
        total = numerics.add(total, numerics.multiply(numerics.cast_to(x, wide), w))
        weight_sum = weight_sum + numerics.cast_to(w, numerics.weight_sum_type(TensorType(as_dtype(w.dtype)), T))
    return numerics.cast_to(numerics.divide(total, weight_sum), T)


@federated_mean.lowering
def _(value: Value, weight: Value | None = None) -> Value:
    type_ = member_of(value.type)
    wide = numerics.sum_type(type_)
    if weight is None:
        pairs = federated_map(lambda v: (cast_leaves(v, wide), 1.0), value)
    else:
        weight_type = numerics.weight_sum_type(member_of(weight.type), type_)

        def weigh(v: Value, w: Value) -> tuple[Value, Value]:
            w = cast_leaves(w, weight_type)
            return generic_multiply(cast_leaves(v, wide), w), w

        pairs = federated_map(lambda v, w: weigh(v, w), federated_zip((value, weight)))
    return federated_apply(lambda total, count: cast_leaves(generic_divide(total, count), type_), federated_sum(pairs))

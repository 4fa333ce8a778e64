from fedcore.errors import TypeMismatch
from fedcore.intrinsics import numerics
from fedcore.intrinsics.federated_apply import federated_apply
from fedcore.intrinsics.federated_map import federated_map
from fedcore.intrinsics.federated_sum import federated_sum
from fedcore.intrinsics.federated_zip import federated_zip
from fedcore.intrinsics.generic_divide import generic_divide
from fedcore.intrinsics.generic_multiply import generic_multiply
from fedcore.ir.operations import intrinsic
from fedcore.types import TensorType, member_of


def _scalar_weight(name: str, types, attributes) -> None:
    weight = member_of(types[1]) if len(types) > 1 else None
    if weight is not None and not (
        isinstance(weight, TensorType) and weight.shape == () and not weight.dtype.is_complex
    ):
        raise TypeMismatch(f"{name}: `weight` is one real number a client, not {weight}")


@intrinsic(
    "(value: {T}@CLIENTS, weight?: {W}@CLIENTS -> T@SERVER) where T: inexact, W: numeric",
    rule=_scalar_weight,
)
def federated_mean(value, weight=None, *, T):
    """The mean of a client value, weighted by the scalar `weight` if it is given.

    Each leaf is computed in its own dtype. No clients, or weights that add to zero, give NaN.

    Example:
        >>> average = fc.federated_mean(updates, num_examples)
    """
    weights = [1] * len(value) if weight is None else weight
    total, count = numerics.zeros(T), 0
    for x, w in zip(value, weights, strict=True):
        total, count = numerics.add(total, numerics.multiply(x, w)), count + w
    return numerics.divide(total, count)


@federated_mean.lowering
def _(value, weight=None):
    if weight is None:
        pairs = federated_map(lambda v: (v, 1.0), value)
    else:
        pairs = federated_map(lambda v, w: (generic_multiply(v, w), w), federated_zip((value, weight)))
    return federated_apply(lambda total, count: generic_divide(total, count), federated_sum(pairs))

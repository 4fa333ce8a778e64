"""Lowering of `federated_max` and `federated_min`."""

from collections.abc import Callable

from fedcore.intrinsics import numerics
from fedcore.intrinsics.federated_aggregate import federated_aggregate
from fedcore.intrinsics.generic_plus import generic_plus
from fedcore.intrinsics.generic_zero import generic_zero
from fedcore.intrinsics.where import where
from fedcore.ir.values import Value
from fedcore.types import member_of


def extremum(value: Value, pick: Callable[[Value, Value], Value], *, lowest: bool) -> Value:
    """Folds `pick` over the clients; no clients give the finite limits of the dtype.

    The accumulator is (extremum, whether it holds a value): the limits that it starts from are no identity of `pick`,
    since values may be infinite.

    Args:
        pick: `minimum` or `maximum`.
        lowest: no clients give the least number of the dtype, not the largest.
    """
    member = member_of(value.type)
    limits = numerics.limits(member, lowest=lowest)

    def accumulate(state: Value, x: Value) -> tuple[Value, bool]:
        return where(state[1], pick(state[0], x), x), True

    def merge(a: Value, b: Value) -> tuple[Value, Value]:
        return where(b[1], where(a[1], pick(a[0], b[0]), b[0]), a[0]), where(a[1], True, b[1])

    zero = (generic_plus(generic_zero(member), limits), False)
    return federated_aggregate(value, zero, accumulate, merge, lambda state: state[0])

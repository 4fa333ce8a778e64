from collections.abc import Sequence

from fedcore.errors import TypeMismatch
from fedcore.intrinsics.federated_aggregate import federated_aggregate
from fedcore.intrinsics.generic_zero import generic_zero
from fedcore.intrinsics.numerics import NumpyValue
from fedcore.intrinsics.rows import append_rows, as_row, no_rows, sequence_from_rows
from fedcore.intrinsics.rules import check_whole
from fedcore.ir.module import Attributes
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import Type, is_static, member_of, tensor_leaves


def _check_bounded(name: str, types: Sequence[Type], attributes: Attributes) -> None:
    """The `Rule` of `federated_collect`: `max_clients` bounds its memory, and values of known shapes become rows.

    Raises:
        TypeMismatch: `max_clients` is no positive int, or a client value holds no tensor or one of unknown shape.
    """
    check_whole(name, "max_clients", attributes["max_clients"], 1)
    if not tensor_leaves(types[0]):
        raise TypeMismatch(f"{name}: a value of type {member_of(types[0])} holds no tensors, so it makes no rows")
    varying = [t for t in tensor_leaves(types[0]) if not is_static(t.shape)]
    if varying:
        raise TypeMismatch(f"{name}: values of {varying[0]} differ in shape, so they make no rows; pad them first")


@intrinsic(
    "(value: {T}@CLIENTS -> T*@SERVER) where T: numeric",
    attributes=("max_clients",),
    rule=_check_bounded,
)
def federated_collect(value: list[NumpyValue], max_clients: int) -> list[NumpyValue]:
    """The values of the first `max_clients` clients as a sequence at the server, in client order.

    The server sees each client's value, which an aggregation would hide. `max_clients` bounds the memory; further
    clients contribute nothing. No clients: an empty sequence.

    Example:
        >>> spread = fc.sequence_reduce(fc.federated_collect(readings, 100), 0.0, lambda m, x: fc.maximum(m, x))
    """
    return value[:max_clients]


@federated_collect.lowering
def _(value: Value, max_clients: int) -> Value:
    def accumulate(rows: Value, x: Value) -> Value:
        return append_rows.emit([rows, as_row(x)], at_most=max_clients)

    def merge(left: Value, right: Value) -> Value:
        return append_rows.emit([left, right], at_most=max_clients)

    zero = generic_zero(no_rows(member_of(value.type)))
    return federated_aggregate(value, zero, accumulate, merge, lambda rows: sequence_from_rows(rows))

"""Gathers all client values at the server as rows, for aggregators such as the median that are not sums."""

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.intrinsics import federated_aggregate, generic_zero
from fedcore.intrinsics.rows import append_rows, as_row, no_rows
from fedcore.ir.values import Value
from fedcore.types import TensorType, Type, is_static, map_tensors, tensor_leaves


def rows_type(type_: Type) -> Type:
    """The type whose leaves have a leading dimension more, of unknown size."""
    return map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes)), type_)


def require_stackable(row_type: Type) -> None:
    """Refuses values that cannot be the rows of tensors.

    Raises:
        TypeMismatch: a shape is not known.
    """
    if not all(is_static(t.shape) for t in tensor_leaves(row_type)):
        raise TypeMismatch(f"values of unknown shapes cannot be stacked: {row_type}")


def gather_rows(value: Value, row_type: Type, report: Computation) -> Value:
    """`report` of the rows, in the order of the clients; the server holds all of them.

    Args:
        value: a client value of row_type, whose shapes must be known.
        report: a computation over `rows_type(row_type)`.
    Raises:
        TypeMismatch: a shape is not known.
    """
    require_stackable(row_type)

    def accumulate(rows: Value, row: Value) -> Value:
        return append_rows.emit([rows, as_row(row)])

    def merge(left: Value, right: Value) -> Value:
        return append_rows.emit([left, right])

    return federated_aggregate(value, generic_zero(no_rows(row_type)), accumulate, merge, report)

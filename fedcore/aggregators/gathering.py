"""Gathers all client values at the server as rows, for aggregators such as the median that are not sums."""

import tensorflow as tf

from fedcore.computation import Computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_aggregate, generic_zero
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
    rows = rows_type(row_type)

    def none_of(leaf: tf.Tensor) -> tf.Tensor:
        # The static shape leaves the number of rows open, so that the partial keeps its type when rows are added.
        empty = tf.zeros([0, *leaf.shape], leaf.dtype)
        return tf.compat.v1.placeholder_with_default(empty, [None, *leaf.shape])

    start = tf_computation(row_type)(lambda like: tf.nest.map_structure(none_of, like))

    @tf_computation(rows, row_type)
    def accumulate(stack: TensorStructure, row: TensorStructure) -> TensorStructure:
        return tf.nest.map_structure(lambda s, r: tf.concat([s, r[None]], 0), stack, row)

    @tf_computation(rows, rows)
    def merge(left: TensorStructure, right: TensorStructure) -> TensorStructure:
        return tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), left, right)

    return federated_aggregate(value, start(generic_zero(row_type)), accumulate, merge, report)

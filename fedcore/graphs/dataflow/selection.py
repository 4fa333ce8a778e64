"""Selection between two values for each client.

In:  a condition, bool [K], and values [K, …]. Out: for client k the entry k of one value where its condition holds, of
the other where it does not. Large values are passed on without a copy if the condition holds for all clients.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from fedcore.graphs.dataflow.control_flow import computed_if
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.dataflow.operations import broadcast_to, computed_by, operation, reduce_all, shape

FAST_PATH_ENTRIES = 1 << 12
"""Entries of a value from which on `select_by_client` tests whether the condition holds for all clients."""


def select_rows(condition: Value, if_true: Sequence[Value], if_false: Sequence[Value]) -> list[Value]:
    """For each client k the entry k of `if_true` where its condition holds, else of `if_false`.

    Args:
        condition: bool [K].
        if_true: values [K, …].
        if_false: as many values that broadcast to the shapes of `if_true`.
    """
    results = []
    for a, b in zip(if_true, if_false, strict=True):
        if not are_equal(b.shape, a.shape):
            b = broadcast_to(b, a.shape if a.shape.is_fully_defined() else shape(a))
        results.append(operation("Select", condition, a, b))
    return results


def are_equal(a: tf.TensorShape, b: tf.TensorShape) -> bool:
    """Whether two shapes are known and equal; two unknown sizes may differ."""
    return a.is_fully_defined() and a == b


def select_by_client(condition: Value, if_true: Sequence[Value], if_false: Sequence[Value]) -> list[Value]:
    """For each client entry k of `if_true` where its condition holds, else of `if_false`; avoids copies of large
    values.

    If a value of `if_true` is the value of `if_false`, it is returned. If the condition holds for all clients, the
    large values of `if_true`, and those of unknown size or rank, are passed through.

    Args:
        condition, if_true, if_false: as for `select_rows`.
    """
    results: list[Value] = []
    all_true = None
    for a, b in zip(if_true, if_false, strict=True):
        if a is b:
            results.append(a)
        elif not a.shape.is_fully_defined() or math.prod(a.shape) >= FAST_PATH_ENTRIES:
            all_true = reduce_all(condition) if all_true is None else all_true
            results += _select_unless_all(all_true, condition, a, b)
        else:
            results += select_rows(condition, [a], [b])
    return results


def _select_unless_all(all_true: Value, condition: Value, if_true: Value, if_false: Value) -> list[Value]:
    """The selected value, in a list of one: a branch, which passes `if_true` on without a copy where `all_true` holds.

    If `if_false` has to be broadcast, only the side that selects does so. If it is filled with one number, that side
    gets the number, so that `if_false` is not built where it is not read.

    Args:
        all_true: bool, whether the condition holds for all clients.
        condition: bool [K].
    """
    some_false = operation("LogicalNot", all_true)
    if are_equal(if_false.shape, if_true.shape):
        return computed_if(some_false, lambda x: select_rows(condition, [x], [if_false]), [if_true], [if_true])
    fill_node = computed_by(if_false, "Fill")
    small = if_false if fill_node is None else fill_node.inputs[1]
    return computed_if(some_false, lambda x, y: select_rows(condition, [x], [y]), [if_true, small], [if_true])

"""A leaf is sum-only if the fold only adds to it; other uses, other operations and other dtypes make it none."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.batched.reduction import SUMMED_DTYPES, Reduction
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import cond
from fedcore.graphs.dataflow.graph import new_region

SPECS = [tf.TensorSpec([5]), tf.TensorSpec([5]), tf.TensorSpec([])]


def built(read, fold=None, merge=None, *, specs=SPECS, zeros=None):
    """`read` of a reduction in a region; by default each leaf is added, to zeros."""
    results = []

    def add(left, right):
        return [a + b for a, b in zip(left, right, strict=True)]

    def body(*_):
        start = [ops.zeros([1, *s.shape], s.dtype) for s in specs] if zeros is None else zeros()
        before = len(ops.current_block().nodes)
        results.append(read(Reduction(fold or add, merge or add, start, specs)))
        assert len(ops.current_block().nodes) == before, "a reduction is looked at without adding operations"
        return []

    new_region([], body)
    return results[0]


def sum_only_leaves(fold, **options):
    return built(lambda r: r.sum_only_leaves, fold, **options)


def leaves_only_summed(fold):
    return built(lambda r: r.leaves_only_summed, fold)


def test_a_fold_that_adds_each_leaf_only_sums():
    assert sum_only_leaves(None) == leaves_only_summed(None) == {0: 0, 1: 1, 2: 2}


def test_the_operands_of_a_sum_may_stand_in_any_order_and_at_any_leaf():
    assert sum_only_leaves(lambda c, b: [c[1] + b[0], b[1] + c[0], c[2] + b[2]]) == {0: 1, 1: 0, 2: 2}


@pytest.mark.parametrize(
    "first",
    [
        lambda c, b: ops.maximum(b[0], c[0]),
        lambda c, b: b[0] + c[0] * 2.0,
        lambda c, b: b[0] + b[0],
        lambda c, b: c[0] + c[1],
        lambda c, b: b[1] + c[0],
        lambda c, b: b[0] + c[0] + c[1],
        lambda c, b: b[0] - c[0],
        lambda c, b: b[0],
        lambda c, b: c[0],
    ],
    ids=["maximum", "twice", "itself", "two clients", "another leaf", "two addends", "difference", "start", "last"],
)
def test_a_leaf_with_another_operation_is_not_sum_only(first):
    assert sum_only_leaves(lambda c, b: [first(c, b), b[1], b[2]]) == {}


def test_a_contribution_with_another_use_is_not_only_summed():
    for other in (
        lambda c, b: ops.reduce_max(c[0], -1),
        lambda c, b: cond(ops.reduce_any(b[2] > 0), lambda: [c[0]], lambda: [c[1] * 2.0])[0][:, 0],
    ):

        def fold(c, b, other=other):
            return [b[0] + c[0], b[1] + c[1], other(c, b)]

        assert sum_only_leaves(fold) == {0: 0, 1: 1}
        assert 0 not in leaves_only_summed(fold)
    assert leaves_only_summed(lambda c, b: [b[0] + c[0], b[1] + c[0], b[2] + c[2]]) == {2: 2}
    assert leaves_only_summed(lambda c, b: [b[0] + c[0], c[0], b[2] + c[2]]) == {2: 2}


def test_a_leaf_that_another_leaf_reads_is_not_sum_only():
    """Its value after each client is used, and not that of the block alone."""
    for other in (
        lambda c, b: ops.maximum(b[1], b[0]),
        lambda c, b: b[0],
        lambda c, b: cond(ops.reduce_any(b[2] > 0), lambda: [b[0]], lambda: [b[1]])[0],
    ):

        def fold(c, b, other=other):
            return [b[0] + c[0], other(c, b), b[2] + c[2]]

        assert 0 not in sum_only_leaves(fold)
    assert sum_only_leaves(lambda c, b: [b[0] + c[0], ops.maximum(b[1], b[0] + c[0]), b[2] + c[2]]) == {2: 2}


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64, tf.int8])
def test_sums_of_dtypes_with_other_accumulators_are_none(dtype):
    is_summed = sum_only_leaves(None, specs=[tf.TensorSpec([3], dtype)]) == {0: 0}
    assert is_summed == (dtype in SUMMED_DTYPES)


def test_leaves_that_the_merge_adds():
    def merged(merge):
        return built(lambda r: r.leaves_only_merged_by_sums, merge=merge)

    assert merged(None) == {0, 1, 2}
    assert merged(lambda a, b: [b[0] + a[0], ops.maximum(a[1], b[1]), a[2] + a[2]]) == {0}
    assert merged(lambda a, b: [a[1] + b[1], a[0] + b[0], a[2] + 1.0]) == set()


def test_a_leaf_starts_from_zeros_if_its_entries_are_known_to_be_zeros():
    def zeros():
        return [
            ops.broadcast_to(ops.constant(np.float32(0)), [1, 5]),
            ops.constant(np.zeros((1, 5), "f")),
            ops.constant(np.float32([-0.0])),
        ]

    assert built(lambda r: [r.starts_from_zeros(i) for i in range(3)], zeros=zeros) == [True, True, False]

    def others():
        unknown = ops.placeholder(tf.float32, [1, 5])
        return [ops.zeros([1, 5]) + unknown, unknown, ops.ones([1])]

    assert built(lambda r: [r.starts_from_zeros(i) for i in range(3)], zeros=others) == [False] * 3

"""Batching rules of elementwise operations."""

import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import check, check_padded, traced
from hypothesis import given, settings
from hypothesis import strategies as st
from run_region import run_region

from fedcore.graphs.batched.batched_call import batched_call
from fedcore.graphs.batched.batched_value import batched
from fedcore.graphs.dataflow.selection import FAST_PATH_ENTRIES


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize(
    "name", ["relu", "elu", "selu", "leaky_relu", "gelu", "silu", "softsign", "relu6", "tanh", "sigmoid", "softplus"]
)
def test_activations_and_their_gradients(name):
    def fn(x, w):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = getattr(tf.nn, name)(x)
        return y, tape.gradient(y, x, 2.0 * w)

    check(fn, normal(8, 5, 7), normal(8, 5, 7, seed=1))


@settings(max_examples=settings.default.max_examples // 2)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans())
def test_gradients_of_broadcasting(a, b, c, one, first):
    def fn(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            out = x * y + tf.tanh(y)
        return tape.gradient(out, [x, y])

    x, y = normal(8, a, b, c), normal(8, 1 if one else b, c, seed=1)
    check(fn, *((x, y) if first else (y, x)), widths=(3,), tolerance=1e-5)


def test_comparisons_selections_and_bits():
    def fn(x, y):
        chosen = tf.where(x > y, x, 0.0)
        return chosen, tf.bitcast(x, tf.int32) & 255, tf.cast(x == y, tf.int64), tf.clip_by_value(x, -0.5, 0.5)

    check(fn, normal(8, 4, 3), normal(8, 3, seed=1))


def test_elementwise_over_a_padded_batch():
    def fn(x, w):
        return tf.nn.sigmoid(x * w) + 1.0, tf.zeros_like(x), tf.ones_like(x) * 2.0, tf.fill(tf.shape(x), 3.0)

    check_padded(fn, normal(3, 6, 5), normal(3, 5, seed=1), padded=[0], sizes=[6, 1, 4])


@pytest.mark.parametrize("ends", [[3] * 8, [0] * 8, [3, 1, 0, 2, 3, 3, 1, 0]], ids=["all", "none", "some"])
@pytest.mark.parametrize("where", ["straight", "in a loop", "in a branch"])
def test_selection_between_large_tensors(ends, where):
    def step(x, number, end):
        grown = tf.where(number < end, x * 2.0 + 1.0, x)
        return tf.where(number < end, grown, tf.zeros_like(x)) + tf.where(number < end, x, 1.5)

    def fn(x, end, taken):
        if where == "straight":
            return step(x, 1, end)
        if where == "in a loop":
            return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, step(x, i, end)), (0, x))[1]
        return tf.cond(taken, lambda: step(x, 1, end), lambda: x)

    x = normal(8, 70, 80)
    assert x[0].size > FAST_PATH_ENTRIES
    check(fn, x, np.int32(ends), np.array(True), shared=[2])


def test_a_selection_with_scalars_masks_values_that_are_not_finite():
    def fn(x):
        return tf.where(tf.math.is_finite(x), x, 0.0), tf.where(x > 0.0, 1.0, -1.0)

    x = normal(8, 4, 3)
    x[0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, -np.inf
    check(fn, x)


def test_reductions_leave_out_padded_rows_that_are_not_finite():
    x = normal(3, 6, 5)
    x[1, 1:], x[2, 4:] = np.nan, np.inf  # behind the clients' own rows

    def sums(x, sizes):
        arguments = [batched(x, 0)]
        return [value.tensor for value in batched_call(graph, graph.data, arguments, sizes)]

    graph = traced(lambda x: (tf.reduce_sum(x, 0), tf.reduce_mean(tf.reduce_max(x, 1))), (None, 5))
    found = run_region(sums, x, np.array([6, 1, 4]))
    for i, size in enumerate([6, 1, 4]):
        np.testing.assert_allclose(found[0][i], x[i, :size].sum(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[1][i], x[i, :size].max(1).mean(), rtol=1e-5)


def test_integers_are_not_divided_by_the_zeros_of_padded_rows():
    x = np.arange(1, 25, dtype=np.int32).reshape(4, 6)
    for divide in (tf.math.floordiv, tf.math.floormod, tf.truncatediv):
        check_padded(lambda x, y, f=divide: f(y, tf.maximum(x, 0)), x, 2 * x, padded=[0, 1], sizes=[6, 1, 2, 3])


def test_a_value_is_clipped_from_above_and_then_from_below():
    check(lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=2.0, clip_value_max=-1.0), normal(8, 6))

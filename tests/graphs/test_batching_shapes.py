"""Batching rules of reductions, shapes, slices and concatenations."""

import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import check, check_padded, traced, why_not_batchable
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching_elementwise import normal

from fedcore.graphs.batched.batching_rules.arrays import fuse_transposes
from fedcore.graphs.dataflow.graph import new_region

REDUCTIONS = ["reduce_mean", "reduce_variance"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2)])
def test_reductions(name, axis):
    def fn(x):
        reduce = getattr(tf.math, name)
        return reduce(x, axis), reduce(x, axis, keepdims=True)

    check(fn, normal(8, 3, 5, 7), tolerance=1e-5)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)])
def test_reductions_over_a_padded_batch(name, axis):
    def fn(x):
        return getattr(tf.math, name)(x, axis), getattr(tf.math, name)(x, axis, keepdims=True)

    check_padded(fn, normal(4, 6, 3, 2), padded=[0], sizes=[6, 1, 4, 2], tolerance=1e-5)


def test_reductions_of_zeros_over_a_padded_batch():
    """All clients share the zeros, and they need no mask."""

    def fn(x):
        zeros = tf.zeros_like(x)
        sums = tf.reduce_sum(zeros, 0), tf.reduce_sum(zeros), tf.reduce_mean(zeros, 0), tf.nn.l2_loss(zeros)
        return [s + tf.reduce_sum(x, 0) for s in sums]

    check_padded(fn, normal(4, 6, 3), padded=[0], sizes=[6, 1, 3, 0])


def repeated_twice(x):
    return tf.repeat(tf.repeat(x, 3, axis=1), 2, axis=2)


@pytest.mark.parametrize(
    "fn",
    [
        repeated_twice,
        lambda x: tf.tile(x, [1, 2, 3, 1, 2]),
        lambda x: tf.reduce_mean(x[:, tf.newaxis, :, tf.newaxis, :, :, :, tf.newaxis], [2, 6], keepdims=True),
        lambda x: tf.reduce_max(x[:, tf.newaxis, :, tf.newaxis, :, :, :, tf.newaxis], [0, 1, 6]),
    ],
)
def test_reductions_of_many_axes(fn):
    """As in gradients of `repeat` and `tile`, which add up twice as many axes."""

    def with_gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = fn(x)
            loss = tf.reduce_sum(tf.tanh(out))
        return tf.reduce_sum(out, list(range(1, out.shape.rank))), tape.gradient(loss, x)

    check(with_gradient, normal(8, 3, 2, 2, 2, 3))
    check_padded(with_gradient, normal(4, 6, 2, 2, 2, 3), padded=[0], sizes=[6, 1, 3, 0])


@pytest.mark.parametrize(
    ("axes", "fn"),
    [
        (5, lambda x: tf.pad(x, [[0, 0], *[[1, 1]] * 3, [0, 0]], "REFLECT")),
        (7, lambda x: tf.argmax(x, 1)),
        (8, lambda x: x[..., ::2]),
        (8, lambda x: tf.reverse(x, [7])),
    ],
)
def test_an_operation_whose_kernel_takes_no_more_axes_has_no_rule(axes, fn):
    graph = traced(fn, (2,) * axes)
    refused = why_not_batchable(graph, graph.data, {0})
    assert refused is not None
    assert refused.why == f"TensorFlow's kernel takes no more than {axes} axes"
    assert why_not_batchable(graph, graph.data, set()) is None


def test_no_rows_reduce_to_what_an_empty_batch_reduces_to():
    def fn(x):
        return tf.reduce_sum(x), tf.reduce_max(x), tf.reduce_mean(x, 0), tf.reduce_all(x > 0), tf.shape(x)[0]

    check_padded(fn, normal(3, 4, 2), padded=[0], sizes=[0, 4, 1])


def test_argmax_and_argmin():
    def fn(x):
        return tf.argmax(x, -1), tf.argmin(x, 0), tf.reduce_any(x > 1, 0), tf.reduce_all(x < 1)

    check(fn, normal(8, 4, 5))
    check_padded(fn, normal(3, 4, 5), padded=[0], sizes=[4, 2, 1])


def test_rows_whose_target_is_among_the_largest_predictions():
    def fn(predictions, targets):
        return tf.math.in_top_k(targets, predictions, 2), tf.math.in_top_k(targets, predictions, 9)

    targets = np.random.default_rng(1).integers(-1, 7, (8, 4)).astype(np.int32)
    predictions = np.round(normal(8, 4, 6))  # with equal ones
    predictions[1, 0, 2] = np.nan
    check(fn, predictions, targets)
    check_padded(fn, predictions, targets, padded=[0, 1], sizes=[4, 0, 1, 3, 4, 2, 4, 1])


def test_shapes_that_are_asked_for():
    def fn(x):
        return tf.ensure_shape(x, [None, 3, None]) * 2.0

    check(fn, normal(8, 4, 3, 2))
    check_padded(fn, normal(8, 4, 3, 2), padded=[0], sizes=[4, 0, 1, 3, 4, 2, 4, 1])
    of_rows = traced(lambda x: tf.ensure_shape(x, [4, 3]), (None, 3))
    assert "it asks for a number of rows" in str(why_not_batchable(of_rows, of_rows.data, {0}, {0: 0}))


def test_sizes_read_off_a_padded_batch_are_the_clients_own_as_data():
    def fn(x):
        n = tf.shape(x)[0]
        return n, tf.size(x), tf.cast(n, tf.float32) / 2.0, tf.maximum(n, 2), tf.reduce_prod(tf.shape(x)[:2]), 3 * n + 1

    check_padded(fn, normal(4, 6, 3), padded=[0], sizes=[6, 1, 4, 3])


def test_sizes_read_off_a_padded_batch_shape_tensors():
    def fn(x):
        n = tf.shape(x)[0]
        flat = tf.reshape(x, [n, -1])
        rows = tf.reshape(x, [-1, 2])
        back = tf.reshape(rows, [n, 3, 2])
        spread = tf.broadcast_to(tf.reduce_mean(x), tf.shape(x))
        return (
            flat,
            rows,
            tf.reduce_sum(rows, 0),
            back - x,
            spread,
            tf.tile([[1.0, 2.0]], tf.stack([n, 1])),
            tf.range(n),
        )

    check_padded(fn, normal(4, 6, 3, 2), padded=[0], sizes=[6, 1, 4, 3])


def test_concatenations_and_slices():
    def fn(x, y):
        a, b = tf.split(x, 2, axis=1)
        parts = tf.unstack(y, axis=-1)
        return (
            tf.concat([x, y], -1),
            tf.stack([a, b], 1),
            parts[0],
            x[..., 1:, tf.newaxis],
            x[:, 0],
            tf.transpose(x),
            tf.pad(x, [[0, 0], [1, 2]]),
            tf.reverse(x, [1]),
            tf.expand_dims(y, -1),
            tf.slice(x, [0, 1], [-1, 2]),
        )

    check(fn, normal(8, 3, 4), normal(8, 3, 2, seed=1))
    check_padded(fn, normal(3, 5, 4), normal(3, 5, 2, seed=1), padded=[0, 1], sizes=[5, 2, 1])
    check(fn, normal(8, 3, 4), normal(3, 2, seed=1), shared=[1])


def test_gradients_of_slices():
    def fn(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x[:, 1:3] ** 2) + tf.reduce_sum(x[..., 0]) + tf.reduce_sum(tf.concat([x, x], 1) ** 3)
        return tape.gradient(y, x)

    check(fn, normal(8, 3, 4), tolerance=1e-5)
    check_padded(fn, normal(3, 5, 4), padded=[0], sizes=[5, 2, 1], tolerance=1e-5)


@settings(max_examples=settings.default.max_examples // 2)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_reshapes_and_transposes(shape, random):
    order = list(range(len(shape)))
    random.shuffle(order)

    def fn(x):
        moved = tf.transpose(x, order)
        return moved, tf.reshape(moved, [-1]), tf.reshape(x, [shape[0], -1]), tf.squeeze(tf.expand_dims(x, 1), 1)

    check(fn, normal(8, *shape), widths=(3,))


def test_a_squeeze_without_axes_is_refused_where_a_batch_of_one_row_loses_its_batch_axis():
    graph = traced(lambda x: tf.reduce_sum(tf.reduce_max(tf.squeeze(x), 0)), (np.float32, (None, 3)))
    refused = why_not_batchable(graph, graph.data, {0}, {0: 0})
    assert "without axes it removes the batch axis of a batch of one row" in str(refused)
    assert why_not_batchable(graph, graph.data, set()) is None


def test_a_squeeze_without_axes_keeps_the_entries_of_all_rows():
    def fn(x):
        return tf.reduce_max(tf.squeeze(tf.reshape(x, [-1, 1])), 0), tf.reduce_sum(tf.squeeze(x, 2), 0)

    check_padded(fn, normal(4, 6, 3, 1), padded=[0], sizes=[6, 1, 4, 2], tolerance=1e-5)


def test_transposes_in_a_row_are_one_or_none():
    def body(x):
        moved = fuse_transposes(x, [1, 2, 0])
        assert fuse_transposes(moved, [2, 0, 1]) is x
        twice = fuse_transposes(moved, [0, 2, 1])
        assert twice.node.inputs[0] is x
        assert twice.shape == [3, 2, 4]
        return [twice]

    assert len(new_region([(tf.float32, [2, 3, 4])], body).results) == 1


def test_one_hot_and_gathers():
    def fn(table, ids):
        return (
            tf.one_hot(ids, 7),
            tf.gather(table, ids),
            tf.gather(table, ids, axis=1),
            tf.gather_nd(table, ids[:, None]),
        )

    ids = np.random.default_rng(0).integers(0, 5, (8, 6)).astype(np.int32)
    check(fn, normal(8, 5, 5), ids)
    check(fn, normal(5, 5), ids, shared=[0])
    check(fn, normal(8, 5, 5), ids[0], shared=[1])
    check_padded(fn, normal(8, 5, 5), ids, padded=[1], sizes=[6, 1, 2, 3, 4, 5, 6, 1])


@pytest.mark.parametrize("batch_dims", [-2, -1, 1, 2])
def test_gathers_from_the_rows_of_a_batch(batch_dims):
    rows = np.random.default_rng(0).integers(0, 3, (8, 3, 3))
    check(lambda x, i: tf.gather(x, i, batch_dims=batch_dims, axis=2), normal(8, 3, 3, 3), rows)


def test_stateless_draws_are_each_clients_own():
    def fn(seed, x):
        return tf.random.stateless_uniform(tf.shape(x), seed), tf.random.stateless_normal(tf.shape(x), seed)

    seeds = np.arange(16, dtype=np.int64).reshape(8, 2)
    check(fn, seeds, normal(8, 5, 3))
    check_padded(fn, seeds, normal(8, 5, 3), padded=[1], sizes=[5, 4, 3, 2, 1, 5, 4, 3])


def test_an_equation_may_have_any_letters():
    check(lambda x, y: tf.einsum("uvw,wxyz->uvxyz", x, y), normal(8, 2, 3, 2), normal(8, 2, 2, 3, 2))


def test_counts_are_those_of_each_client():
    def counts(numbers, weights):
        count = tf.raw_ops.DenseBincount
        return (
            count(input=numbers, size=6, weights=tf.zeros([0], tf.int32), binary_output=False),
            count(input=numbers, size=6, weights=weights, binary_output=False),
        )

    rng = np.random.default_rng(0)
    check(counts, rng.integers(0, 6, (8, 9)).astype(np.int32), rng.integers(0, 9, (8, 9)).astype(np.int32))


def test_a_list_without_elements_is_added_to_a_list_of_each_client():
    def fn(x):
        empty, zeros = (
            tf.raw_ops.TensorListReserve(element_shape=[3], num_elements=4, element_dtype=tf.float32) for _ in range(2)
        )
        own = tf.raw_ops.TensorListSetItem(input_handle=zeros, index=1, item=x)
        sums = [tf.raw_ops.AddN(inputs=pair) for pair in ([empty, own], [own, empty], [own, own])]
        return [tf.raw_ops.TensorListStack(input_handle=s, element_shape=[3], element_dtype=tf.float32) for s in sums]

    check(fn, normal(8, 3))

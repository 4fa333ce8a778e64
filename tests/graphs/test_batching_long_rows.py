"""Batching rules that add up rows: kernels do so in an order that depends on where a row begins in memory.

That place depends on the client's place in its group, so rows are padded to whole vector registers.
"""

import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import check, check_padded

from fedcore.graphs.batched.aligned_reductions import reduce_aligned
from fedcore.graphs.batched.batching_rules.matmul import MANY_CLASSES


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(8, *shape)).astype("f")


@pytest.mark.parametrize("size", [1003, 26003, pytest.param(8195, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "fn",
    [
        *(tf.reduce_sum, tf.reduce_mean, tf.norm, tf.nn.l2_loss, tf.reduce_logsumexp, tf.math.reduce_std, tf.cumsum),
        *(tf.nn.softmax, tf.nn.log_softmax),
        lambda x: tf.reduce_prod(1 + 0.01 * x),
        lambda x: tf.reduce_sum(tf.cast(x, tf.float64)),
    ],
)
def test_long_rows(fn, size):
    check(fn, normal(size), tolerance=1e-4)


def test_means_of_halves_are_added_up_as_floats():
    check(lambda x: tf.reduce_mean(tf.cast(x, tf.float16)), normal(26003) + 1, tolerance=1e-2)


def test_means_of_many_integers_are_integers():
    check(lambda x: tf.reduce_mean(tf.cast(x * 9, tf.int32)), normal(1003) + 1)


@pytest.mark.parametrize("keepdims", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 41, 317), [0, 2]), ((13, 1003), [0, 1]), ((9001, 3), [0]), ((3, 9001), [1])]
)
@pytest.mark.parametrize("reduce", [tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_prod])
def test_reductions_of_several_axes(reduce, shape, axes, keepdims):
    check(lambda x: reduce(x, axes, keepdims=keepdims), 1 + normal(*shape) * 1e-3, tolerance=1e-3)


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("of_batch", [False, True])
def test_gradients_of_tiles_are_sums_of_tensors_with_many_axes(rank, of_batch):
    def fn(x, scale):
        with tf.GradientTape() as tape:
            tape.watch([x, scale])
            total = tf.reduce_sum(tf.sin(tf.tile(x * scale, [1, *[2] * (rank - 2), 1])))
        return tape.gradient(total, [x, scale])

    values, scales = normal(3, *range(2, rank), 5), normal(1, *range(2, rank), 5, seed=1)
    if of_batch:
        check_padded(fn, values, scales, padded=[0], sizes=[3, 1, 0, 2, 3, 3, 1, 2], tolerance=1e-5)
    else:
        check(fn, values, scales, tolerance=1e-5)


@pytest.mark.parametrize("reduce", [tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_prod])
@pytest.mark.parametrize("first", [0, 1])
def test_reductions_of_every_other_of_many_axes(reduce, first):
    check(lambda x: reduce(x, range(first, 10, 2)), normal(2, 3, 2, 1, 2, 3, 1, 2, 2, 3), tolerance=1e-5)


@pytest.mark.parametrize(("rows", "classes"), [(20, 10), (20, 86), (1003, 7), (3, 8195), (1, 257)])
@pytest.mark.parametrize("dense", [False, True])
def test_cross_entropies_and_their_gradients(rows, classes, dense):
    labels = np.random.default_rng(1).integers(0, classes, (8, rows)).astype("i")
    given = tf.one_hot(labels, classes).numpy() if dense else labels

    def fn(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            of_labels = (
                tf.nn.softmax_cross_entropy_with_logits if dense else tf.nn.sparse_softmax_cross_entropy_with_logits
            )
            loss = of_labels(y, x)
        return loss, tape.gradient(loss, x)

    check(fn, normal(rows, classes), given, tolerance=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_cross_entropies_of_logits_that_are_far_apart(dtype):
    logits, labels = normal(7, MANY_CLASSES), np.full((8, 7), 3, dtype)
    logits[:, 0, 3], logits[:, 1, 4], logits[:, 2, 4] = 200, 200, 1e30
    logits[:, 3, 3], logits[:, 4, 4], logits[:, 5] = -np.inf, np.inf, 1e-30
    logits[3, 6, 7] = np.nan

    def fn(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x)
        return loss, tape.gradient(loss, x)

    with np.errstate(invalid="ignore"):  # numpy scales the tolerance by the largest entry
        check(fn, logits, labels, tolerance=1e-6)


@pytest.mark.parametrize(
    ("entries", "axes"), [((), [1]), ((10,), [1]), ((10,), [1, 2]), ((7, 9), [1, 2, 3]), ((7, 9), [1, 3])]
)
def test_padded_rows_do_not_decide_the_bits_of_sums_over_rows(entries, axes):
    rng = np.random.default_rng(0)
    for rows in (2, 20, 33, 90, 200, 300, 700, 2000, 9000):
        values, found = rng.normal(size=(3, rows, *entries)).astype("f"), set()
        for padded in (rows, rows + 13, 1 << (rows - 1).bit_length(), 3 * rows):
            zeros = np.zeros((3, padded - rows, *entries), "f")
            whole = tf.constant(np.concatenate([values, zeros], 1))
            total = reduce_aligned(tf.reduce_sum, whole, axes, rows=1)
            kept = reduce_aligned(tf.reduce_sum, whole, axes, rows=1, keepdims=True)
            assert kept.shape == [1 if a in axes else s for a, s in enumerate(whole.shape)]
            found |= {total.numpy().tobytes(), kept.numpy().tobytes()}
        np.testing.assert_allclose(total, values.sum(tuple(axes)), rtol=1e-4, atol=1e-2)
        assert len(found) == 1

"""Operations of `benchmarks.bits`: functions of a tensor x [rows, COLUMNS] -> tensors, for the batching rules.

Those of `OPERATIONS` also take padded batches, whose number of rows is unknown.
"""

import numpy as np
import tensorflow as tf

from benchmarks.bit_configuration import SEED, floats

ROWS, COLUMNS = 4, 6


def normal(*shape: int, seed: int = SEED) -> np.ndarray:
    return floats(np.random.default_rng(seed).normal(size=shape))


fixed = tf.stop_gradient
"""For operands of operations whose gradients have no batching rule."""


def elementwise(x):
    y = tf.abs(x) + 0.5
    return [
        *(f(x) for f in (tf.exp, tf.tanh, tf.sigmoid, tf.math.softplus, tf.nn.elu, tf.nn.selu, tf.nn.gelu, tf.sin)),
        *(f(x) for f in (tf.nn.softsign, tf.nn.relu6, tf.nn.leaky_relu, tf.atan, tf.math.erf, tf.sign)),
        *(f(y) for f in (tf.math.log, tf.sqrt, tf.math.rsqrt, tf.math.reciprocal, tf.math.log1p, tf.math.lgamma)),
        *(x**2, y**x, tf.math.floormod(x, y), tf.atan2(x, y), tf.math.xlogy(y, y), tf.maximum(x, 0.1), x / y),
        *(tf.clip_by_value(x, -0.5, 0.5), tf.where(x > 0, x, y), tf.where(x[:, :1] > 0, x, -1.0)),
        *(tf.cast(tf.cast(x, tf.float16), x.dtype), tf.add_n([x, y, x]), tf.identity_n([x, y])[1]),
        tf.raw_ops.Select(condition=x[:, 0] > 0, x=x, y=y),
        tf.math.squared_difference(x, normal(COLUMNS)),
        tf.linalg.normalize(x, axis=1)[0],
    ]


def slices(x):
    return [
        *(x[:, ::2], x[:, 1:-1], x[..., tf.newaxis, 2], x[:, tf.newaxis], x[tf.newaxis, ..., ::3]),
        *(*tf.split(x, 3, 1), *tf.split(x, [1, 2, 3], 1), *tf.unstack(x, axis=1)[:2], tf.slice(x, [0, 1], [-1, 3])),
        *(tf.pad(x, [[0, 0], [1, 2]]), tf.pad(fixed(x), [[0, 0], [1, 1]], "REFLECT"), tf.reverse(x, [1])),
        *(tf.cumsum(x, 1), tf.concat([x, x * x], 1), tf.stack([x, -x], 1), tf.tile(x, [1, 2]), tf.repeat(x, 2, 1)),
        *(tf.transpose(x)[:2], tf.expand_dims(x, -1), tf.squeeze(x[:, :1], 1), tf.reshape(x, [-1, 2, 3])),
        *tf.math.top_k(fixed(x), 2),
        tf.one_hot(tf.argmax(x, 1), COLUMNS, dtype=x.dtype),
        tf.ensure_shape(x, [None, COLUMNS]) * tf.cast(tf.raw_ops.Rank(input=x) + tf.size(x[0]), x.dtype),
        tf.cast(tf.range(tf.shape(x)[0]), x.dtype)[:, tf.newaxis] * x,
        tf.broadcast_to(x[:, tf.newaxis], [tf.shape(x)[0], 2, COLUMNS]),
    ]


def reductions(x):
    each = (tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min)
    return [
        *(result for reduce in each for result in (reduce(x), reduce(x, 0), reduce(x, 1, keepdims=True))),
        *(tf.reduce_prod(fixed(x)), tf.reduce_prod(fixed(x), 0), tf.reduce_all(x > -9), tf.reduce_any(x > 1, 0)),
        *(tf.argmax(x, 0), tf.argmin(x, 1), tf.nn.l2_loss(x), tf.norm(x)),
        *(tf.math.reduce_variance(x, 0), tf.reduce_logsumexp(x, 1)),
    ]


def long_reductions(x):
    """Runs of more than 256 entries, of float32 and of halves, and tensors of more axes than a kernel takes."""
    wide = tf.tile(x, [1, 50]) * normal(300)
    deep = tf.reshape(wide, [-1, 2, 3, 2, 5, 5])
    return [
        *(tf.reduce_sum(wide), tf.reduce_sum(wide, 1), tf.reduce_mean(wide), tf.reduce_mean(wide, 1)),
        *(tf.reduce_mean(tf.cast(wide, tf.float16), 1), tf.reduce_prod(1 + fixed(wide) / 1000, 1)),
        tf.reduce_sum(tf.repeat(tf.repeat(tf.repeat(deep, 2, axis=1), 2, axis=3), 2, axis=5), [1, 2, 3, 4, 5]),
        tf.reduce_sum(tf.tile(deep, [1, 2, 1, 2, 2, 1]), [2, 4]),
    ]


def products(x):
    w, u, labels = normal(COLUMNS, 7), normal(ROWS, 5, 3, seed=1), tf.argmax(x, 1)
    y, logits = x @ w, x @ normal(COLUMNS, 40)
    return [
        *(y, tf.matmul(x, w.T, transpose_b=True), tf.matmul(x, y, transpose_a=True), tf.linalg.matvec(w.T, x)),
        *(tf.einsum("ij,jk->ik", x, w), tf.einsum("ij,ik->jk", x, y)),
        tf.matmul(x[:, :, tf.newaxis], y[:, tf.newaxis]),
        *(tf.matmul(tf.reshape(x, [-1, 2, 3]), u[0, :3]), tf.matmul(u[0], tf.reshape(x, [-1, 3, 2]))),
        *(tf.nn.softmax(y), tf.nn.log_softmax(y), tf.nn.bias_add(x, normal(COLUMNS))),
        *(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores) for scores in (y, logits)),
        *(tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(-scores), scores) for scores in (y, logits)),
        tf.math.in_top_k(labels, tf.cast(y, tf.float32), 2),
    ]


def gathers(x):
    ids, table = tf.cast(tf.abs(x) * 2, tf.int32) % 4, normal(9, 4)
    return [
        *(tf.gather(table, ids), tf.gather(table, ids, axis=1), tf.gather_nd(table, tf.stack([ids, ids], -1))),
        *(tf.gather(fixed(x), [3, 0, 0], axis=1), tf.gather(fixed(x), ids, axis=1, batch_dims=1)),
        *(tf.math.unsorted_segment_sum(x, ids[:, 0], 4), tf.math.unsorted_segment_mean(x, ids[:, 0], 4)),
        tf.maximum(tf.math.unsorted_segment_max(fixed(x), ids[:, 0], 4), -9.0),
        tf.scatter_nd(ids[:, :1], x, [4, COLUMNS]),
        tf.tensor_scatter_nd_add(tf.ones([4, COLUMNS], x.dtype), ids[:, :1], x),
    ]


def loops(x):
    """Loops of 8, 7 and 5 iterations, the last one of which stores a list."""
    w = normal(COLUMNS, COLUMNS) * 0.3

    def write(i, h, array):
        h = tf.tanh(h @ w + x)
        return i + 1, h, array.write(i, h)

    array = tf.TensorArray(x.dtype, 5, element_shape=[None, COLUMNS])
    return [
        tf.while_loop(lambda i, h: i < 8, lambda i, h: (i + 1, tf.tanh(h @ w + x)), (0, x))[1],
        tf.while_loop(lambda i, h: i < 14, lambda i, h: (i + 2, tf.tanh(h @ w + x)), (0, x))[1],
        tf.transpose(tf.while_loop(lambda i, *_: i < 5, write, (0, x, array))[2].stack(), [1, 0, 2]),
        tf.scan(lambda total, column: total * 0.5 + column, tf.transpose(x), initializer=x[:, 0])[-1],
    ]


OPERATIONS = (elementwise, slices, reductions, long_reductions, products, gathers, loops)


# --- operations of tensors only ---


def unknown(number: int) -> tf.Tensor:
    """A number that all clients share, and that no graph knows while it is built: too many entries decide it."""
    return tf.cast(tf.reduce_sum(tf.ones([2000])) / 2000, tf.int32) * number


def shapes(x):
    counted = tf.cast(tf.abs(x[:, 0]) * 3, tf.int32)
    return [
        *(tf.reduce_sum(x, unknown(1)), tf.reshape(tf.reshape(x, [unknown(3), -1]), [3, 8])),
        tf.ensure_shape(tf.broadcast_to(x[:1], [unknown(3), COLUMNS]), [3, COLUMNS]),
        tf.ensure_shape(tf.tile(x, [unknown(2), 1]), [2 * ROWS, COLUMNS]),
        tf.ensure_shape(x[: unknown(2)], [2, COLUMNS]),
        tf.ensure_shape(tf.fill([unknown(2)], x[0, 0]), [2]),
        *(tf.gather(x, [3, 0, 0], axis=1), tf.gather(x, tf.argsort(x, 1), axis=1, batch_dims=1)),
        *(tf.cumsum(x, 0)[::-1], tf.matmul(x, x, transpose_b=True), tf.squeeze(x[:1]), x * x[0], tf.nn.softmax(x[0])),
        tf.raw_ops.DenseBincount(input=counted, size=4, weights=tf.cast(fixed(x)[:, 1], tf.float32)),
        tf.tensor_scatter_nd_update(x, [[1]], x[:1] * 2),
    ]


def branches(x):
    number = tf.cast(tf.abs(x[0, 0]) * 3, tf.int32)
    return [
        tf.switch_case(number, [lambda: x * 2, lambda: tf.sin(x), lambda: x + 1]),
        tf.cond(unknown(1) > 0, lambda: x * 2, lambda: tf.sin(x)),
        tf.while_loop(lambda i, h: i < unknown(5), lambda i, h: (i + 1, tf.tanh(h + x)), (0, x))[1],
    ]


def recurrence(x):
    """Products of loops with many and with an unknown number of iterations, by a matrix of each client."""
    w = tf.sin(tf.reshape(tf.range(1600, dtype=x.dtype), [40, 40]) * x[0, 0]) / 20
    rows = tf.tile(x, [1, 7])[:, :40]

    def after(count):
        return tf.while_loop(lambda i, h: i < count, lambda i, h: (i + 1, tf.tanh(h @ w + rows)), (0, rows))[1]

    return [after(72), after(unknown(9))]


def images(x):
    pixels = tf.reshape(tf.tile(x, [1, 6]), [ROWS, 6, 6, 1])
    y = tf.nn.conv2d(pixels, normal(3, 3, 1, 2), 1, "SAME")
    return [
        *(y, tf.nn.depthwise_conv2d(y, normal(2, 2, 2, 1), [1, 1, 1, 1], "VALID")),
        *(tf.nn.avg_pool2d(y, 2, 2, "SAME"), tf.nn.max_pool2d(y, 3, 1, "VALID")),
        tf.nn.conv2d_transpose(y, normal(2, 2, 3, 2), [ROWS, 12, 12, 3], 2),
    ]


def fused_normalization(x):
    """Only in float32."""
    pixels = tf.cast(tf.reshape(tf.tile(x, [1, 6]), [ROWS, 6, 3, 2]), tf.float32)
    return tf.compat.v1.nn.fused_batch_norm(pixels, tf.constant([0.5, 2.0]), tf.constant([0.1, -1.0]))


def draws(x):
    return [
        *(tf.random.normal([ROWS]), tf.random.uniform([3]), tf.random.truncated_normal([2, 2])),
        *(tf.random.uniform([3], 0, 9, tf.int32), tf.random.shuffle(x), tf.random.categorical(x, 2)),
        tf.random.stateless_normal([ROWS], [1, 2]) * x[:, 0],
    ]


def different_steps(x):
    """A loop whose length differs between clients, which has no batching rule."""
    start, end = tf.zeros([], x.dtype), tf.abs(x[0, 0])
    return [tf.while_loop(lambda i, h: i < end, lambda i, h: (i + 0.1, tf.tanh(h + x)), (start, x))[1]]


OPERATIONS_OF_TENSORS = (shapes, branches, recurrence, images, fused_normalization, draws, different_steps)
WITHOUT_REFERENCE = (fused_normalization, draws)

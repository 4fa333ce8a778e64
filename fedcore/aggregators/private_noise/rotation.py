"""A random rotation that spreads a vector evenly over its coordinates: random signs, then a Hadamard transform."""

import tensorflow as tf


def padded_size(size: int) -> int:
    """The power of two that a vector is padded to."""
    return 1 << max(size - 1, 0).bit_length()


def rotate_vector(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """[size] -> [padded size] of one dtype, of the same norm."""
    size = int(vector.shape[0])
    padded = tf.pad(vector, [[0, padded_size(size) - size]])
    return _hadamard(padded * _signs(padded, seed))


def rotate_back(vector: tf.Tensor, seed: tf.Tensor, size: int) -> tf.Tensor:
    """The inverse of `rotate_vector`."""
    return (_hadamard(vector) * _signs(vector, seed))[:size]


def _signs(like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    bits = tf.random.stateless_uniform(like.shape, tf.stack([seed, tf.zeros_like(seed)]), 0, 2, tf.int32)
    return tf.cast(2 * bits - 1, like.dtype)


def _hadamard(vector: tf.Tensor) -> tf.Tensor:
    """The orthonormal Walsh-Hadamard transform, its own inverse."""
    size, half = int(vector.shape[0]), 1
    while half < size:
        pairs = tf.reshape(vector, [-1, 2, half])
        vector = tf.reshape(tf.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1), [size])
        half *= 2
    return vector / size**0.5

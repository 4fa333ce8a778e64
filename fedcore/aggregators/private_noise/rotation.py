"""A random rotation that spreads a vector evenly over its coordinates: random signs, then a Hadamard transform."""

import tensorflow as tf

from fedcore.aggregators.encoders.hadamard import hadamard_transform


def padded_size(size: int) -> int:
    """The power of two that a vector is padded to."""
    return 1 << max(size - 1, 0).bit_length()


def rotate_vector(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Rotates a vector, padded with zeros to `padded_size` elements; dtype and norm stay."""
    size = int(vector.shape[0])
    padded = tf.pad(vector, [[0, padded_size(size) - size]])
    return hadamard_transform(padded * _signs(padded, seed))


def rotate_back(vector: tf.Tensor, seed: tf.Tensor, size: int) -> tf.Tensor:
    """The vector of `size` elements that `rotate_vector` rotated with this seed."""
    return (hadamard_transform(vector) * _signs(vector, seed))[:size]


def _signs(like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """1 or -1 for each element of `like`, in its dtype, by the bits of random words of 32 bits."""
    size = int(like.shape[0])
    words = tf.random.stateless_uniform(
        [-(-size // 32), 1], tf.stack([seed, tf.zeros_like(seed)]), None, None, tf.int32
    )
    bits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(words, tf.range(32)), 1)
    return tf.cast(1 - 2 * tf.reshape(bits, [-1])[:size], like.dtype)

"""Standard normal numbers whose tails are not cut, from the call's seed or from a key."""

import math
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from fedcore.aggregators.private_noise.chacha20 import chacha20

_BITS = 52  # of a uniform number

Draw: TypeAlias = Callable[[tf.Tensor | int, int], tf.Tensor]
"""(number of the stream, size) -> float32 [size], standard normal. The streams of a call are independent."""


def normal_from_seed(stream: tf.Tensor | int, size: int) -> tf.Tensor:
    """Draws from the call's seed by TensorFlow's Philox, whose key has 64 bits; each call is a stream of its own."""
    return _normal(tf.random.uniform([2, -(-size // 2)], maxval=1 << _BITS, dtype=tf.int64), size)


def normal_from_key(key: tf.Tensor) -> Draw:
    """Draws by ChaCha20 from a key of 256 bits, uint32 [8]."""

    def draw(stream: tf.Tensor | int, size: int) -> tf.Tensor:
        pairs = -(-size // 2)
        words = chacha20(key, tf.cast(stream, tf.uint32), max(-(-pairs // 4), 1))
        words = tf.cast(tf.reshape(words, [4, -1])[:, :pairs], tf.int64)
        high = tf.bitwise.left_shift(words[:2], tf.constant(_BITS - 32, tf.int64))
        return _normal(high | tf.bitwise.right_shift(words[2:], tf.constant(64 - _BITS, tf.int64)), size)

    return draw


def _normal(bits: tf.Tensor, size: int) -> tf.Tensor:
    """Box and Muller 1958 on 52 bits a uniform number, so that values up to 8.5 standard deviations occur.

    `tf.random.normal` puts what is beyond 5.7 standard deviations onto that value.
    """
    uniform = (tf.cast(bits, tf.float64) + 0.5) * 2.0**-_BITS
    radius, angle = tf.sqrt(-2.0 * tf.math.log(uniform[0])), 2 * math.pi * uniform[1]
    both = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], 0)
    return tf.cast(both[:size], tf.float32)


def smooth_normal(size: int) -> tf.Tensor:
    """Draws float32 [size] from the call's seed, faster than `normal_from_seed`: the scaled sum of two of TensorFlow's.

    TensorFlow's reach 5.7 standard deviations, in steps of 2**-24 of a uniform number; their sums reach 8, and fall
    between the steps.

    Source: Holohan and Braghin 2021, "Secure random sampling in differential privacy", arXiv:2107.10138, section 4.1.
    """
    return (tf.random.normal([size]) + tf.random.normal([size])) * math.sqrt(0.5)

import math

import numpy as np
import tensorflow as tf

from fedcore.aggregators.encoders.encoder import Encoder

_FACTOR = 32  # of a transform's length: a product with a matrix of this size


def block_lengths(length: int) -> list[int]:
    """The powers of two that add to a length, the largest first."""
    return [1 << bit for bit in reversed(range(length.bit_length())) if length >> bit & 1]


def hadamard_transform(vector: tf.Tensor) -> tf.Tensor:
    """The product of each block with its orthonormal Hadamard matrix; applied again, it gives the vector back."""
    blocks = tf.split(vector, block_lengths(int(vector.shape[0])))
    return tf.concat([_transformed(block) for block in blocks], 0)


def _transformed(block: tf.Tensor) -> tf.Tensor:
    length = rest = int(block.shape[0])
    while rest > 1:
        # The matrix of a product of lengths is the Kronecker product: each turn transforms one axis and moves it away.
        factor = min(_FACTOR, rest)
        block = tf.transpose(tf.matmul(tf.reshape(block, [length // factor, factor]), _matrix(factor)))
        rest //= factor
    return tf.reshape(block, [length])


def _matrix(size: int) -> np.ndarray:
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(math.sqrt(size))


def _signs(count: int, seed: tf.Tensor) -> tf.Tensor:
    """+1 and -1, float32 [count], 32 of one random number."""
    numbers = tf.random.stateless_uniform([-(-count // 32), 1], seed, None, None, tf.int32)
    bits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(numbers, tf.range(32)[None]), 1)
    return tf.cast(1 - 2 * tf.reshape(bits, [-1])[:count], tf.float32)


class Hadamard(Encoder):
    """See `hadamard`."""

    def encode(self, value, seed):
        flat = tf.reshape(tf.cast(value, tf.float32), [-1])
        if not flat.shape[0]:
            return flat
        return hadamard_transform(flat * _signs(int(flat.shape[0]), seed))

    def decode(self, code, seed, spec):
        if not code.shape[0]:
            return tf.zeros(spec.shape, spec.dtype)
        flat = hadamard_transform(code) * _signs(int(code.shape[0]), seed)
        return tf.cast(tf.reshape(flat, spec.shape), spec.dtype)


def hadamard() -> Encoder:
    """Rotates a vector: random signs, then orthonormal Hadamard matrices. The parts of the result have similar sizes.

    Alone it saves nothing. Before a quantizer it spreads the error over all elements.

    The blocks are the powers of two that add to the length, so nothing is padded, and the code has the value's length.

    Returns:
        An encoder of floats of any static shape, as float32.
    Source:
        Suresh et al. 2017, "Distributed mean estimation with limited communication", arXiv:1611.00429, section 3. It
        pads to one power of two.
    Example:
        >>> fc.testing.check_encoder(fc.aggregators.encoders.hadamard(), ('float32', [100]), relative_error=1e-10)
    """
    return Hadamard()

"""The randomized Hadamard rotation, as an encoder that goes before a quantizer."""

import math

import numpy as np
import tensorflow as tf

from fedcore.aggregators.encoders.encoder import Encoder, from_real_vector, real_vector

_FACTOR = 32  # into such factors a transform's length is taken apart: each is a product with a matrix of this size
_ROW = 1 << 16  # elements whose random signs are drawn; all rows have these signs, times one of their own


def block_lengths(length: int) -> list[int]:
    """The powers of two that add to a length, the largest first."""
    return [1 << bit for bit in reversed(range(length.bit_length())) if length >> bit & 1]


def hadamard_transform(vector: tf.Tensor) -> tf.Tensor:
    """The product of each block with its orthonormal Hadamard matrix; applied again, it gives the vector back."""
    blocks = tf.split(vector, block_lengths(int(vector.shape[0])))
    return tf.concat([_transform(block) for block in blocks], 0)


def _transform(block: tf.Tensor) -> tf.Tensor:
    """The product of a block of 2^n elements with its Hadamard matrix, by factors of at most `_FACTOR`.

    The matrix of a product of lengths is the Kronecker product of theirs: each step transforms one axis of the factors.
    """
    length, dtype = int(block.shape[0]), block.dtype.as_numpy_dtype
    outer = 1
    while outer < length:
        factor = min(_FACTOR, length // outer)
        inner = length // outer // factor
        if inner == 1:
            block = tf.matmul(tf.reshape(block, [outer, factor]), _matrix(factor, dtype))
        else:
            block = tf.matmul(_matrix(factor, dtype), tf.reshape(block, [outer, factor, inner]))
        outer *= factor
    return tf.reshape(block, [length])


def _matrix(size: int, dtype: type) -> np.ndarray:
    """The orthonormal Hadamard matrix of a power of two."""
    matrix: np.ndarray = np.ones((1, 1), dtype)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / dtype(math.sqrt(size))


def _with_signs(vector: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The vector with random signs: a sign for each row of 2**16 elements times one for each column."""
    count = int(vector.shape[0])
    rows = -(-count // _ROW)
    draws = tf.random.stateless_uniform([rows + min(count, _ROW)], seed)
    signs = tf.where(draws < 0.5, -tf.ones([], vector.dtype), 1.0)
    row_signs, column_signs = signs[:rows], signs[rows:]
    return vector * tf.reshape(row_signs[:, None] * column_signs, [-1])[:count]


class Hadamard(Encoder):
    """See `hadamard`."""

    kind, name = "numeric", "hadamard"

    def encode(self, value: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        flat = real_vector(value)
        if not flat.shape[0]:
            return flat
        return hadamard_transform(_with_signs(flat, seed))

    def decode(self, code: tf.Tensor, seed: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        if not code.shape[0]:
            return tf.zeros(spec.shape, spec.dtype)
        return from_real_vector(_with_signs(hadamard_transform(code), seed), spec)


def hadamard() -> Encoder:
    """Rotates a vector: random signs, then orthonormal Hadamard matrices. The parts of the result have similar sizes.

    Alone it saves nothing. Before a quantizer it spreads the error over all elements.

    The blocks are the powers of two that add to the length, so nothing is padded, and the code has the value's length.

    Types: an encoder of tensors of numbers of static shapes. The codes are float64 vectors for float64, complex128 and
    integers, else float32 ones; a complex number is two floats.

    Returns:
        An encoder of numbers of any static shape; integers come back rounded.
    Source:
        Suresh et al. 2017, "Distributed mean estimation with limited communication", arXiv:1611.00429, section 3. It
        pads to one power of two.
    Example:
        >>> fc.testing.check_encoder(fc.aggregators.encoders.hadamard(), ('float32', [100]), relative_error=1e-10)
    """
    return Hadamard()

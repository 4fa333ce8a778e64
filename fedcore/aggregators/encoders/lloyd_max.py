"""Quantization to the levels of least squared error for a normal distribution, as an encoder."""

import math

import numpy as np
import tensorflow as tf

from fedcore.aggregators.encoders.bits import Integers
from fedcore.aggregators.encoders.encoder import Encoder, from_real_vector, nan_unless_finite, real_vector
from fedcore.aggregators.encoders.uniform_quantization import root_mean_square
from fedcore.scalars import whole_number

_SWEEPS = 5000  # at most


def normal_codebook(bits: int) -> np.ndarray:
    """The `2**bits` levels of the least mean squared error for a standard normal variable, ascending."""
    levels = np.linspace(-2, 2, 1 << bits)
    for _ in range(_SWEEPS):
        edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        density = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
        mass = np.diff([0.5 * math.erfc(-x / math.sqrt(2)) for x in edges])
        centroids = -np.diff(density) / mass  # the mean of each cell
        if np.abs(centroids - levels).max() < 1e-9:
            break
        levels = centroids
    return levels.astype(np.float32)


class LloydMax(Encoder):
    """See `lloyd_max`."""

    kind, name = "numeric", "lloyd_max"

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.levels = normal_codebook(bits)
        self.edges = (self.levels[1:] + self.levels[:-1]) / 2

    def encode(self, value: tf.Tensor, seed: tf.Tensor) -> tuple[Integers, tf.Tensor]:
        flat = real_vector(value)
        scale = nan_unless_finite(root_mean_square(flat))
        ratio, level = tf.math.divide_no_nan(flat, scale), tf.zeros_like(flat, tf.int32)
        for bit in reversed(range(self.bits)):  # binary search
            middle = level + (1 << bit)
            level = tf.where(ratio > tf.gather(tf.constant(self.edges, flat.dtype), middle - 1), middle, level)
        return Integers(level, self.bits), scale

    def decode(self, code: tuple[Integers, tf.Tensor], seed: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        integers, scale = code
        levels = tf.gather(tf.constant(self.levels, scale.dtype), tf.cast(integers.values, tf.int32))
        return from_real_vector(levels * scale, spec)


def lloyd_max(bits: int) -> Encoder:
    """Rounds floats to levels that are dense where a normal distribution is: the least squared error for one.

    The levels are multiples of the root mean square, which is sent too. Put a `hadamard` before it: its result is
    nearly normal. It is biased.

    Types: an encoder of tensors of numbers of static shapes; a complex number is two floats.

    Args:
        bits: 1 to 8, of each element.
    Returns:
        An encoder of numbers of any static shape; integers come back rounded. A value with infinity or NaN, or whose
        squares overflow, decodes to NaN throughout.
    Raises:
        FedcoreError: `bits` is outside its range.
    Source: Lloyd 1982, "Least squares quantization in PCM"; Max 1960, "Quantizing for minimum distortion". After a
        rotation: Vargaftik et al. 2021, "DRIVE", arXiv:2105.08339, without its unbiased scale.
    Example:
        >>> fc.testing.check_encoder(fc.aggregators.encoders.lloyd_max(3), ('float32', [1000]), relative_error=0.05)
    """
    return LloydMax(whole_number("bits", bits, at_least=1, at_most=8))

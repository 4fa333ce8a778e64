"""Quantization whose number of bits follows the error that it makes.

The next state is the mean of the states that clients compute after their own values.
"""

import math

import tensorflow as tf

from fedcore.aggregators.encoders.bits import MAX_BITS, Integers
from fedcore.aggregators.encoders.encoder import AdaptiveEncoder, from_real_vector, real_vector
from fedcore.aggregators.encoders.uniform_quantization import between_bounds, levels_between_bounds
from fedcore.scalars import real_number, whole_number


class AdaptiveQuantization(AdaptiveEncoder):
    """See `adaptive_quantization`."""

    kind, name = "numeric", "adaptive_quantization"

    def __init__(self, target_error: float, initial_bits: int) -> None:
        self.target_error = target_error
        self.initial_bits = initial_bits

    def initial_state(self, spec: tf.TensorSpec) -> tf.Tensor:
        return tf.constant(float(self.initial_bits))

    def encode(self, value: tf.Tensor, seed: tf.Tensor, state: tf.Tensor) -> tuple[Integers, tf.Tensor]:  # type: ignore[override]
        flat = real_vector(value)
        bits = tf.cast(tf.round(state), tf.int32)
        levels, side = levels_between_bounds(flat, seed, _largest_level(bits), "stochastic")
        return Integers(levels, bits), side

    def decode(  # type: ignore[override]
        self, code: tuple[Integers, tf.Tensor], seed: tf.Tensor, spec: tf.TensorSpec, state: tf.Tensor
    ) -> tf.Tensor:
        integers, side = code
        flat = between_bounds(integers.values, side, seed, "stochastic")
        return from_real_vector(flat, spec)

    def update_state(self, state: tf.Tensor, code: tuple[Integers, tf.Tensor], value: tf.Tensor) -> tf.Tensor:
        """The bits that would have met the target with this value: one bit more divides the squared error by four."""
        integers, side = code
        flat = real_vector(value)
        error = between_bounds(integers.values, side, tf.zeros([2], tf.int32), "stochastic") - flat
        squares = tf.reduce_sum(tf.square(flat))
        ratio = tf.reduce_sum(tf.square(error)) / tf.where(squares > 0, squares, 1.0)
        more_bits = tf.cast(tf.math.log(tf.maximum(ratio, 1e-12) / self.target_error) / math.log(4.0), tf.float32)
        target_bits = tf.round(state) + tf.where((squares > 0) & tf.math.is_finite(ratio), more_bits, 0.0)
        return tf.clip_by_value(target_bits, 1.0, float(MAX_BITS))


def _largest_level(bits: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.bitwise.left_shift(1, bits) - 1, tf.float32)


def adaptive_quantization(target_error: float, initial_bits: int = 8) -> AdaptiveEncoder:
    """`uniform_quantization` whose number of bits follows the error of the previous rounds.

    The state is a float32, rounded to the bits of the next round, 1 to 16. Each client finds the bits that would have
    met the target with its own value; the next state is their mean.

    Types: an encoder of tensors of numbers of static shapes, with a float32 as state; a complex number is two floats.

    Args:
        target_error: squared error over squared norm that is aimed at; greater than 0.
        initial_bits: of the first round.
    Returns:
        An encoder of numbers of any static shape; integers come back rounded. The bits are sent in 8 bits.
    Raises:
        FedcoreError: an argument is outside its range.
    Source: After Jhunjhunwala et al. 2021, "Adaptive quantization of model updates for communication-efficient
        federated learning", arXiv:2102.04487, whose levels follow the training loss, not the error.
    Example:
        >>> encoder = fc.aggregators.encoders.adaptive_quantization(target_error=0.01)
        >>> fc.testing.check_encoder(encoder, ('float32', [100]), relative_error=0.02)
    """
    bits = whole_number("initial_bits", initial_bits, at_least=1, at_most=MAX_BITS)
    return AdaptiveQuantization(real_number("target_error", target_error, above=0), bits)

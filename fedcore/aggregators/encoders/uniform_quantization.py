"""Quantization to levels at equal distances."""

import math

import tensorflow as tf

from fedcore.aggregators.encoders.bits import MAX_BITS, Integers
from fedcore.aggregators.encoders.encoder import Encoder, from_real_vector, nan_unless_finite, real_vector
from fedcore.errors import FedcoreError, brief
from fedcore.scalars import real_number, whole_number

RMS = "rms"
"""Step of `uniform_quantization`: the root of the mean square of the value."""

ROUNDINGS = ("stochastic", "dithered", "nearest")
_PERIOD = 1 << 16
"""Elements after which the random offsets repeat: more would take longer than the rounding."""
_MOST_STEPS = float(1 << 30)
"""The largest magnitude of a level, in steps, which an int32 holds."""


def round_to_levels(scaled: tf.Tensor, seed: tf.Tensor, rounding: str) -> tf.Tensor:
    """Floats rounded to whole numbers, still as floats."""
    return tf.floor(_with_offset(scaled, seed, rounding))


def restore_values(levels: tf.Tensor, seed: tf.Tensor, rounding: str) -> tf.Tensor:
    """The floats before rounding, or an approximation: dithering takes its own offsets back."""
    return levels + 0.5 - _offset(levels, seed, rounding) if rounding == "dithered" else levels


def _offset(vector: tf.Tensor, seed: tf.Tensor, rounding: str) -> float | tf.Tensor:
    """Offsets from 0 to 1, for each element of a vector one; a whole part of number + offset is the rounded number."""
    if rounding == "nearest":
        return 0.5
    (count,) = vector.shape
    offsets = tf.cast(tf.random.stateless_uniform([min(count, _PERIOD)], seed), vector.dtype)
    return tf.tile(offsets, [-(-count // _PERIOD)])[:count] if count > _PERIOD else offsets


def root_mean_square(value: tf.Tensor) -> tf.Tensor:
    """The root of the mean square of all elements, a scalar; infinite if the squares overflow."""
    return tf.sqrt(2 * tf.nn.l2_loss(value) / max(1, value.shape.num_elements()))


class BoundedQuantization(Encoder):
    """`uniform_quantization` between the least and the greatest element."""

    kind, name = "numeric", "uniform_quantization"

    def __init__(self, bits: int, rounding: str) -> None:
        self.bits = bits
        self.rounding = rounding

    def encode(self, value: tf.Tensor, seed: tf.Tensor) -> tuple[Integers, tf.Tensor]:
        flat = real_vector(value)
        levels, side = levels_between_bounds(flat, seed, float((1 << self.bits) - 1), self.rounding)
        return Integers(levels, self.bits), side

    def decode(self, code: tuple[Integers, tf.Tensor], seed: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        integers, side = code
        flat = between_bounds(integers.values, side, seed, self.rounding)
        return from_real_vector(flat, spec)


def levels_between_bounds(
    flat: tf.Tensor, seed: tf.Tensor, most: float | tf.Tensor, rounding: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """(levels from 0 to `most`; side: two floats of the vector's dtype, the least element and the distance of levels).

    The levels are uint8 if `most` is a number that fits, else int32.
    """
    if not flat.shape[0]:
        return tf.zeros([0], tf.int32), tf.zeros([2], flat.dtype)
    low, high, most_steps = tf.reduce_min(flat), tf.reduce_max(flat), tf.cast(most, flat.dtype)
    is_finite = tf.math.is_finite(tf.reduce_sum(flat) + (high - low))  # a minimum may pass over NaN
    scaled = (flat - low) * tf.math.divide_no_nan(most_steps, high - low)
    dtype = tf.uint8 if isinstance(most, float) and most < 256 else tf.int32
    levels = tf.cast(tf.minimum(_with_offset(scaled, seed, rounding), most_steps), dtype)
    return levels, tf.where(is_finite, tf.stack([low, (high - low) / most_steps]), math.nan)


def _with_offset(scaled: tf.Tensor, seed: tf.Tensor, rounding: str) -> tf.Tensor:
    """Floats of at least 0 whose whole part is the rounded number."""
    return scaled + _offset(scaled, seed, rounding)


def between_bounds(levels: tf.Tensor, side: tf.Tensor, seed: tf.Tensor, rounding: str) -> tf.Tensor:
    """The floats of levels, in the dtype of the side (see `levels_between_bounds`)."""
    return restore_values(tf.cast(levels, side.dtype), seed, rounding) * side[1] + side[0]


class StepQuantization(Encoder):
    """`uniform_quantization` in steps."""

    kind, name = "numeric", "uniform_quantization"

    def __init__(self, step: float | str, rounding: str) -> None:
        self.step = step
        self.rounding = rounding

    def encode(self, value: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        flat = real_vector(value)
        rms = root_mean_square(flat)
        if self.step == RMS:
            step = nan_unless_finite(rms)
            per_step = tf.math.divide_no_nan(tf.ones([], step.dtype), step)  # 0 for a denormal one
            return tf.cast(round_to_levels(flat * per_step, seed, self.rounding), tf.int32), step
        levels = tf.clip_by_value(round_to_levels(flat / self.step, seed, self.rounding), -_MOST_STEPS, _MOST_STEPS)
        return tf.cast(levels, tf.int32), nan_unless_finite(rms) * 0  # 0, or NaN by which all decodes to NaN

    def decode(self, code: tuple[tf.Tensor, tf.Tensor], seed: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        levels, side = code
        step = side if self.step == RMS else self.step + side
        flat = restore_values(tf.cast(levels, side.dtype), seed, self.rounding) * step
        return from_real_vector(flat, spec)


def uniform_quantization(
    bits: int | None = None, step: float | str | None = None, rounding: str = "stochastic"
) -> Encoder:
    """Rounds floats to equally spaced levels.

    With `bits`, there are `2**bits` levels from the least to the greatest element; two floats are sent too.
    With `step`, the levels are the multiples of the step, as int32, which an `entropy` coder makes small; one float
    is sent too. These are float64 for float64, complex128 and integers, else float32.

    Types: an encoder of tensors of numbers of static shapes; a complex number is two floats.

    Args:
        bits: 1 to 16. Exactly one of `bits` and `step` is given.
        step: a number, or `RMS`: the root of the mean square of the value. Values of more than 2**30 steps are
            clipped.
        rounding: `stochastic`, to one of the two next levels, so that the mean is the value; `dithered`, with a random
            offset that the decoder takes back, so that the error is uniform, independent of the value, and the mean is
            the value; `nearest`, which is biased. Elements that are 2**16 places apart have the same offset.
    Returns:
        An encoder of numbers of any static shape; integers come back rounded. A value with infinity or NaN, or whose
        squares, sum or range overflow, decodes to NaN throughout.
    Raises:
        FedcoreError: not exactly one of `bits` and `step`, one outside its range, or another rounding.
    Source:
        Konečný et al. 2016, arXiv:1610.05492, section 3.2 (stochastic); Schuchman 1964, "Dither signals and their
        effect on quantization noise" (dithered).
    Example:
        >>> eight_bits = fc.aggregators.encoders.uniform_quantization(bits=8)
        >>> fc.testing.check_encoder(eight_bits, ('float32', [100]), relative_error=0.01)
    """
    if rounding not in ROUNDINGS:
        raise FedcoreError(f"rounding is one of {', '.join(ROUNDINGS)}, not {brief(rounding)}")
    if (bits is None) == (step is None):
        raise FedcoreError("uniform_quantization takes either bits or step")
    if bits is not None:
        return BoundedQuantization(whole_number("bits", bits, at_least=1, at_most=MAX_BITS), rounding)
    return StepQuantization(RMS if step == RMS else real_number("step", step, above=0), rounding)

import tensorflow as tf

from fedcore.aggregators.encoders.bits import MAX_BITS, Integers
from fedcore.aggregators.encoders.encoder import Encoder, finite_or_nan
from fedcore.errors import FedcoreError, brief
from fedcore.scalars import real_number, whole_number

RMS = "rms"
"""Step of `uniform_quantization`: the root of the mean square of the value."""

ROUNDINGS = ("stochastic", "dithered", "nearest")
_MOST_STEPS = float(1 << 30)


def rounded(scaled: tf.Tensor, seed: tf.Tensor, rounding: str) -> tf.Tensor:
    """Floats rounded to whole numbers, still as floats."""
    return tf.floor(scaled + _offset(scaled.shape, seed, rounding))


def restored(levels: tf.Tensor, seed: tf.Tensor, rounding: str) -> tf.Tensor:
    """What the rounded floats were, or an approximation: dithering takes its own offsets back."""
    return levels + 0.5 - _offset(levels.shape, seed, rounding) if rounding == "dithered" else levels


def _offset(shape, seed: tf.Tensor, rounding: str):
    return 0.5 if rounding == "nearest" else tf.random.stateless_uniform(shape, seed)


def root_mean_square(value: tf.Tensor) -> tf.Tensor:
    """A float32 scalar; large values do not overflow."""
    largest = tf.reduce_max(tf.abs(value)) if value.shape.num_elements() else tf.constant(0.0)
    ratio = tf.math.divide_no_nan(value, largest)
    return largest * tf.sqrt(tf.reduce_sum(tf.square(ratio)) / max(1, value.shape.num_elements()))


class BoundedQuantization(Encoder):
    """`uniform_quantization` between the least and the greatest element."""

    def __init__(self, bits: int, rounding: str):
        self.bits = bits
        self.rounding = rounding

    def encode(self, value, seed):
        flat = tf.reshape(finite_or_nan(tf.cast(value, tf.float32)), [-1])
        levels, side = levels_between_bounds(flat, seed, float((1 << self.bits) - 1), self.rounding)
        return Integers(levels, self.bits), side

    def decode(self, code, seed, spec):
        integers, side = code
        flat = between_bounds(integers.values, side, seed, float((1 << self.bits) - 1), self.rounding)
        return tf.cast(tf.reshape(flat, spec.shape), spec.dtype)


def levels_between_bounds(flat: tf.Tensor, seed: tf.Tensor, most, rounding: str) -> tuple[tf.Tensor, tf.Tensor]:
    """(levels int32 from 0 to `most`, float32 [2] with the least and the greatest element)."""
    if not flat.shape[0]:
        return tf.zeros([0], tf.int32), tf.zeros([2])
    low, high = tf.reduce_min(flat), tf.reduce_max(flat)
    low += 0 * flat[0]  # NaN throughout, which a minimum may pass over
    half = high / 2 - low / 2  # the whole range may be infinite
    scaled = tf.math.divide_no_nan(flat / 2 - low / 2, half) * most
    return tf.cast(tf.clip_by_value(rounded(scaled, seed, rounding), 0.0, most), tf.int32), tf.stack([low, high])


def between_bounds(levels: tf.Tensor, side: tf.Tensor, seed: tf.Tensor, most, rounding: str) -> tf.Tensor:
    """The floats of levels, float32 [n]."""
    part = restored(tf.cast(levels, tf.float32), seed, rounding) / most
    return side[0] * (1 - part) + side[1] * part


class StepQuantization(Encoder):
    """`uniform_quantization` in steps."""

    def __init__(self, step, rounding: str):
        self.step = step
        self.rounding = rounding

    def encode(self, value, seed):
        flat = tf.reshape(finite_or_nan(tf.cast(value, tf.float32)), [-1])
        step = root_mean_square(flat) if self.step == RMS else tf.constant(self.step, tf.float32)
        scaled = tf.math.divide_no_nan(flat, step)
        levels = tf.clip_by_value(rounded(scaled, seed, self.rounding), -_MOST_STEPS, _MOST_STEPS)
        levels = tf.cast(levels, tf.int32)
        return (levels, step) if self.step == RMS else levels

    def decode(self, code, seed, spec):
        levels, step = code if self.step == RMS else (code, tf.constant(self.step, tf.float32))
        flat = restored(tf.cast(levels, tf.float32), seed, self.rounding) * step
        return tf.cast(tf.reshape(flat, spec.shape), spec.dtype)


def uniform_quantization(bits: int | None = None, step=None, rounding: str = "stochastic") -> Encoder:
    """Rounds floats to equally spaced levels.

    With `bits`, there are `2**bits` levels from the least to the greatest element, whose two float32 are sent too.
    With `step`, the levels are the multiples of the step, as int32, which an `entropy` coder makes small.

    Args:
        bits: 1 to 16. Exactly one of `bits` and `step` is given.
        step: a number, or `RMS`: the root of the mean square of the value, which is sent too. Values of more than
            2**30 steps are clipped.
        rounding: `stochastic`, to one of the two next levels, so that the mean is the value; `dithered`, with a random
            offset that the decoder takes back, so that the error is uniform, independent of the value, and the mean is
            the value; `nearest`, which is biased.
    Returns:
        An encoder of floats of any static shape. A value with infinity or NaN decodes to NaN throughout.
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

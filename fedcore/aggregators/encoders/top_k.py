"""An encoder that sends the largest elements of a tensor, and their places."""

import math

import tensorflow as tf

from fedcore.aggregators.encoders.bits import MAX_BITS, Integers
from fedcore.aggregators.encoders.encoder import Encoder
from fedcore.errors import InvalidValue
from fedcore.scalars import real_number


class TopK(Encoder):
    """See `top_k`.

    Types: codes of n numbers: (values of the k elements, int32 [k] places as `Integers`). Places that take more than
    `MAX_BITS` bits are two `Integers`, of their lower `MAX_BITS` bits and of the bits above.
    """

    kind, name = "numeric", "top_k"

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def encode(self, value: tf.Tensor, seed: tf.Tensor) -> tuple:
        flat = tf.reshape(value, [-1])
        count = int(flat.shape[0])
        _, places = tf.math.top_k(_magnitudes(flat), math.ceil(self.fraction * count))
        values = tf.gather(flat, places)
        bits = (max(1, count) - 1).bit_length()
        if bits <= MAX_BITS:
            return values, Integers(places, max(1, bits))
        lower = tf.bitwise.bitwise_and(places, (1 << MAX_BITS) - 1)
        return values, Integers(lower, MAX_BITS), Integers(tf.bitwise.right_shift(places, MAX_BITS), bits - MAX_BITS)

    def decode(self, code: tuple, seed: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        values, *places = code
        place, *above = (tf.cast(part.values, tf.int32) for part in places)  # those of 8 bits are uint8
        for part in above:
            place += tf.bitwise.left_shift(part, MAX_BITS)
        count = math.prod(spec.shape)
        if not count:
            return tf.zeros(spec.shape, spec.dtype)
        place = tf.minimum(place, count - 1)  # one that was altered in transit may be outside
        return tf.reshape(tf.scatter_nd(place[:, None], values, [count]), spec.shape)


def _magnitudes(numbers: tf.Tensor) -> tf.Tensor:
    """Numbers of the order of the absolute values; NaN is the greatest."""
    if numbers.dtype.is_unsigned:
        return numbers
    if numbers.dtype.is_integer:  # the absolute value of the least integer does not fit its dtype
        return tf.bitwise.invert(tf.minimum(numbers, -numbers))
    sizes = tf.abs(numbers)
    return tf.where(tf.math.is_nan(sizes), tf.constant(math.inf, sizes.dtype), sizes)


def top_k(fraction: float) -> Encoder:
    """Sends the largest elements and their places; the others become 0.

    It is biased: use it with error feedback (`fc.learning.algorithms.build_fed_avg_with_error_feedback`). A place
    takes as many bits as the number of elements needs, up to 31. An encoder that follows in a chain gets the elements.

    Types: an encoder of tensors of numbers of static shapes; complex ones have the order of their magnitudes.

    Args:
        fraction: of the elements that are sent, rounded up; greater than 0, at most 1.
    Returns:
        An encoder of numbers of any static shape.
    Raises:
        FedcoreError: the fraction is outside its range.
    Source: Aji & Heafield 2017, "Sparse communication for distributed gradient descent", arXiv:1704.05021.
    Example:
        >>> fc.testing.check_encoder(fc.aggregators.encoders.top_k(0.5), ('float32', [10]), relative_error=0.5)
    """
    share = real_number("fraction", fraction, above=0)
    if share > 1:
        raise InvalidValue(f"fraction is a number above 0, at most 1, not {share}")
    return TopK(share)

"""Bit packing: `Integers` and `Bits`, which an encoder returns beside tensors, as vectors of uint8.

A code is bytes: the number of bits as int32, little endian; then the bits, the first in the lowest bit of a byte; then
zeros up to the capacity, which depends on types alone. So codes of different lengths have one type, and clients can be
batched; the runtime meters the number of bits (see `fc.message`).
"""

import math

import numpy as np
import tensorflow as tf

HEADER_BYTES = 4


class Integers:
    """Integers from 0 to `2**bits - 1`. They are packed with `bits` bits each where a code is sent.

    Types: a part of a code, in place of a tensor.

    Args:
        values: int32 tensor, or uint8. Decoders get int32, or uint8 if `bits` is 8.
        bits: 1 to 16: a number, or an int32 scalar tensor, which is then sent in 8 bits.
    Example:
        >>> fc.aggregators.encoders.Integers(tf.constant([0, 1, 1]), bits=1).bits
        1
    """

    def __init__(self, values: tf.Tensor, bits: int | tf.Tensor) -> None:
        self.values = values
        self.bits = bits


class Bits:
    """A code that is packed already, such as an entropy coder's.

    Types: a part of a code, in place of a tensor.

    Args:
        bytes: uint8 vector: the number of bits as int32, little endian; the bits; zeros.
    Example:
        >>> fc.aggregators.encoders.Bits(tf.constant([3, 0, 0, 0, 5], tf.uint8)).bytes.shape
        TensorShape([5])
    """

    def __init__(self, bytes: tf.Tensor) -> None:
        self.bytes = bytes


MAX_BITS = 16
"""Most bits of one of the `Integers`."""


def pack_integers(integers: Integers) -> tf.Tensor:
    """The code of integers: uint8 [4 + capacity]."""
    values, bits = tf.reshape(integers.values, [-1]), integers.bits
    count = int(values.shape[0])
    if isinstance(bits, int) and bits == 8:
        return with_header(tf.cast(values, tf.uint8), tf.constant(bits * count))
    values = tf.cast(values, tf.int32)
    if isinstance(bits, int):
        return with_header(_pack(values, bits), tf.constant(bits * count))
    widths = tf.concat([[8], tf.fill([count], bits)], 0)
    low = tf.bitwise.bitwise_and(values, lowest_bits(bits))
    return packed_fields(tf.concat([[bits], low], 0), widths, -(-(8 + MAX_BITS * count) // 32))


def unpack_integers(code: tf.Tensor, shape: tuple[int, ...], bits: int | tf.Tensor) -> Integers:
    """The integers of a code, of a static shape.

    Args:
        bits: a Python number; or a tensor, which is ignored: the first 8 bits of such a code have the number.
    """
    count = math.prod(shape)
    if isinstance(bits, int) and bits == 8:
        return Integers(tf.reshape(code[HEADER_BYTES:], shape), bits)
    if isinstance(bits, int):
        return Integers(tf.reshape(_unpack(code[HEADER_BYTES:], count, bits), shape), bits)
    bits = tf.clip_by_value(read_fields(code, tf.constant([0]), tf.constant([8]))[0], 1, MAX_BITS)
    values = read_fields(code, 8 + bits * tf.range(count), tf.fill([count], bits))
    return Integers(tf.reshape(values, shape), bits)


def with_header(payload: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """A code: the number of bits, then the payload, uint8."""
    return tf.concat([tf.bitcast(tf.cast(bits, tf.int32), tf.uint8), payload], 0)


def packed_fields(values: tf.Tensor, widths: tf.Tensor, capacity_words: int) -> tf.Tensor:
    """The code of unsigned numbers of 0 to 32 bits, one after the other.

    Args:
        values: int32 [n], each less than 2**width.
        widths: int32 [n]; a value of width 0 is left out.
        capacity_words: of 32 bits, enough for the widths.
    """
    words = words_at(values, sums_before(widths))
    return code_of_words([words], tf.reduce_sum(widths), capacity_words)


def sums_before(numbers: tf.Tensor, products: int = 2) -> tf.Tensor:
    """For each of int32 numbers the sum of those before it. Products with a triangle are faster than `tf.cumsum`.

    Args:
        numbers: int32 vector, each less than 2**12, since float32 holds the sum of 4096 of them; with one product, each
            less than 2**18, since it adds 64 of them.
        products: how many levels of sums are products, the others by `tf.cumsum`.
    """
    count, row = int(numbers.shape[0]), 64
    if count <= row or not products:
        return tf.cumsum(numbers, exclusive=True)
    rows = tf.reshape(tf.pad(tf.cast(numbers, tf.float32), [[0, -count % row]]), [-1, row])
    upto = tf.cast(tf.matmul(rows, np.triu(np.ones((row, row), np.float32))), tf.int32)
    row_starts = sums_before(upto[:, -1], products - 1)
    return tf.reshape(upto + row_starts[:, None], [-1])[:count] - numbers


Words = tuple[tf.Tensor, tf.Tensor]
"""Words of 32 bits, int32 [n], and where they are in a code, int32 [n]; words for one place are added."""


def words_at(values: tf.Tensor, starts: tf.Tensor) -> Words:
    """The words of a code that hold some of its fields.

    Args:
        values: int32 [n], unsigned numbers.
        starts: int32 [n], the number of the code's bit at which each begins; it may reach into the next word.
    """
    unsigned = tf.bitcast(values, tf.uint32)
    shift = tf.bitcast(tf.bitwise.bitwise_and(starts, 31), tf.uint32)
    first = tf.bitwise.left_shift(unsigned, shift)
    second = tf.bitwise.right_shift(tf.bitwise.right_shift(unsigned, 1), tf.bitwise.bitwise_xor(shift, 31))
    place = tf.bitwise.right_shift(starts, 5)
    return tf.bitcast(tf.concat([first, second], 0), tf.int32), tf.concat([place, place + 1], 0)


def code_of_words(parts: list[Words], bits: tf.Tensor, capacity_words: int) -> tf.Tensor:
    """The code whose bits are the sum of words; no two of their fields overlap.

    Args:
        bits: int32 scalar, the number of bits for the header.
        capacity_words: of 32 bits, behind the header.
    """
    words = tf.concat([tf.reshape(bits, [1]), *(part[0] for part in parts)], 0)
    places = tf.concat([[-1], *(part[1] for part in parts)], 0) + 1
    total = tf.math.unsorted_segment_sum(words, places, capacity_words + 2)
    return tf.reshape(tf.bitcast(total, tf.uint8), [-1])


def words_of(code: tf.Tensor) -> tf.Tensor:
    """The words behind the number of bits, int32; the code's capacity is a number of words."""
    return tf.bitcast(tf.reshape(code, [-1, 4]), tf.int32)[1:]


def read_fields(code: tf.Tensor, starts: tf.Tensor, widths: tf.Tensor) -> tf.Tensor:
    """The unsigned numbers of 0 to 32 bits, in int32, that start at the given bits of a code."""
    words = tf.bitcast(words_of(code), tf.uint32)
    place = tf.clip_by_value(tf.bitwise.right_shift(starts, 5), 0, int(words.shape[0]) - 2)
    shift = tf.bitcast(tf.bitwise.bitwise_and(starts, 31), tf.uint32)
    first = tf.bitwise.right_shift(tf.gather(words, place), shift)
    second = tf.bitwise.left_shift(tf.gather(words[1:], place), 1)
    value = first + tf.bitwise.left_shift(second, tf.bitwise.bitwise_xor(shift, 31))
    return tf.bitwise.bitwise_and(tf.bitcast(value, tf.int32), lowest_bits(widths))


def lowest_bits(widths: tf.Tensor) -> tf.Tensor:
    """int32 masks of the lowest 0 to 32 bits: a shift by 32 is not defined, so there are two."""
    half = tf.bitwise.right_shift(widths, 1)
    return tf.bitwise.left_shift(tf.bitwise.left_shift(1, half), widths - half) - 1


def _pack(values: tf.Tensor, bits: int) -> tf.Tensor:
    """The payload of n values below 2**bits, int32: uint8 [ceil(n * bits / 8)]. Eight values make `bits` bytes."""
    count = int(values.shape[0])
    rows = tf.reshape(tf.pad(values, [[0, -count % 8]]), [-1, 8])
    columns = tf.unstack(rows, axis=1)
    parts = []
    for byte in range(bits):
        total = 0
        for i, column in enumerate(columns):
            shift = i * bits - 8 * byte  # of the value's lowest bit, from this byte's lowest
            if shift <= -bits or shift >= 8:
                continue
            total += tf.bitwise.left_shift(column, shift) if shift >= 0 else tf.bitwise.right_shift(column, -shift)
        parts.append(tf.bitwise.bitwise_and(total, 0xFF))
    packed = tf.cast(tf.reshape(tf.stack(parts, 1), [-1]), tf.uint8)
    return packed[: -(-count * bits // 8)]


def _unpack(payload: tf.Tensor, count: int, bits: int) -> tf.Tensor:
    """The values of which `_pack` made a payload, int32 [count]."""
    size = -(-count // 8) * bits
    rows = tf.reshape(tf.pad(tf.cast(payload, tf.int32), [[0, size - int(payload.shape[0])]]), [-1, bits])
    columns = tf.unstack(rows, axis=1)
    parts = []
    for i in range(8):
        first, last = i * bits // 8, ((i + 1) * bits - 1) // 8
        total = 0
        for byte in range(first, last + 1):
            shift = 8 * byte - i * bits
            column = columns[byte]
            total += tf.bitwise.left_shift(column, shift) if shift >= 0 else tf.bitwise.right_shift(column, -shift)
        parts.append(tf.bitwise.bitwise_and(total, (1 << bits) - 1))
    return tf.reshape(tf.stack(parts, 1), [-1])[:count]

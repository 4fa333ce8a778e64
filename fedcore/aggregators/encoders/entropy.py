"""A lossless entropy coder as TensorFlow operations: interleaved rANS.

A value becomes a token and, if it is large, extra bits that stand in the code as they are. Tokens are coded by their
frequencies in this array. Lanes code every L-th token each, side by side, and share one stream of 16-bit words:

    n = 1,605,632 values of 2,007 lanes: 801 steps; each step codes one token of every lane.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from fedcore.aggregators.encoders.bits import Bits, code_of_words, fields, read_fields, sums_before
from fedcore.aggregators.encoders.encoder import Encoder, finite_or_nan

_PLAIN = 64
"""Tokens below this are the value itself. Eight later ones stand for each number of bits, by the next three bits."""
_TOKENS = _PLAIN + 8 * 26
_SCALE = 12
"""Frequencies are multiples of 2**-12."""
_LOWEST = 1 << 15
"""A lane's state is 2**15 to 2**31 - 1, so that it and each product fit int32."""
_STEPS = (256, 400)
"""Fewest and most steps of a long array. A lane costs about 23 bits, a step the time to start its operations."""
_UNROLLED = 4
"""Steps of one iteration: an iteration of a loop costs as much time as ten operations."""


class Entropy(Encoder):
    """See `entropy`."""

    def encode(self, value, seed):
        numbers = _as_int32(value)
        count = int(numbers.shape[0])
        if not count:
            return Bits(tf.zeros([4], tf.uint8))
        lanes, steps = _lanes(count)
        folded = _folded(numbers)
        tokens = _tokens(folded)
        frequency = _frequencies(tokens, count)
        states, words = _encoded(tokens, frequency, lanes, steps)
        return Bits(_joined(states, words, frequency, folded, tokens, lanes))

    def decode(self, code, seed, spec):
        count = _count_int32(spec)
        if not count:
            return tf.zeros(spec.shape, spec.dtype)
        lanes, steps = _lanes(count)
        states, frequency, first_word = _opened(code.bytes, lanes)
        tokens, words = _decoded(code.bytes, states, frequency, first_word, count, lanes, steps)
        return _from_int32(_unfolded(_with_extra_bits(code.bytes, tokens, 16 * words)), spec)


def entropy() -> Encoder:
    """Codes integers with about as many bits as their entropy; lossless.

    Types: integers of up to 32 bits, float32, float64 and int64 values of any static shape, which are read as int32.
    Worst case: 36.2 bits for each int32, and 31 bits for each lane, of which an array has one for 256 to 400 values.

    The frequencies are those of the array and are sent with it, at most 3,544 bits. Floats with infinity
    or NaN decode to NaN throughout.

    Source: Duda 2013, "Asymmetric numeral systems", arXiv:1311.2540; Giesen 2014, "Interleaved entropy coders",
        arXiv:1402.3392. Here, frequencies are counted anew in each array, and values above 63 send their lower bits.
    Example:
        >>> encoders = fc.aggregators.encoders
        >>> step = encoders.uniform_quantization(step=encoders.RMS, rounding='dithered')
        >>> encoder = encoders.chain(encoders.hadamard(), step, encoders.entropy())
        >>> factory = fc.aggregators.EncodedSumFactory(encoder)
    """
    return Entropy()


def _lanes(count: int) -> tuple[int, int]:
    """(lanes, steps)."""
    fewest, most = _STEPS
    lanes = -(-count // min(most, max(fewest, count // 4000)))
    return lanes, -(-count // lanes)


def _in_iterations(step: Callable, steps: int, state: tuple) -> tuple:
    """The state after `step(i, *state)` for i = 0 … steps - 1."""

    def iteration(i, *state):
        for _ in range(unrolled):
            i, state = i + 1, step(i, *state)
        return i, *state

    unrolled = max(1, min(steps, _UNROLLED))
    whole = steps - steps % unrolled
    state = tf.while_loop(lambda i, *_: i < whole, iteration, (tf.constant(0), *state), parallel_iterations=1)[1:]
    for i in range(whole, steps):
        state = step(tf.constant(i), *state)
    return state


def _count_int32(spec: tf.TensorSpec) -> int:
    return math.prod(spec.shape) * (2 if spec.dtype.size == 8 else 1)


def _as_int32(value: tf.Tensor) -> tf.Tensor:
    """The value as an int32 vector."""
    if value.dtype.is_floating:
        value = finite_or_nan(value)
    if value.dtype.is_integer and value.dtype.size < 4:
        value = tf.cast(value, tf.int32)
    elif value.dtype.size < 4:
        value = tf.cast(tf.bitcast(value, tf.uint16), tf.int32)
    return tf.reshape(tf.bitcast(value, tf.int32), [-1])


def _from_int32(numbers: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    if spec.dtype.size < 4 and spec.dtype.is_integer:
        return tf.cast(tf.reshape(numbers, spec.shape), spec.dtype)
    if spec.dtype.size < 4:
        return tf.bitcast(tf.cast(tf.reshape(numbers, spec.shape), tf.uint16), spec.dtype)
    pairs = [2] if spec.dtype.size == 8 else []
    return tf.bitcast(tf.reshape(numbers, [*spec.shape, *pairs]), spec.dtype)


def _tokens(folded: tf.Tensor) -> tf.Tensor:
    """The tokens of unsigned numbers in int32."""
    large = (folded < 0) | (folded >= _PLAIN)

    def with_lengths():
        length = _bit_length(folded)
        next_bits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(folded, tf.maximum(length - 4, 0)), 7)
        return tf.where(large, _PLAIN + 8 * (length - 7) + next_bits, folded)

    return tf.switch_case(tf.cast(tf.reduce_any(large), tf.int32), [lambda: folded, with_lengths])


def _folded(numbers: tf.Tensor) -> tf.Tensor:
    """0, -1, 1, -2, … as 0, 1, 2, 3, …"""
    return tf.bitwise.bitwise_xor(tf.bitwise.left_shift(numbers, 1), tf.bitwise.right_shift(numbers, 31))


def _unfolded(folded: tf.Tensor) -> tf.Tensor:
    half = tf.bitwise.bitwise_and(tf.bitwise.right_shift(folded, 1), 0x7FFFFFFF)
    return tf.bitwise.bitwise_xor(half, -tf.bitwise.bitwise_and(folded, 1))


def _bit_length(unsigned: tf.Tensor) -> tf.Tensor:
    """Bits of an unsigned number in an int32, from the exponent of a float64."""
    number = tf.bitwise.bitwise_and(tf.cast(unsigned, tf.int64), 0xFFFFFFFF)
    exponent = tf.bitwise.right_shift(tf.bitcast(tf.cast(number, tf.float64), tf.int64), 52)
    return tf.cast(tf.maximum(exponent - 1022, 0), tf.int32)


def _frequencies(tokens: tf.Tensor, count: int) -> tf.Tensor:
    """int32 [_TOKENS]: they add to 2**12, and are at least 1 for each token that occurs."""
    counts = tf.cast(tf.math.unsorted_segment_sum(tf.ones_like(tokens), tokens, _TOKENS), tf.int64)
    occurs = tf.cast(counts > 0, tf.int64)
    share = counts * ((1 << _SCALE) - tf.reduce_sum(occurs)) // count + occurs
    rest = (1 << _SCALE) - tf.reduce_sum(share)
    most = tf.cast(tf.equal(tf.range(_TOKENS, dtype=tf.int64), tf.argmax(counts)), tf.int64)
    return tf.cast(share + most * rest, tf.int32)


def _encoded(tokens: tf.Tensor, frequency: tf.Tensor, lanes: int, steps: int) -> tuple[tf.Tensor, tf.Tensor]:
    """(states of the lanes after the last token, words [steps * lanes] in the order of decoding; -1 is no word)."""
    start = tf.cumsum(frequency, exclusive=True)
    padding = [[0, steps * lanes - int(tokens.shape[0])]]
    # One more token has the frequency 2**12 and starts at 0, which changes no state.
    table = tf.concat([tf.bitwise.left_shift(start, 16) + frequency, [1 << _SCALE]], 0)
    rows = tf.reshape(tf.pad(tokens, padding, constant_values=_TOKENS), [steps, lanes])

    def step(i, states, words):
        row = steps - 1 - i
        both = tf.gather(table, tf.gather(rows, row))
        f, c = tf.bitwise.bitwise_and(both, 0xFFFF), tf.bitwise.right_shift(both, 16)
        full = tf.bitwise.right_shift(states, 31 - _SCALE) >= f
        words = words.write(row, tf.where(full, tf.bitwise.bitwise_and(states, 0xFFFF), -1))
        states = tf.where(full, tf.bitwise.right_shift(states, 16), states)
        return states + states // f * ((1 << _SCALE) - f) + c, words

    words = tf.TensorArray(tf.int32, steps, element_shape=[lanes])
    states, words = _in_iterations(step, steps, (tf.fill([lanes], _LOWEST), words))
    return states, tf.reshape(words.stack(), [steps * lanes])


def _joined(states, words, frequency, folded, tokens, lanes: int) -> tf.Tensor:
    """The code: the lanes' lower 16 bits, their upper 15 bits, the last token, frequencies, words, extra bits."""
    numbers, capacity = tf.range(_TOKENS), _capacity_bytes(int(tokens.shape[0]), lanes)
    last = tf.reduce_max(tf.where(frequency > 0, numbers, 0))
    head = fields(
        tf.concat([states, tf.bitwise.right_shift(states, 16), [last], frequency], 0),
        tf.concat([tf.fill([lanes], 16), tf.fill([lanes], 15), [9], tf.where(numbers <= last, 13, 0)], 0),
        0,
    )
    present, first_word = tf.cast(words >= 0, tf.int32), _first_word(last, lanes)
    stream = words, tf.where(words >= 0, first_word + sums_before(present), -1)
    extra_at = 16 * (first_word + tf.reduce_sum(present))

    def with_extra_bits():
        widths = _extra_widths(tokens)
        extra = fields(tf.concat([folded, tf.bitwise.right_shift(folded, 16)], 0), widths, extra_at)
        return code_of_words([head, stream, extra], extra_at + tf.reduce_sum(widths), capacity)

    branches = [lambda: code_of_words([head, stream], extra_at, capacity), with_extra_bits]
    return tf.switch_case(tf.cast(last >= _PLAIN, tf.int32), branches)


def _extra_widths(tokens: tf.Tensor) -> tf.Tensor:
    """How many of the lower 16 bits of each value are sent as they are, then how many of the upper 12: int32 [2n]."""
    bits = _extra_bits(tokens)
    return tf.concat([tf.minimum(bits, 16), tf.maximum(bits - 16, 0)], 0)


def _extra_bits(tokens: tf.Tensor) -> tf.Tensor:
    return tf.where(tokens < _PLAIN, 0, tf.bitwise.right_shift(tokens - _PLAIN, 3) + 3)


def _first_word(last: tf.Tensor, lanes: int) -> tf.Tensor:
    """Place of the first word behind the states and the frequencies of tokens 0 to `last`."""
    return tf.bitwise.right_shift(31 * lanes + 9 + 13 * (last + 1) + 15, 4)


def _capacity_bytes(count: int, lanes: int) -> int:
    """Most bytes: a token takes log2(_TOKENS) + 0.05 bits on average, since the frequencies are its array's."""
    head_bits = 31 * lanes + 9 + 13 * _TOKENS + 15
    words = math.ceil(8.2 * count / 16) + lanes + 1
    return 2 * (math.ceil((head_bits + 28 * count) / 16) + words)


def _opened(code: tf.Tensor, lanes: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(states, frequencies, place of the first word) of a code."""
    lower = read_fields(code, 16 * tf.range(lanes), tf.fill([lanes], 16))
    upper = read_fields(code, 16 * lanes + 15 * tf.range(lanes), tf.fill([lanes], 15))
    at = 31 * lanes
    last = tf.minimum(read_fields(code, tf.constant([at]), tf.constant([9]))[0], _TOKENS - 1)
    numbers = tf.range(_TOKENS)
    frequency = read_fields(code, at + 9 + 13 * numbers, tf.where(numbers <= last, 13, 0))
    return lower + tf.bitwise.left_shift(upper, 16), frequency, _first_word(last, lanes)


def _decoded(code, states, frequency, first_word, count: int, lanes: int, steps: int) -> tuple[tf.Tensor, tf.Tensor]:
    """(tokens [count], place of the first word behind those of the tokens)."""
    token_of, table = _slots(frequency)
    words = tf.bitcast(tf.reshape(code[4:], [-1, 2]), tf.uint16)

    def step(i, states, read, slots):
        slot = tf.bitwise.bitwise_and(states, (1 << _SCALE) - 1)
        both = tf.gather(table, slot)
        f, place = tf.bitwise.right_shift(both, 16), tf.bitwise.bitwise_and(both, 0xFFFF)
        states = f * tf.bitwise.right_shift(states, _SCALE) + place
        short = states < _LOWEST
        needs = tf.cast(short, tf.int32)
        upto = read + tf.cumsum(needs)
        # A place outside of the code is an error of `tf.gather`, and the code was altered in transit.
        word = tf.cast(tf.gather(words, upto - needs), tf.int32)
        states = tf.where(short, tf.bitwise.left_shift(states, 16) + word, states)
        return states, upto[-1], slots.write(i, slot)

    slots = tf.TensorArray(tf.int32, steps, element_shape=[lanes])
    states, read, slots = _in_iterations(step, steps - 1, (states, first_word, slots))
    slots = slots.write(steps - 1, tf.bitwise.bitwise_and(states, (1 << _SCALE) - 1))
    # The last step may have fewer tokens than lanes.
    states = states[: count - (steps - 1) * lanes]
    both = tf.gather(table, tf.bitwise.bitwise_and(states, (1 << _SCALE) - 1))
    f, place = tf.bitwise.right_shift(both, 16), tf.bitwise.bitwise_and(both, 0xFFFF)
    short = f * tf.bitwise.right_shift(states, _SCALE) + place < _LOWEST
    read += tf.reduce_sum(tf.cast(short, tf.int32))
    return tf.gather(token_of, tf.reshape(slots.stack(), [steps * lanes])[:count]), read


def _slots(frequency: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """For each of the 2**12 slots its token, and its token's frequency above its place among the token's slots."""
    size = 1 << _SCALE
    start = tf.minimum(tf.cumsum(frequency, exclusive=True), size)
    marks = tf.math.unsorted_segment_sum(
        tf.ones_like(start), tf.where((frequency > 0) & (start < size), start, -1), size
    )
    order = tf.math.unsorted_segment_sum(tf.range(_TOKENS), _order(frequency), _TOKENS)
    token_of = tf.gather(order, tf.clip_by_value(tf.cumsum(marks) - 1, 0, _TOKENS - 1))
    place = tf.range(size) - tf.gather(start, token_of)
    return token_of, tf.bitwise.left_shift(tf.gather(frequency, token_of), 16) + tf.bitwise.bitwise_and(place, 0xFFFF)


def _order(frequency: tf.Tensor) -> tf.Tensor:
    """For each token how many tokens before it occur; -1 if it does not occur."""
    occurs = frequency > 0
    return tf.where(occurs, tf.cumsum(tf.cast(occurs, tf.int32), exclusive=True), -1)


def _with_extra_bits(code: tf.Tensor, tokens: tf.Tensor, extra_at: tf.Tensor) -> tf.Tensor:
    """The unsigned numbers of tokens, whose extra bits start at a bit of the code."""

    def read():
        widths = _extra_widths(tokens)
        starts = extra_at + sums_before(widths)
        lower, upper = tf.split(read_fields(code, starts, widths), 2)
        first_bits = tf.bitwise.left_shift(8 + tf.bitwise.bitwise_and(tokens - _PLAIN, 7), _extra_bits(tokens))
        return tf.where(tokens < _PLAIN, tokens, first_bits + lower + tf.bitwise.left_shift(upper, 16))

    is_large = tf.reduce_any(tokens >= _PLAIN)
    return tf.switch_case(tf.cast(is_large, tf.int32), [lambda: tokens, read])

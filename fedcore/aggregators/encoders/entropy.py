"""A lossless entropy coder as TensorFlow operations: prefix codes of pairs.

A number becomes one of 32 tokens, and sends lower bits as they are if its array has large numbers. Two tokens are one
of 1,024 symbols. A symbol has a word of 0 to 16 bits, by the frequencies of the tokens in this array. Lanes hold the
words of 256 symbols each, so that decoding is a loop over 256 rows of symbols, one for each lane:

    n = 1,605,632 numbers: 802,816 symbols in 3,136 lanes.

A code is a head (`_head`), the stream of the words (`_stream`), and the raw bits: the lower bits that are sent as they
are. In mode 0 there are no raw bits, see `_tokens`.

An asymmetric numeral system would take 2.27 bits a parameter of a CNN's update in place of 2.28, and three times the
CPU time.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from fedcore.aggregators.encoders.bits import (
    Bits,
    Words,
    code_of_words,
    lowest_bits,
    read_fields,
    sums_before,
    words_at,
    words_of,
)
from fedcore.aggregators.encoders.encoder import Encoder, finite_or_nan, from_real_vector
from fedcore.graphs.tensors.structures import TensorStructure

_TOKENS = 32
_TOKEN_BITS = 5
_ESCAPE = _TOKENS - 1
"""Above mode 0, the token of a number far from 0, which sends all its 32 bits."""
_SYMBOLS = _TOKENS**2
_MOST_BITS = 16
"""The most bits of a symbol's word."""
_SLOTS = 1 << _MOST_BITS
"""How many values the next 16 bits of a code have: a word of b bits begins 2^(16 - b) of them."""
_REVERSED = functools.reduce(
    lambda order, _: np.concatenate([2 * order, 2 * order + 1]), range(_MOST_BITS), np.zeros(1, np.int32)
)
"""0 … 65535 in bit-reversed order.

The lowest bit of a code is its first, but words are made in the order of their numbers, first bit highest.
"""
_ROWS = 256
"""The most rows of symbols, and so of symbols in a lane: a lane costs 16 bits, a row the time of its operations."""
_SHORTENINGS = 4
"""Rounding lengths leaves slots over, since many symbols have one cost; words are made shorter in so many passes."""
_ABSENT = 255
"""The cost of a token that does not occur; others are in 16ths of a bit."""


class Entropy(Encoder):
    """See `entropy`."""

    kind, name = "numeric", "entropy"

    def encode(self, value: tf.Tensor, seed: tf.Tensor) -> Bits:
        numbers = _as_int32(value)
        count = int(numbers.shape[0])
        if not count:
            return Bits(tf.zeros([4], tf.uint8))
        lanes, rows = _lanes(count)
        tokens, origin, mode = _tokens(numbers)
        symbols = _symbols(tokens, lanes * rows)
        costs = _costs(symbols)
        entries = tf.reshape(tf.gather(_words_by_symbol(costs), symbols), [rows, lanes])
        stream, lane_bits = _stream(entries, _head_bits(lanes))
        head = _head(origin, costs, mode, lane_bits)
        raw_at = _head_bits(lanes) + tf.reduce_sum(lane_bits)
        capacity = _head_bits(lanes) // 32 + lanes * rows * _MOST_BITS // 32 + count

        def with_raw_bits() -> tf.Tensor:
            widths = _raw_widths(tokens, mode)
            low = tf.bitwise.bitwise_and(numbers, lowest_bits(widths))
            raw = words_at(low, raw_at + sums_before(widths))
            return code_of_words([head, stream, raw], raw_at + tf.reduce_sum(widths), capacity)

        return Bits(_if_wide(mode, lambda: code_of_words([head, stream], raw_at, capacity), with_raw_bits))

    def decode(self, code: Bits, seed: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        count = _count_int32(spec)
        if not count:
            return tf.zeros(spec.shape, spec.dtype)
        lanes, rows = _lanes(count)
        words, stream_start = words_of(code.bytes), _head_bits(lanes) // 32
        origin, costs, mode, lane_bits = _parse_head(words[:stream_start], lanes)
        most_words = lanes * rows * _MOST_BITS // 32
        stream = words[stream_start : stream_start + most_words + 1]  # `_decode_symbols` reads a word behind it
        symbols = _decode_symbols(stream, _symbols_by_slot(costs), lane_bits, rows)
        tokens = _tokens_of(symbols, count)

        def with_raw_bits() -> tf.Tensor:
            widths = _raw_widths(tokens, mode)
            raw = read_fields(code.bytes, _head_bits(lanes) + tf.reduce_sum(lane_bits) + sums_before(widths), widths)
            return tf.where(tokens == _ESCAPE, raw, tf.bitwise.left_shift(tokens - _ESCAPE // 2, mode - 1) + raw)

        return _from_int32(_if_wide(mode, lambda: tokens + origin, with_raw_bits), spec)


def entropy() -> Encoder:
    """Codes integers with about as many bits as their entropy; lossless.

    Types: numbers of any static shape, which are read as int32: those of 64 bits as two, complex ones as two floats.
    Worst case: 40.1 bits for each int32, and 320 bits.

    An array whose numbers are within 32 of each other is coded by their frequencies. In another one the numbers send
    lower bits as they are, as many as estimated best, and few numbers far from 0 send 32 bits. Floats with infinity or
    NaN decode to NaN throughout.

    Source: Rice 1979, "Some practical universal noiseless coding techniques" (lower bits as they are); Schwartz &
        Kallick 1964, "Generating a canonical prefix encoding". Here, two numbers share a word, whose length is the
        rounded information of their tokens.
    Example:
        >>> encoders = fc.aggregators.encoders
        >>> step = encoders.uniform_quantization(step=encoders.RMS, rounding='dithered')
        >>> encoder = encoders.chain(encoders.hadamard(), step, encoders.entropy())
        >>> factory = fc.aggregators.EncodedSumFactory(encoder)
    """
    return Entropy()


def _lanes(count: int) -> tuple[int, int]:
    """(lanes, rows) for the symbols of `count` numbers; the rows are an even number."""
    symbols = -(-count // 2)
    lanes = -(-symbols // _ROWS)
    rows = -(-symbols // lanes)
    return lanes, rows + rows % 2


def _head_bits(lanes: int) -> int:
    """The bits of a head in whole words: the least number, a byte for each token's cost, 16 bits for mode and lanes."""
    return 32 * (1 + _TOKENS // 4 + (lanes + 2) // 2)


def _if_wide(
    mode: tf.Tensor, narrow: Callable[[], TensorStructure], wide: Callable[[], TensorStructure]
) -> TensorStructure:
    """The result of `wide` if the mode is above 0, so that there are raw bits; else that of `narrow`.

    By `tf.switch_case`, which has a batching rule for clients that take different branches.
    """
    return tf.switch_case(tf.cast(mode > 0, tf.int32), [narrow, wide])


def _count_int32(spec: tf.TensorSpec) -> int:
    """How many numbers `_as_int32` makes of a value."""
    return math.prod(spec.shape) * max(1, spec.dtype.size // 4)


def _as_int32(value: tf.Tensor) -> tf.Tensor:
    """The value as an int32 vector."""
    if value.dtype.is_complex:
        value = tf.stack([tf.math.real(value), tf.math.imag(value)], -1)
    if value.dtype.is_floating:
        value = finite_or_nan(value)
    if value.dtype.is_integer and value.dtype.size < 4:
        value = tf.cast(value, tf.int32)
    elif value.dtype.size < 4:
        value = tf.cast(tf.bitcast(value, tf.uint16), tf.int32)
    return tf.reshape(tf.bitcast(value, tf.int32), [-1])


def _from_int32(numbers: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """The value of which `_as_int32` made the numbers."""
    if spec.dtype.size < 4 and spec.dtype.is_integer:
        return tf.cast(tf.reshape(numbers, spec.shape), spec.dtype)
    if spec.dtype.size < 4:
        return tf.bitcast(tf.cast(tf.reshape(numbers, spec.shape), tf.uint16), spec.dtype)
    if spec.dtype.is_complex:
        parts = tf.TensorSpec([*spec.shape, 2], tf.float32 if spec.dtype == tf.complex64 else tf.float64)
        return from_real_vector(tf.reshape(_from_int32(numbers, parts), [-1]), spec)
    pairs = [2] if spec.dtype.size == 8 else []
    return tf.bitcast(tf.reshape(numbers, [*spec.shape, *pairs]), spec.dtype)


def _tokens(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(tokens; the least number; the mode).

    Mode 0: the numbers are within 32 of each other; a token is a number minus the least. Mode 1 to 28: a token is a
    number without its lower mode - 1 bits, which are sent as they are, or `_ESCAPE` for a number far from 0.
    """
    least = tf.reduce_min(numbers)
    spread = tf.bitcast(tf.reduce_max(numbers) - least, tf.uint32)

    def wide() -> tuple[tf.Tensor, tf.Tensor]:
        lower = _best_lower_bits(numbers)
        from_zero = tf.bitwise.right_shift(numbers, lower) + _ESCAPE // 2
        return tf.where((from_zero < 0) | (from_zero > _ESCAPE), _ESCAPE, from_zero), lower + 1

    is_wide = tf.cast(spread >= _TOKENS, tf.int32)
    tokens, mode = tf.switch_case(is_wide, [lambda: (numbers - least, tf.constant(0)), wide])
    return tokens, least, mode


def _best_lower_bits(numbers: tf.Tensor) -> tf.Tensor:
    """The number of lower bits, 0 to 27, for which the estimated code is shortest.

    The estimate takes numbers of one length for equally frequent. It is computed in integers, so that a client has the
    same code alone and in a group.
    """
    magnitudes = tf.bitwise.bitwise_xor(numbers, tf.bitwise.right_shift(numbers, 31))
    lengths = tf.maximum(tf.bitwise.right_shift(_float_bits(magnitudes), 23) - 126, 0)
    length_counts = _bincount(lengths, 33)
    upto, lower = tf.cumsum(length_counts), np.arange(28)
    # Six groups of numbers, for each of the 28 choices: no longer than the lower bits; longer by 1, 2, 3, 4 bits; and
    # the longest, which are escaped. `bits` is what tells the numbers of a group apart: lower bits, sign, higher bits.
    groups = [upto[:28], *(length_counts[i : i + 28] for i in (1, 2, 3, 4)), int(numbers.shape[0]) - upto[4:32]]
    bits = np.stack([lower + 1, *(lower + i for i in (1, 2, 3, 4)), np.full(28, 32)])
    counts = tf.stack(groups)
    costs = 16 * bits.astype(np.int32) + _logarithm(tf.constant(int(numbers.shape[0]))) - _logarithm(counts)
    total = tf.reduce_sum(tf.cast(counts, tf.int64) * tf.cast(costs, tf.int64), 0)
    return tf.argmin(total, output_type=tf.int32)


def _float_bits(numbers: tf.Tensor) -> tf.Tensor:
    """The int32 bits of the float32 nearest to each number; the exponent begins at bit 23."""
    return tf.bitcast(tf.cast(numbers, tf.float32), tf.int32)


def _logarithm(numbers: tf.Tensor) -> tf.Tensor:
    """Base-2 logarithms of int32 in 16ths, too small by less than a tenth of 1: exponent and mantissa of a float."""
    return tf.bitwise.right_shift(_float_bits(numbers), 19) - (127 << 4)


def _bincount(numbers: tf.Tensor, size: int) -> tf.Tensor:
    """int32 [size]: how often each of 0 … size - 1 is in an int32 vector."""
    return tf.raw_ops.DenseBincount(input=numbers, size=size, weights=tf.zeros([0], tf.int32), binary_output=False)


def _raw_widths(tokens: tf.Tensor, mode: tf.Tensor) -> tf.Tensor:
    """How many bits of each number are sent as they are: all 32 of an escaped number, of another its lower bits."""
    return tf.where(tokens == _ESCAPE, 32, tf.maximum(mode - 1, 0))


def _symbols(tokens: tf.Tensor, size: int) -> tf.Tensor:
    """int32 [size]: symbol p is token p, and above its 5 bits token size + p; missing tokens are the first one."""
    total = 0
    for i in range(2):
        part = tokens[i * size : (i + 1) * size]
        missing = size - int(part.shape[0])
        if missing:
            part = tf.concat([part, tf.broadcast_to(tokens[:1], [missing])], 0)
        total += tf.bitwise.left_shift(part, _TOKEN_BITS * i) if i else part
    return total


def _tokens_of(symbols: tf.Tensor, count: int) -> tf.Tensor:
    """int32 [count]: the tokens of which `_symbols` made the symbols."""
    size = int(symbols.shape[0])
    parts = []
    for i in range(2):
        part = symbols[: max(0, min(size, count - i * size))]
        parts.append(tf.bitwise.bitwise_and(tf.bitwise.right_shift(part, _TOKEN_BITS * i), _TOKENS - 1))
    return tf.concat(parts, 0)


def _costs(symbols: tf.Tensor) -> tf.Tensor:
    """int32 [32]: the information of each token, in 16ths of a bit."""
    counts = tf.reshape(_bincount(symbols, _SYMBOLS), [_TOKENS] * 2)
    token_counts = tf.reduce_sum(counts, 0) + tf.reduce_sum(counts, 1)
    costs = _logarithm(tf.constant(2 * int(symbols.shape[0]))) - _logarithm(token_counts)
    return tf.where(token_counts > 0, tf.clip_by_value(costs, 0, _ABSENT - 1), _ABSENT)


def _words_in_order(costs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(symbols; the number of bits of their words, 17 for none; the words' first slots), sorted by the number of bits.

    The word of b bits has 2**(16 - b) of the 2**16 slots. Lengths are information minus a number of bits, rounded up:
    the largest number with which the slots suffice, which gives about Huffman's lengths.
    """
    costs = tf.where(costs == _ABSENT, 1 << 12, costs)
    symbol_costs = tf.reshape(costs + costs[:, None], [_SYMBOLS])
    reductions = np.arange(-32, 16, dtype=np.int32)  # in 16ths of a bit
    slots = tf.reduce_sum(_slots(_lengths(symbol_costs, reductions[:, None])), 1)
    # The first ones fit, since a larger reduction takes more slots.
    num_fitting = tf.reduce_sum(tf.cast(slots <= _SLOTS, tf.int32))
    lengths = _lengths(symbol_costs, tf.gather(reductions, tf.maximum(num_fitting - 1, 0)))
    for _ in range(_SHORTENINGS):
        lengths -= _find_shortenings(lengths, symbol_costs)
    order = tf.sort(tf.bitwise.left_shift(lengths, 2 * _TOKEN_BITS) + tf.range(_SYMBOLS))
    lengths = tf.bitwise.right_shift(order, 2 * _TOKEN_BITS)
    return tf.bitwise.bitwise_and(order, _SYMBOLS - 1), lengths, sums_before(_slots(lengths), 1)


def _lengths(symbol_costs: tf.Tensor, reduction: np.ndarray | tf.Tensor) -> tf.Tensor:
    """Bits of each symbol's word: its cost minus `reduction`, both in 16ths of a bit, rounded up; 17 for no word."""
    lengths = tf.clip_by_value(tf.bitwise.right_shift(symbol_costs - reduction + 15, 4), 0, _MOST_BITS)
    return tf.where(symbol_costs < 1 << 12, lengths, _MOST_BITS + 1)


def _find_shortenings(lengths: tf.Tensor, symbol_costs: tf.Tensor) -> tf.Tensor:
    """1 for each symbol whose word becomes a bit shorter by slots that are left: words that are too long come first."""
    slots = _slots(lengths)
    left = _SLOTS - tf.reduce_sum(slots)
    needed = tf.where((slots <= left) & (lengths > 0), slots, 0)
    too_long = tf.where(needed > 0, 16 * lengths - symbol_costs, -1024)
    order = tf.sort(tf.bitwise.left_shift(1024 - too_long, 2 * _TOKEN_BITS) + tf.range(_SYMBOLS))
    order = tf.bitwise.bitwise_and(order, _SYMBOLS - 1)
    needed = tf.gather(needed, order)
    fits = (needed > 0) & (sums_before(needed, 1) + needed <= left)
    return tf.math.unsorted_segment_sum(tf.cast(fits, tf.int32), order, _SYMBOLS)


def _slots(lengths: tf.Tensor) -> tf.Tensor:
    """How many of the 2**16 slots a word of each length takes; 0 for a symbol without a word."""
    return tf.bitwise.right_shift(_SLOTS, lengths)


def _words_by_symbol(costs: tf.Tensor) -> tf.Tensor:
    """The table for encoding, int32 [1024]: by symbol, the number of bits of its word, above 16 bits of the word.

    The first bit of a word is its lowest.
    """
    symbols, lengths, slots = _words_in_order(costs)
    words = tf.gather(_REVERSED, tf.minimum(slots, _SLOTS - 1))
    return tf.math.unsorted_segment_sum(tf.bitwise.left_shift(lengths, 16) + words, symbols, _SYMBOLS)


def _symbols_by_slot(costs: tf.Tensor) -> tf.Tensor:
    """The table for decoding, int32 [2**16]: by the next 16 bits of a code, the first word in them and its symbol.

    An entry is the number of bits of the word, above 10 bits of the symbol.
    """
    symbols, lengths, slots = _words_in_order(costs)
    entries = tf.bitwise.left_shift(lengths, 2 * _TOKEN_BITS) + symbols
    # A code that was altered in transit may have more slots than there are.
    first = tf.where((lengths <= _MOST_BITS) & (slots < _SLOTS), slots, -1)
    marks = tf.math.unsorted_segment_sum(tf.ones_like(first), first, _SLOTS)
    rank = sums_before(marks) + marks - 1  # of a slot's word among the words in order, which start at the marks
    return tf.gather(entries, tf.maximum(tf.gather(rank, _REVERSED), 0))


def _stream(entries: tf.Tensor, first_bit: int) -> tuple[Words, tf.Tensor]:
    """(words of the code that hold all symbols' words, lane by lane; bits of each lane).

    In a lane, the symbols' words of rows r and rows / 2 + r are neighbours, so that two are one field of the code.

    Args:
        entries: int32 [rows, lanes], of `_words_by_symbol`.
        first_bit: of the code, at which the stream begins.
    """
    rows, lanes = (int(n) for n in entries.shape)
    lengths, codes = tf.bitwise.right_shift(entries, 16), tf.bitwise.bitwise_and(entries, 0xFFFF)
    half = rows // 2
    both = codes[:half] + tf.bitwise.left_shift(codes[half:], lengths[:half])
    bits = lengths[:half] + lengths[half:]
    offsets = tf.matmul(np.tril(np.ones((half, half), np.float32), -1), tf.cast(bits, tf.float32))
    lane_bits = tf.reduce_sum(bits, 0)
    starts = tf.cast(offsets, tf.int32) + (first_bit + sums_before(lane_bits, 1))
    return words_at(tf.reshape(both, [half * lanes]), tf.reshape(starts, [half * lanes])), lane_bits


def _head(origin: tf.Tensor, costs: tf.Tensor, mode: tf.Tensor, lane_bits: tf.Tensor) -> Words:
    """The code's first words: the least number; 32 costs of 8 bits; 16 bits each for the mode and each lane's bits.

    Args:
        origin, mode: the least number and the mode, as `_tokens` returns them.
        costs: int32 [32].
        lane_bits: int32 [lanes]: the number of bits of each lane.
    """
    lanes = int(lane_bits.shape[0])
    fields = tf.concat([tf.reshape(origin, [1]), costs, tf.reshape(mode, [1]), lane_bits], 0)
    widths = np.array([32] + [8] * _TOKENS + [16] * (1 + lanes), np.int32)
    return words_at(fields, tf.constant(np.cumsum(widths) - widths, tf.int32))


def _parse_head(head: tf.Tensor, lanes: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The fields that `_head` writes: (least number, int32 [32] costs, mode, int32 [lanes] bits of each lane).

    A mode is at most 28, see `_tokens`; a head that was altered in transit may have a larger one.
    """
    costs = tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(head[1 : 1 + _TOKENS // 4, None], np.arange(0, 32, 8, dtype=np.int32)), 0xFF
    )
    both = tf.bitwise.right_shift(head[1 + _TOKENS // 4 :, None], np.array([0, 16], np.int32))
    halves = tf.reshape(tf.bitwise.bitwise_and(both, 0xFFFF), [-1])
    return head[0], tf.reshape(costs, [_TOKENS]), tf.minimum(halves[0], 28), halves[1 : 1 + lanes]


def _decode_symbols(stream: tf.Tensor, table: tf.Tensor, lane_bits: tf.Tensor, rows: int) -> tf.Tensor:
    """int32 [rows * lanes]: the symbols whose words `_stream` put into a code, row by row.

    Args:
        stream: int32 words of the code from the stream on, with one behind it.
        table: of `_symbols_by_slot`.
        lane_bits: int32 [lanes].
    """
    lanes, half = int(lane_bits.shape[0]), rows // 2
    upper = tf.bitwise.bitwise_and(tf.bitwise.right_shift(stream[:-1], 16), 0xFFFF)
    between = upper + tf.bitwise.left_shift(stream[1:], 16)
    windows = tf.reshape(tf.stack([stream[:-1], between], 1), [-1])  # 32 bits from each 16th on

    def symbol(at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(table entry of each lane's next symbol, the bit behind it), for `at`, the lanes' next bits of the stream."""
        # A place outside of the code is an error of `tf.gather`, and the code was altered in transit.
        window = tf.gather(windows, tf.bitwise.right_shift(at, 4))
        window = tf.bitwise.right_shift(window, tf.bitwise.bitwise_and(at, 15))
        entry = tf.gather(table, tf.bitwise.bitwise_and(window, _SLOTS - 1))
        return entry, at + tf.bitwise.right_shift(entry, 2 * _TOKEN_BITS)

    def rows_of(i: tf.Tensor, at: tf.Tensor, first: tf.TensorArray, second: tf.TensorArray) -> tuple:
        entry, at = symbol(at)
        first = first.write(i, entry)
        entry, at = symbol(at)
        return i + 1, at, first, second.write(i, entry)

    halves = [tf.TensorArray(tf.int32, half, element_shape=[lanes]) for _ in range(2)]
    start = tf.constant(0), sums_before(lane_bits, 1), *halves
    _, _, *halves = tf.while_loop(lambda i, *_: i < half, rows_of, start, parallel_iterations=1)
    return tf.reshape(tf.concat([rows.stack() for rows in halves], 0), [rows * lanes])

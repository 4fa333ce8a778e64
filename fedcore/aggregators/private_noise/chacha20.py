"""ChaCha20 in TensorFlow: a counter-based generator of cryptographic strength.

Source: RFC 8439, section 2.3.
"""

import tensorflow as tf

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)


def chacha20(key: tf.Tensor, stream: tf.Tensor, blocks: int) -> tf.Tensor:
    """The key stream as uint32 [16, blocks]: column i is the block of counter i.

    Args:
        key: uint32 [8].
        stream: uint32, the first word of the nonce, whose other words are 0.
        blocks: fewer than 2**32.
    """
    nonce = tf.stack([stream, tf.zeros_like(stream), tf.zeros_like(stream)])
    words = tf.concat([tf.constant(_CONSTANTS, tf.uint32), key, tf.zeros([1], tf.uint32), nonce], 0)
    counters = tf.cast(tf.range(blocks, dtype=tf.int64), tf.uint32)
    start = tf.concat(
        [tf.repeat(words[:12, None], blocks, 1), counters[None], tf.repeat(words[13:, None], blocks, 1)], 0
    )

    def double_round(
        number: tf.Tensor, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        a, b, c, d = _quarter_rounds(a, b, c, d)
        # Rotated rows have the state's diagonals as their columns.
        a, b, c, d = _quarter_rounds(a, _roll(b, 1), _roll(c, 2), _roll(d, 3))
        return number + 1, a, _roll(b, 3), _roll(c, 2), _roll(d, 1)

    rows = tf.split(start, 4)
    _, *rows = tf.while_loop(lambda number, *_: number < 10, double_round, (tf.constant(0), *rows))
    return tf.concat(rows, 0) + start


def _quarter_rounds(
    a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The quarter rounds of the four columns of each state; RFC 8439, section 2.1.

    Args:
        a, b, c, d: the rows of the states, uint32 [4, blocks].
    """
    for first, second in ((16, 12), (8, 7)):
        a += b
        d = _rotate_left(d ^ a, first)
        c += d
        b = _rotate_left(b ^ c, second)
    return a, b, c, d


def _rotate_left(x: tf.Tensor, bits: int) -> tf.Tensor:
    left, right = (tf.constant(n, tf.uint32) for n in (bits, 32 - bits))
    return tf.bitwise.left_shift(x, left) | tf.bitwise.right_shift(x, right)


def _roll(rows: tf.Tensor, places: int) -> tf.Tensor:
    """The entries of each column, rotated so that the one at `places` comes first."""
    return tf.concat([rows[places:], rows[:places]], 0)

"""Strings as rows of integers that are small enough to be added modulo a prime, and back."""

import enum
import math
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import InvalidValue, brief
from fedcore.scalars import whole_number


class CharacterEncoding(enum.Enum):
    """How the strings of a table are encoded: UTF8 is text without NUL characters; UNKNOWN is any bytes.

    Types: an argument of encoders and decoders, no value of a computation.
    Example:
        >>> fc.analytics.heavy_hitters.iblt.CharacterEncoding.UTF8.value
        'utf-8'
    """

    UTF8 = "utf-8"
    UNKNOWN = "unknown"


@attrs.frozen
class Chunker:
    """Turns each string into integers of a few bytes each, least byte first, and back.

    Args:
        string_max_bytes: the bytes of a string that are kept.
        chunk_bytes: bytes of an integer.
        has_length: whether the first integer is the length of the string, so that NUL bytes are kept.
        dtype: int32 or int64.
    """

    string_max_bytes: int
    chunk_bytes: int
    has_length: bool
    dtype: Any

    @property
    def max_length(self) -> int:
        """Bytes of the integers of one string: `string_max_bytes`, rounded up to whole integers."""
        return math.ceil(self.string_max_bytes / self.chunk_bytes) * self.chunk_bytes

    def get_num_chunks(self) -> int:
        """Integers of one string."""
        return self.max_length // self.chunk_bytes + self.has_length

    def encode_tensorflow(self, input_strings: tf.types.experimental.TensorLike) -> tuple[tf.Tensor, tf.Tensor]:
        """The integers of strings, of shape [strings, chunks], and the strings cut to the bytes that were kept."""
        prefixes = tf.strings.substr(input_strings, 0, self.string_max_bytes)
        raw = tf.cast(tf.io.decode_raw(prefixes, tf.uint8, fixed_length=self.max_length), self.dtype)
        places = tf.constant([256**i for i in range(self.chunk_bytes)], self.dtype)
        chunks = tf.reduce_sum(tf.reshape(raw, [-1, self.max_length // self.chunk_bytes, self.chunk_bytes]) * places, 2)
        if self.has_length:
            chunks = tf.concat([tf.cast(tf.strings.length(prefixes), self.dtype)[:, None], chunks], 1)
        return chunks, prefixes

    def decode_tensorflow(self, encoded_chunks: tf.types.experimental.TensorLike) -> tf.Tensor:
        """The strings of integers of shape [strings, chunks]; integers of no string give some string."""
        chunks = tf.reshape(encoded_chunks, [-1, self.get_num_chunks()])
        parts = chunks[:, self.has_length :, None]
        places = tf.constant([8 * i for i in range(self.chunk_bytes)], self.dtype)
        raw = tf.bitwise.bitwise_and(tf.bitwise.right_shift(parts, places), tf.constant(255, self.dtype))
        first = b"\0" if self.has_length else b""  # text has no NUL: zeros only fill the integers
        letters = tf.constant([first, *(bytes([i]) for i in range(1, 256))])
        strings = tf.strings.reduce_join(tf.gather(letters, tf.reshape(raw, [-1, self.max_length])), 1)
        if not self.has_length:
            return strings
        lengths = tf.clip_by_value(chunks[:, 0], 0, tf.constant(self.string_max_bytes, self.dtype))
        return tf.strings.substr(strings, tf.zeros_like(lengths), lengths)

    def decode_python(self, encoded_chunks: np.ndarray) -> np.ndarray:
        """The strings of a numpy array of shape [strings, chunks], as an array of bytes objects."""
        return self.decode_tensorflow(tf.constant(encoded_chunks, self.dtype)).numpy()


def create_chunker(
    *,
    string_max_bytes: int,
    encoding: CharacterEncoding = CharacterEncoding.UTF8,
    max_chunk_value: int | None = None,
    dtype: tf.DType = tf.int64,
) -> Chunker:
    """The chunker of strings of an encoding.

    Types:
        encode_tensorflow  (str[n] -> <dtype[n,chunks],str[n]>)
        decode_tensorflow  (dtype[n,chunks] -> str[n])

    Args:
        string_max_bytes: the bytes of a string that are kept; a character may be cut in two.
        encoding: UTF8 drops NUL characters; UNKNOWN keeps them, by one integer more.
        max_chunk_value: no integer is greater. Default: the greatest one of `dtype`.
        dtype: tf.int32 or tf.int64.
    Raises:
        FedcoreError: a number is outside its range, a string's length or a byte does not fit into an integer, or the
            encoding is none.
    Example:
        >>> chunker = fc.analytics.heavy_hitters.iblt.create_chunker(string_max_bytes=4, max_chunk_value=2**31 - 1)
        >>> chunks, kept = chunker.encode_tensorflow(['hello'])
        >>> chunks.shape, chunker.decode_tensorflow(chunks).numpy()
        (TensorShape([1, 2]), array([b'hell'], dtype=object))
    """
    size = whole_number("string_max_bytes", string_max_bytes, at_least=1)
    if not isinstance(encoding, CharacterEncoding):
        raise InvalidValue(f"encoding is a CharacterEncoding, UTF8 or UNKNOWN, not {brief(encoding)}")
    dtype = tf.as_dtype(dtype)
    if dtype not in (tf.int32, tf.int64):
        raise InvalidValue(f"dtype is tf.int32 or tf.int64, not {brief(dtype)}")
    largest = dtype.max
    if max_chunk_value is not None:
        largest = whole_number("max_chunk_value", max_chunk_value, at_least=1)
        if largest > dtype.max:
            raise InvalidValue(f"max_chunk_value is {largest}, which {dtype.name} does not hold")
    chunk_bytes = (largest.bit_length() - 1) // 8  # any so many bytes are at most `largest`
    has_length = encoding is CharacterEncoding.UNKNOWN
    if chunk_bytes < 1 or (has_length and size > largest):
        raise InvalidValue(f"max_chunk_value is {largest}: a byte, and a length of up to {size}, do not fit into it")
    return Chunker(size, chunk_bytes, has_length, dtype)

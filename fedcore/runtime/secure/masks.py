"""Vectors of integers modulo numbers, their bytes on the wire, and masks from ChaCha20.

A vector is a list with one numpy array for each segment of its layout.
"""

import functools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

CHUNK = 1 << 16
"""Elements of a mask that are computed at once, so that they stay in the processor's cache."""

_ZEROS = memoryview(bytes(8 * CHUNK))  # ChaCha20 encrypts zeros to its stream

Vector = list[np.ndarray]
"""For each segment of a layout the elements, an array [length]."""


@attrs.frozen
class Segment:
    """Consecutive elements of a vector that are added modulo one number.

    Args:
        length: number of elements.
        modulus: from 1 to 2**64.
    """

    length: int
    modulus: int

    @functools.cached_property
    def width(self) -> int:
        """Bytes of an element on the wire."""
        return max(1, -(-(self.modulus - 1).bit_length() // 8))

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """The dtype in which elements are added. Sums may exceed a modulus that is a power of 2, until reduced."""
        return np.dtype("<u4" if self.wraps and self.width <= 4 else "<u8")

    @functools.cached_property
    def wraps(self) -> bool:
        """Whether the modulus is a power of 2: sums may then wrap in the dtype, and are reduced at the end."""
        return self.modulus & (self.modulus - 1) == 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the segment on the wire."""
        return self.length * self.width

    def reduce(self, array: np.ndarray) -> np.ndarray:
        """The elements modulo the modulus."""
        is_reduced = not self.wraps or self.modulus == 1 << (8 * self.dtype.itemsize)
        return array if is_reduced else array & self.dtype.type(self.modulus - 1)

    def add(self, total: np.ndarray, array: np.ndarray) -> None:
        """Adds an array to the total, in place."""
        if self.wraps:
            np.add(total, array, out=total)
            return
        room = self.dtype.type(self.modulus) - array  # compared first, since total + array may exceed the dtype
        np.copyto(total, np.where(total >= room, total - room, total + array))

    def subtract(self, total: np.ndarray, array: np.ndarray) -> None:
        """Subtracts an array from the total, in place."""
        if self.wraps:
            np.subtract(total, array, out=total)
            return
        complement = self.dtype.type(self.modulus) - array
        np.copyto(total, np.where(total >= array, total - array, total + complement))

    def to_bytes(self, array: np.ndarray) -> bytes:
        """The elements modulo the modulus, `width` bytes each, little-endian."""
        reduced = np.ascontiguousarray(self.reduce(array))
        if self.width == self.dtype.itemsize:
            return reduced.tobytes()
        return reduced.view(np.uint8).reshape(-1, self.dtype.itemsize)[:, : self.width].tobytes()

    def from_bytes(self, data: bytes | memoryview) -> np.ndarray:
        """The inverse of `to_bytes`; elements that were not reduced may exceed the modulus."""
        flat = np.frombuffer(data, np.uint8)
        if self.width == self.dtype.itemsize:
            return flat.view(self.dtype)
        wide = np.zeros((len(flat) // self.width, self.dtype.itemsize), np.uint8)
        wide[:, : self.width] = flat.reshape(-1, self.width)
        return wide.reshape(-1).view(self.dtype)


Layout = Sequence[Segment]


def zeros(layout: Layout) -> Vector:
    return [np.zeros(s.length, s.dtype) for s in layout]


def size_bytes(layout: Layout) -> int:
    """Bytes of a vector on the wire."""
    return sum(s.size_bytes for s in layout)


def to_bytes(vector: Vector, layout: Layout) -> bytes:
    return b"".join(s.to_bytes(array) for s, array in zip(layout, vector, strict=True))


def from_bytes(data: memoryview, layout: Layout) -> Vector | None:
    """The inverse of `to_bytes`; None if the size is wrong, or an element is not below its modulus."""
    if len(data) != size_bytes(layout):
        return None
    vector, start = [], 0
    for segment in layout:
        array = segment.from_bytes(data[start : start + segment.size_bytes])
        if segment.modulus != 1 << (8 * segment.width) and np.any(array >= segment.dtype.type(segment.modulus)):
            return None
        vector.append(array)
        start += segment.size_bytes
    return vector


def add(total: Vector, vector: Vector, layout: Layout) -> None:
    """Adds a vector to the total, in place."""
    for segment, a, b in zip(layout, total, vector, strict=True):
        segment.add(a, b)


def add_mask(total: Vector, key: bytes, layout: Layout, *, negative: bool = False) -> None:
    """Adds the mask of a key of 32 bytes to the total, or subtracts it, in place.

    An element of the mask is uniform over the numbers below the modulus. A key makes one mask only, so the number of
    the segment suffices as nonce.
    """
    for number, (segment, segment_total) in enumerate(zip(layout, total, strict=True)):
        change = segment.subtract if negative else segment.add
        start = 0
        for part in _stream(key, number, segment):
            change(segment_total[start : start + len(part)], part)
            start += len(part)


def _stream(key: bytes, number: int, segment: Segment) -> Iterator[np.ndarray]:
    """The elements of a segment's mask, in parts of at most `CHUNK`.

    Args:
        number: number of the segment in its layout.
    """
    nonce = bytes(4) + number.to_bytes(12, "little")  # the first 4 bytes count blocks
    encryptor = Cipher(ChaCha20(key, nonce), mode=None).encryptor()
    missing = segment.length
    while missing > 0:
        if segment.wraps:
            part = segment.from_bytes(encryptor.update(_ZEROS[: min(missing, CHUNK) * segment.width]))
        else:
            # Words from the largest multiple of the modulus on are rejected: else small numbers would be likelier. So
            # an eighth more words are drawn than are missing.
            words = np.frombuffer(encryptor.update(_ZEROS[: 8 * min(CHUNK, missing + missing // 8 + 1)]), "<u8")
            accepted = words[words < (1 << 64) // segment.modulus * segment.modulus]
            part = (accepted % np.uint64(segment.modulus))[:missing]
        yield part
        missing -= len(part)

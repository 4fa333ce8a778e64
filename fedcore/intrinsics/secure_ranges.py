"""Ranges of the integers that a secure sum adds, as the attribute `secure` of plans writes them."""

import re
from collections.abc import Iterable

import attrs
import numpy as np

from fedcore.errors import TypeMismatch, brief
from fedcore.types import TensorType, Type, is_static, tensor_leaves

OPEN = ""
"""The entry of a leaf that crosses outside of secure sums."""

_TEXT = re.compile(r"(0\.\.|mod )(\d{1,20})|any")


@attrs.frozen
class SecureRange:
    """The integers that clients may contribute to one leaf, and the modulus of their sum.

    The text is `0..9` (0 to 9; the sum wraps as the dtype does), `mod 7` (0 to 6; the sum is taken modulo 7) or `any`
    (all values of the dtype; the sum wraps).

    Args:
        largest: largest contribution, the least being 0; None for `any`.
        modulus: modulus of the sum; None if the sum wraps as the dtype does.
    """

    largest: int | None
    modulus: int | None = None

    def __str__(self) -> str:
        if self.modulus is not None:
            return f"mod {self.modulus}"
        return "any" if self.largest is None else f"0..{self.largest}"

    def bits(self, dtype: np.dtype) -> int:
        """The bits that a contribution of a dtype takes."""
        return 8 * dtype.itemsize if self.largest is None else self.largest.bit_length()

    def holds(self, integers: np.ndarray) -> bool:
        """Whether all integers are in the range."""
        largest = self.largest
        return largest is None or not integers.size or (int(integers.min()) >= 0 and int(integers.max()) <= largest)

    @classmethod
    def parse(cls, text: str) -> "SecureRange":
        """The range that a text denotes.

        Raises:
            TypeMismatch: it is no range.
        """
        match = _TEXT.fullmatch(text)
        if match is None or (match[1] == "mod " and int(match[2]) < 1):
            raise TypeMismatch(f"a range of a secure sum is 0..9, mod 7 or any, not {brief(text)}")
        if match[1] is None:
            return cls(None)
        number = int(match[2])
        return cls(number) if match[1] == "0.." else cls(number - 1, number)


def check_ranges(name: str, type_: Type, ranges: object, *, may_be_open: bool) -> None:
    """Checks that there is a range for each leaf of a type, which its dtype holds.

    Args:
        may_be_open: entries may be `OPEN`.
    Raises:
        TypeMismatch: there is no range for each leaf, or a leaf cannot be added in its range.
    """
    leaves = list(tensor_leaves(type_))
    if not isinstance(ranges, tuple) or len(ranges) != len(leaves):
        raise TypeMismatch(f"{name}: `secure` has an entry for each of the {len(leaves)} leaves of {type_}")
    for leaf, text in zip(leaves, ranges, strict=True):
        if text != OPEN or not may_be_open:
            _check_leaf(name, leaf, SecureRange.parse(text if isinstance(text, str) else repr(text)))


def _check_leaf(name: str, leaf: TensorType, range_: SecureRange) -> None:
    """Raises unless the leaf has integers of a known shape, and its dtype holds the range."""
    if not leaf.dtype.is_integer or not is_static(leaf.shape):
        raise TypeMismatch(f"{name}: secure sums add integers of known shapes, not {leaf}")
    if max(range_.largest or 0, range_.modulus or 0) > np.iinfo(leaf.dtype.numpy).max:
        raise TypeMismatch(f"{name}: {leaf.dtype} does not hold the range {range_}")


def ranges_up_to(type_: Type, largest: Iterable[int | None]) -> tuple[str, ...]:
    """The range of each leaf of clipped integers, as text.

    Args:
        largest: for each leaf the number to which it is clipped. None, for an unknown number, and a negative number,
            to which clipping gives negative integers, give `any`.
    """
    return tuple(
        str(SecureRange(None if most is None or most < 0 else min(most, int(np.iinfo(leaf.dtype.numpy).max))))
        for leaf, most in zip(tensor_leaves(type_), largest, strict=True)
    )

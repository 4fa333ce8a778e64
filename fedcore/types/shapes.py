"""Shapes of tensors: a tuple of sizes, None for an unknown size; None for an unknown rank."""

from __future__ import annotations

import math
import operator
from typing import Any, SupportsIndex, TypeAlias, TypeGuard

from fedcore.errors import InvalidValue, TypeMismatch, brief

Shape: TypeAlias = tuple[int | None, ...] | None

MAX_RANK = 254
"""TensorFlow's own limit."""


def as_shape(x: Any) -> Shape:
    """Converts x to a shape.

    Args:
        x: None, an iterable of sizes and Nones, or a TensorFlow shape.
    Raises:
        TypeError: x is not one of these.
        ValueError: a size is negative, or there are more dimensions or elements than TensorFlow can hold.
    """
    if x is None:
        return None
    if hasattr(x, "as_list"):  # a tf.TensorShape: recognised without importing TensorFlow
        return None if x.rank is None else tuple(x.as_list())
    if isinstance(x, str | bytes):
        raise TypeMismatch(f"{brief(x)} is not a shape")
    try:
        sizes = tuple(None if size is None else _size(size) for size in x)
    except TypeError as error:
        raise TypeMismatch(f"{brief(x)} is not a shape; a shape is a tuple of sizes, None where unknown") from error
    if len(sizes) > MAX_RANK:
        raise InvalidValue(f"a tensor has at most {MAX_RANK} dimensions, not {len(sizes)}")
    if math.prod(size for size in sizes if size) >= 2**63:
        raise InvalidValue(f"a tensor has fewer than 2**63 elements, one of the sizes {list(sizes)} more")
    return sizes


def is_static(shape: Shape) -> TypeGuard[tuple[int, ...]]:
    """Whether the rank and every size are known."""
    return shape is not None and None not in shape


def shape_fits(have: Shape, want: Shape) -> bool:
    """Whether every tensor of shape `have` has shape `want` too."""
    if want is None:
        return True
    if have is None or len(have) != len(want):
        return False
    return all(w is None or h == w for h, w in zip(have, want, strict=True))


def _size(x: SupportsIndex) -> int:
    """A known size as an int of 0 to 2**63 - 1."""
    if isinstance(x, bool):  # `operator.index` would accept it
        raise TypeMismatch("a size is an int")
    size = operator.index(x)
    if size < 0:
        raise InvalidValue(f"a size is not negative, {size} is")
    if size >= 2**63:
        raise InvalidValue(f"a size fits into 64 bits, {size} does not")
    return size

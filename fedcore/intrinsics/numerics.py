"""Leaf-wise numpy arithmetic for the meanings: structs are tuples, integer overflow wraps."""

import numpy as np

from fedcore.types import SequenceType, StructType, TensorType, Type


def leafwise(fn, *values):
    """Applies `fn` to the leaves of equally nested tuples."""
    if isinstance(values[0], tuple):
        return tuple(leafwise(fn, *parts) for parts in zip(*values, strict=True))
    with np.errstate(all="ignore"):
        return np.asarray(fn(*map(np.asarray, values)))


def _elementwise(fn):
    """Leaf by leaf in the dtype of the left leaf; a scalar on the right meets every leaf."""

    def leaf(a, b):
        return fn(a, b if a.dtype == object else b.astype(a.dtype)).astype(a.dtype)

    def apply(left, right):
        if isinstance(left, tuple) and not isinstance(right, tuple):
            return tuple(apply(part, right) for part in left)
        return leafwise(leaf, left, right)

    return apply


add = _elementwise(np.add)
subtract = _elementwise(np.subtract)
multiply = _elementwise(np.multiply)
divide = _elementwise(np.true_divide)


def zeros(type_: Type):
    """Zeros of a type whose shapes are all known."""
    if isinstance(type_, StructType):
        return tuple(map(zeros, type_.types))
    if isinstance(type_, SequenceType):
        return []
    assert isinstance(type_, TensorType)
    return np.zeros(type_.shape, type_.dtype.numpy)

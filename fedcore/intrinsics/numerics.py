"""Leaf-wise numpy arithmetic for the meanings: structs are tuples, integer overflow wraps."""

from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from fedcore.errors import TypeMismatch
from fedcore.types import (
    DType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    as_dtype,
    is_static,
    map_tensors,
    tensor_leaves,
)

NumpyValue: TypeAlias = np.ndarray | np.generic | tuple | list
"""A value as the meanings compute with it: a tensor, the tuple of a struct's elements, or the list of a sequence's."""

_LeafFunction: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray | np.generic]
BinaryFunction: TypeAlias = Callable[[NumpyValue, NumpyValue], NumpyValue]


def leafwise(fn: Callable[..., object], *values: Any) -> NumpyValue:
    """Applies `fn` to the leaves of equally nested tuples."""
    if isinstance(values[0], tuple):
        return tuple(leafwise(fn, *parts) for parts in zip(*values, strict=True))
    with np.errstate(all="ignore"):
        return np.asarray(fn(*map(np.asarray, values)))


def _with_scalars(fn: Callable[[np.ndarray, np.ndarray], object]) -> BinaryFunction:
    """Applies `fn` to the leaves of two values; a scalar on the right is applied to every leaf of the left."""

    def apply(left: NumpyValue, right: NumpyValue) -> NumpyValue:
        if isinstance(left, tuple) and not isinstance(right, tuple):
            return tuple(apply(part, right) for part in left)
        return leafwise(fn, left, right)

    return apply


def _elementwise(fn: _LeafFunction) -> BinaryFunction:
    """Applies `fn` leaf by leaf, in the dtype of the left leaf."""
    return _with_scalars(lambda a, b: fn(a, b if a.dtype == object else b.astype(a.dtype)).astype(a.dtype))


def _scaling(fn: _LeafFunction) -> BinaryFunction:
    """Applies `fn` leaf by leaf; a real number on the right scales both parts of a complex number.

    Cast to a complex number with imaginary part 0, it would turn infinities into NaN.
    """

    def leaf(a: np.ndarray, b: np.ndarray) -> np.ndarray | np.generic:
        if a.dtype.kind != "c" or b.dtype.kind == "c":
            return fn(a, b.astype(a.dtype)).astype(a.dtype)
        real = b.astype(a.real.dtype)
        scaled = np.empty(np.broadcast_shapes(a.shape, b.shape), a.dtype)
        scaled.real, scaled.imag = fn(a.real, real), fn(a.imag, real)
        return scaled

    return _with_scalars(leaf)


def _comparison(fn: _LeafFunction) -> BinaryFunction:
    """Applies `fn` leaf by leaf and gives bools."""
    return _with_scalars(lambda a, b: np.asarray(fn(a, b), np.bool_))


add = _elementwise(np.add)
subtract = _elementwise(np.subtract)
multiply = _scaling(np.multiply)
divide = _scaling(np.true_divide)
minimum = _elementwise(np.minimum)
maximum = _elementwise(np.maximum)
modulo = _elementwise(np.mod)
less = _comparison(np.less)
equal = _comparison(np.equal)


def where(condition: NumpyValue, then: NumpyValue, otherwise: NumpyValue) -> NumpyValue:
    """Selects element by element, in the dtypes of `then`; a scalar `condition` or `otherwise` is for every leaf."""
    if not isinstance(then, tuple):
        then = np.asarray(then)
        return np.where(condition, then, otherwise).astype(then.dtype)
    conditions = condition if isinstance(condition, tuple) else [condition] * len(then)
    others = otherwise if isinstance(otherwise, tuple) else [otherwise] * len(then)
    return tuple(where(c, t, o) for c, t, o in zip(conditions, then, others, strict=True))


def cast(value: NumpyValue, dtype: DType) -> NumpyValue:
    """Casts each leaf as the intrinsic `cast` does: floats saturate at the limits of an integer dtype, NaN gives 0."""

    def leaf(x: np.ndarray) -> np.ndarray:
        real = x.real if x.dtype.kind == "c" and not (dtype.is_complex or dtype.name == "bool") else x
        if not (dtype.is_integer and (real.dtype.kind == "f" or real.dtype.name == "bfloat16")):
            return real.astype(dtype.numpy)
        info = np.iinfo(dtype.numpy)
        least, most = (np.asarray(float(limit)).astype(real.dtype) for limit in (info.min, info.max))
        is_inside = (real > least) & (real < most)  # `most` may be rounded up to a number that the dtype does not hold
        limit = np.where(np.isnan(real), 0, np.where(real >= most, info.max, info.min)).astype(dtype.numpy)
        return np.where(is_inside, np.where(is_inside, real, 0).astype(dtype.numpy), limit)

    return leafwise(leaf, value)


def sum_dtype(dtype: DType) -> DType:
    """The dtype in which the numbers of a mean are added.

    Integers are added in float64, since their sum may exceed every integer dtype; floats of 16 bits in float32, since
    their sums stop growing at 2^8 or 2^11 ones.
    """
    if dtype.is_integer:
        return as_dtype("float64")
    return as_dtype("float32") if dtype.is_float and dtype.numpy.itemsize < 4 else dtype


def sum_type(type_: Type) -> Type:
    """The type with each leaf in its `sum_dtype`."""
    return map_tensors(lambda leaf: TensorType(sum_dtype(leaf.dtype), leaf.shape), type_)


def weight_sum_type(weight: Type, value: Type) -> Type:
    """The type in which the weights of a mean are added: float64 where a leaf of the value has its accuracy."""
    is_double = any(leaf.dtype.name in ("float64", "complex128") for leaf in tensor_leaves(value))
    return TensorType("float64") if is_double else sum_type(weight)


def cast_to(value: Any, type_: Type) -> NumpyValue:
    """Casts each leaf to the dtype that it has in `type_`."""
    if isinstance(type_, StructType):
        return tuple(cast_to(part, t) for part, t in zip(value, type_.types, strict=True))
    assert isinstance(type_, TensorType)
    return cast(value, type_.dtype)


def limits(type_: Type, *, lowest: bool) -> NumpyValue:
    """The least (or largest) finite number of each leaf's dtype, as nested tuples of scalars."""
    if isinstance(type_, StructType):
        return tuple(limits(t, lowest=lowest) for t in type_.types)
    assert isinstance(type_, TensorType)
    numpy = type_.dtype.numpy
    info = np.iinfo(numpy) if type_.dtype.is_integer else ml_dtypes.finfo(numpy)
    return numpy.type(info.min if lowest else info.max)


def extreme(type_: Type, *, lowest: bool) -> NumpyValue:
    """A value of the type whose elements are all the `limits` of their dtypes."""
    return add(zeros(type_), limits(type_, lowest=lowest))


def zeros_like(value: NumpyValue) -> NumpyValue:
    """Scalar zeros in the dtypes of the leaves of a value, nested as the value is."""
    return tuple(map(zeros_like, value)) if isinstance(value, tuple) else np.zeros((), np.asarray(value).dtype)


def zeros(type_: Type) -> NumpyValue:
    """Zeros of a type.

    Raises:
        TypeMismatch: a dimension is unknown.
    """
    if isinstance(type_, StructType):
        return tuple(map(zeros, type_.types))
    if isinstance(type_, SequenceType):
        return []
    assert isinstance(type_, TensorType)
    if not is_static(type_.shape):
        raise TypeMismatch(f"generic_zero: {type_} has unknown dimensions, so its zero is not known")
    return np.zeros(type_.shape, type_.dtype.numpy)

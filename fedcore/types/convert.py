"""Conversion of Python and TensorFlow objects to types."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from fedcore.errors import TypeMismatch, brief
from fedcore.types.containers import check_keys, register_container
from fedcore.types.dtypes import find_dtype
from fedcore.types.nesting import check_nesting
from fedcore.types.notation import parse_type
from fedcore.types.shapes import as_shape
from fedcore.types.types import SequenceType, StructType, StructWithPythonType, TensorType, Type

# Classes that have a dtype and a shape, but are not dense tensors.
_NOT_DENSE = ("RaggedTensorSpec", "RaggedTensor", "TensorArraySpec")

# A name of an element has none of the signs of the notation.
_NAME = re.compile(r"""[^\s<>{}@*(),\[\]?"]+""")


def to_type(obj: object) -> Type:
    """Converts an object to a type.

    Args:
        obj: one of
            - a `Type`, or a text in the notation;
            - a dtype, or a pair of a dtype and a list or tuple of sizes: a tensor;
            - an object with a shape and a dtype, such as an array, a variable, a `tf.TensorSpec`: a tensor;
            - a `tf.SparseTensor` or its spec: a struct of its indices, values and dense_shape;
            - an object with an `element_spec`, such as a dataset or its spec: a sequence;
            - a dict or another tuple of these: a struct;
            - a list or tuple in which a pair of a name and one of these stands, such as `[("a", np.int32)]`, or such a
              pair, `("a", np.int32)`: a struct with these names. The name of a dtype is a dtype;
            - a list, OrderedDict, named tuple, attrs or dataclass instance of these: a struct whose values have that
              class in Python.
    Raises:
        TypeMismatch: it, or a part of it, is not one of these.
        ParseError: a text is not in the notation.
        InvalidValue: the containers nest too deep, or have too many parts.
    """
    if isinstance(obj, Type):
        return obj
    if isinstance(obj, str):
        return parse_type(obj)
    check_nesting(obj)
    return _to_type(obj)


def _to_type(x: Any) -> Type:
    """`to_type` of an object whose nesting is checked."""
    if isinstance(x, Type):
        return x
    if isinstance(x, str):
        return parse_type(x)
    dtype = find_dtype(x)
    if dtype is not None:
        return TensorType(dtype)
    if _is_tensor_pair(x):
        return TensorType(*x)
    if isinstance(x, Mapping | list | tuple):
        return _from_collection(x)
    if hasattr(x, "element_spec") and not isinstance(x, type):
        return SequenceType(_to_type(x.element_spec))
    if _is_sparse(x):
        return _from_sparse(x)
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return _from_array(x)
    if attrs.has(type(x)):
        names = [field.name for field in attrs.fields(type(x))]
        return _from_object(x, names)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return _from_object(x, [field.name for field in dataclasses.fields(x)])
    raise _no_type(x)


def _is_tensor_pair(x: object) -> bool:
    """Whether x is a tuple of a dtype and a shape, such as `(np.float32, [None, 3])`."""
    if type(x) is not tuple or len(x) != 2 or find_dtype(x[0]) is None:
        return False
    shape = x[1]
    if isinstance(shape, list | tuple):
        return all(size is None or (hasattr(size, "__index__") and not isinstance(size, bool)) for size in shape)
    return hasattr(shape, "as_list")  # a tf.TensorShape


def _from_collection(x: Any) -> Type:
    """The struct of a mapping, a list, a tuple or a named tuple; see `to_type` for pairs of a name and a type."""
    if isinstance(x, Mapping):
        check_keys(x)
        elements = [(key, _to_type(value)) for key, value in x.items()]
        ordered = isinstance(x, collections.OrderedDict)
        return StructWithPythonType(elements, "OrderedDict") if ordered else StructType(elements)
    if hasattr(x, "_fields"):
        return _from_object(x, x._fields)
    if type(x) is tuple and _is_named(x) and not isinstance(x[1], str):
        x = [x]
    if any(map(_is_named, x)):
        return StructType([(e[0], _to_type(e[1])) if _is_named(e) else (None, _to_type(e)) for e in x])
    elements = [(None, _to_type(value)) for value in x]
    return StructWithPythonType(elements, "list") if isinstance(x, list) else StructType(elements)


def _is_named(x: object) -> bool:
    """Whether x is a pair of an element's name and its type."""
    if type(x) is not tuple or len(x) != 2 or not isinstance(x[0], str):
        return False
    return find_dtype(x[0]) is None and _NAME.fullmatch(x[0]) is not None


def _from_object(x: object, names: Iterable[str]) -> Type:
    """The struct of some attributes of an object, whose values have the object's class in Python."""
    elements = [(name, _to_type(getattr(x, name))) for name in names]
    return StructWithPythonType(elements, register_container(type(x)))


def _is_sparse(x: object) -> bool:
    return type(x).__name__ in ("SparseTensorSpec", "SparseTensor")


def _from_sparse(x: Any) -> Type:
    """The struct of the three tensors of a `tf.SparseTensor`, as which it is stored."""
    rank = x.shape.rank
    elements = [
        ("indices", TensorType("int64", (None, rank))),
        ("values", TensorType(find_dtype(x.dtype), (None,))),
        ("dense_shape", TensorType("int64", (rank,))),
    ]
    return StructWithPythonType(elements, register_container(getattr(x, "value_type", type(x))))


def _from_array(x: Any) -> Type:
    """The type of a dense tensor or array, or of its spec.

    Raises:
        TypeMismatch: the object is sparse or ragged, or its dtype is unknown.
    """
    dtype = find_dtype(x.dtype)
    if dtype is None or type(x).__name__ in _NOT_DENSE:
        raise _no_type(x)
    return TensorType(dtype, as_shape(x.shape))


def not_dense(x: object) -> str | None:
    """Why a sparse or ragged tensor (or its spec) is no tensor, and a remedy; None for every other object."""
    kind = type(x).__name__
    if kind.startswith("SparseTensor"):
        return f"a {kind} is no dense tensor: make it dense (tf.sparse.to_dense), or take the type of its spec"
    if kind.startswith("RaggedTensor"):
        return f"a {kind} is no value of a computation: pad it (.to_tensor()), or give its values and row splits"
    return None


def _no_type(x: object) -> TypeMismatch:
    """The error for an object that `to_type` does not take."""
    hint = "; a function without a parameter has the parameter type None only in FunctionType" if x is None else ""
    problem = not_dense(x)
    if problem is not None:
        return TypeMismatch(problem)
    return TypeMismatch(f"{brief(x)} stands for no type{hint}")

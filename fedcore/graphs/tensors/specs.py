"""Conversion between tensor types and TensorFlow's TensorSpecs.

A `tf.SparseTensor` is a struct of three dense tensors, so the language needs no type for it.
"""

from typing import Any

import tensorflow as tf

from fedcore.graphs.tensors.values import container
from fedcore.types import StructType, StructWithPythonType, TensorType, Type, container_class, tensor_leaves


def spec(type_: TensorType, name: str | None = None) -> tf.TensorSpec:
    dtype = tf.string if type_.dtype.name == "str" else tf.as_dtype(type_.dtype.numpy)
    return tf.TensorSpec(type_.shape, dtype, name)


def tensor_type(tensor: tf.Tensor | tf.TensorSpec) -> TensorType:
    dtype = "str" if tensor.dtype == tf.string else tensor.dtype
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return TensorType(dtype, shape)


def is_sparse(type_: Type) -> bool:
    """Whether a type is that of sparse tensors."""
    return isinstance(type_, StructWithPythonType) and container_class(type_.container) is tf.SparseTensor


def element_spec(type_: Type) -> Any:
    """The TensorSpecs of a type in its Python containers, with a `tf.SparseTensorSpec` for a sparse tensor."""
    if not isinstance(type_, StructType):
        assert isinstance(type_, TensorType)
        return spec(type_)
    if is_sparse(type_):
        _, values, dense_shape = (spec(t) for t in tensor_leaves(type_))
        return tf.SparseTensorSpec([None] * dense_shape.shape[0], values.dtype)
    return container([element_spec(t) for t in type_.types], type_)

"""Conversion between tensor types and TensorFlow's TensorSpecs."""

import tensorflow as tf

from fedcore.types import TensorType


def spec(type_: TensorType, name: str | None = None) -> tf.TensorSpec:
    dtype = tf.string if type_.dtype.name == "str" else tf.as_dtype(type_.dtype.numpy)
    return tf.TensorSpec(type_.shape, dtype, name)


def tensor_type(tensor) -> TensorType:
    dtype = "str" if tensor.dtype == tf.string else tensor.dtype
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return TensorType(dtype, shape)

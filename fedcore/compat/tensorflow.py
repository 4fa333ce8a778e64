"""`fc.tensorflow`: computations written in TensorFlow, and types as TensorFlow's specs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from fedcore.computation import tf_computation as computation
from fedcore.errors import TypeMismatch
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import container
from fedcore.tff_names import tff_names
from fedcore.types import StructType, TensorType, Type, to_type


def structure_from_tensor_type_tree(fn: Callable[[TensorType], Any], type_spec: object) -> Any:
    """The structure of a type, in its Python containers, with `fn` applied to each tensor type, in order.

    Args:
        type_spec: a type of tensors and structs, or what `to_type` takes.
    Raises:
        TypeMismatch: a part of the type is neither a tensor nor a struct.
    Example:
        >>> fc.tensorflow.structure_from_tensor_type_tree(lambda t: t.shape, {'a': 'int32', 'b': ('int32', [2])})
        {'a': (), 'b': (2,)}
    """
    type_ = to_type(type_spec)
    if isinstance(type_, StructType):
        return container([structure_from_tensor_type_tree(fn, part) for part in type_.types], type_)
    if not isinstance(type_, TensorType):
        raise TypeMismatch(f"a type of tensors and structs is wanted, not one with {type_}")
    return fn(type_)


def type_to_tf_tensor_specs(type_spec: Type) -> Any:
    """The structure of a type with a `tf.TensorSpec` for each tensor type.

    Raises:
        TypeMismatch: a part of the type is neither a tensor nor a struct.
    """
    return structure_from_tensor_type_tree(spec, type_spec)


def transform_args(args: Any) -> Any:
    """The structure with numpy values in place of variables and tensors, and lists in place of datasets.

    A call of a computation takes all of these as they are.
    """
    return tf.nest.map_structure(_to_numpy, args)


def transform_result(result: Any) -> Any:
    """Like `transform_args`, for results."""
    return transform_args(result)


def _to_numpy(value: Any) -> Any:
    """A leaf as a numpy value, or the elements of a dataset as a list; symbolic tensors and others stay."""
    if isinstance(value, tf.data.Dataset):
        return list(value.as_numpy_iterator())
    return value.numpy() if hasattr(value, "numpy") and not tf.is_symbolic_tensor(value) else value


__all__ = [
    "computation",
    "structure_from_tensor_type_tree",
    "to_type",
    "transform_args",
    "transform_result",
    "type_to_tf_tensor_specs",
]


if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.tensorflow")

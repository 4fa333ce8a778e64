"""Batches of a Keras model: zeros of a type, and inputs with the sizes that the model knows."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from fedcore.graphs.tensors.specs import element_spec
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_outputs import structure_of
from fedcore.types import StructType, Type

_GUESSED_SIZE = 8  # of dimensions that a batch's type leaves open, where an unbuilt model has to be called once
_EXAMPLES = 7  # in labels that losses and metrics are tried with: few models have as many classes


def fixed_batch_size(model: keras.Model) -> int | None:
    """The number of examples in every batch, where the model's inputs say it, as stateful recurrent layers need."""
    inputs = getattr(model, "inputs", None)
    return inputs[0].shape[0] if inputs and inputs[0].shape else None


def example_counts(type_: StructType, batch_size: int | None) -> tuple[int, int]:
    """The examples in a batch of zeros that builds a model, and in labels that losses are tried with.

    They are the same where the batch's type or the model fixes them.
    """
    leaves = [leaf for leaf in tf.nest.flatten(element_spec(type_)) if isinstance(leaf, tf.TensorSpec)]
    sizes = [leaf.shape[0] for leaf in leaves if leaf.shape.rank and leaf.shape[0] is not None]
    size = batch_size or next(iter(sizes), None)
    return (size, size) if size else (1, _EXAMPLES)


def zeros(type_: Type, examples: int, model: keras.Model | None = None) -> Any:
    """Zeros of a part of a batch; so many examples, where the number is left open.

    Args:
        model: takes them as inputs. Default: they are no inputs.
    """
    return tf.nest.map_structure(_zeros, _sized_specs(type_, examples, model))


def batch_specs(type_: StructType, examples: int, model: keras.Model) -> list:
    """Specs of the parts of a batch, with sizes where the type leaves them open."""
    return [_sized_specs(part, examples, None if i else model) for i, part in enumerate(type_.types)]


def widen(predictions: TensorStructure, examples: int, more: int) -> TensorStructure:
    """Zeros like predictions, of more examples."""

    def zeros_like(prediction: tf.Tensor) -> tf.Tensor:
        shape = tuple(prediction.shape)
        return tf.zeros([more, *shape[1:]], prediction.dtype) if shape[:1] == (examples,) else prediction

    return predictions if examples == more else keras.tree.map_structure(zeros_like, predictions)


def fit_to_inputs(model: keras.Model, x: TensorStructure, batch_size: int | None) -> TensorStructure:
    """The inputs with static sizes: of a fixed number of examples, and of sparse tensors, whose type has none."""
    leaves = tf.nest.flatten(x)
    if batch_size is None and not any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
        return x
    pairs = zip(leaves, _inputs_like(model, x), strict=True)
    return tf.nest.pack_sequence_as(x, [_fit(leaf, tensor, batch_size) for leaf, tensor in pairs])


def input_spec_of(tensor: keras.KerasTensor) -> tf.TensorSpec | tf.SparseTensorSpec:
    """The spec of a model's input."""
    kind = tf.SparseTensorSpec if tensor.sparse else tf.TensorSpec
    return kind(tensor.shape, tensor.dtype)


def _sized_specs(type_: Type, examples: int, model: keras.Model | None) -> TensorStructure:
    """Specs of a type without open sizes."""
    specs = element_spec(type_)
    inputs = _inputs_like(model, specs) if model is not None else [None] * len(tf.nest.flatten(specs))

    def with_sizes(
        spec: tf.TensorSpec | tf.SparseTensorSpec, tensor: keras.KerasTensor | None
    ) -> tf.TensorSpec | tf.SparseTensorSpec:
        shape = spec.shape if tensor is None or isinstance(spec, tf.TensorSpec) else tensor.shape
        sizes = [(_GUESSED_SIZE if i else examples) if n is None else n for i, n in enumerate(shape)]
        return type(spec)(sizes, spec.dtype)

    return tf.nest.pack_sequence_as(
        specs, [with_sizes(*pair) for pair in zip(tf.nest.flatten(specs), inputs, strict=True)]
    )


def _inputs_like(model: keras.Model, x: TensorStructure) -> list:
    """The model's symbolic inputs in the order of flattened inputs; None for each that is not known."""
    count = len(tf.nest.flatten(x))
    if not getattr(model, "inputs", None):
        return [None] * count
    inputs = structure_of(model, "inputs")
    if isinstance(x, Mapping) and not isinstance(inputs, Mapping):
        by_name = {tensor.name: tensor for tensor in model.inputs}
        inputs = {name: by_name.get(name) for name in x}
    flat = tf.nest.flatten(inputs)
    return flat if len(flat) == count else [None] * count


def _zeros(spec: tf.TensorSpec | tf.SparseTensorSpec) -> tf.Tensor | tf.SparseTensor:
    if not isinstance(spec, tf.SparseTensorSpec):
        return tf.zeros(spec.shape, spec.dtype)
    rank = spec.shape.rank
    return tf.SparseTensor(tf.zeros([1, rank], tf.int64), tf.zeros([1], spec.dtype), spec.shape.as_list())


def _fit(
    leaf: tf.Tensor | tf.SparseTensor, tensor: keras.KerasTensor | None, batch_size: int | None
) -> tf.Tensor | tf.SparseTensor:
    if not isinstance(leaf, tf.SparseTensor):
        return leaf if batch_size is None else tf.ensure_shape(leaf, [batch_size, *leaf.shape[1:]])
    if tensor is None:
        return leaf
    sizes = [
        leaf.dense_shape[i] if size is None else tf.constant(size, tf.int64) for i, size in enumerate(tensor.shape)
    ]
    return tf.SparseTensor(leaf.indices, leaf.values, tf.stack(sizes))

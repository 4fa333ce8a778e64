"""Batches of a Keras model: inputs and labels with the sizes that the model knows."""

from collections.abc import Mapping

import keras
import tensorflow as tf

from fedcore.graphs.tensors.specs import element_spec
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_outputs import structure_of
from fedcore.types import Type


def fixed_batch_size(model: keras.Model) -> int | None:
    """The number of examples in every batch, where the model's inputs say it, as stateful recurrent layers need."""
    inputs = getattr(model, "inputs", None)
    return inputs[0].shape[0] if inputs and inputs[0].shape else None


def label_specs(type_: Type, predictions: TensorStructure) -> TensorStructure:
    """Specs of labels, whose open sizes are those of the predictions that they are compared with."""
    specs = element_spec(type_)
    leaves, outputs = tf.nest.flatten(specs), keras.tree.flatten(predictions)
    if len(leaves) != len(outputs):
        return specs
    return tf.nest.pack_sequence_as(specs, [_sized_like(*pair) for pair in zip(leaves, outputs, strict=True)])


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


def _sized_like(spec: tf.TensorSpec, prediction: tf.TensorSpec) -> tf.TensorSpec:
    if spec.shape.rank is None or spec.shape.rank != prediction.shape.rank:
        return spec
    pairs = zip(spec.shape, prediction.shape, strict=True)
    return tf.TensorSpec([b if a is None else a for a, b in pairs], spec.dtype)


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

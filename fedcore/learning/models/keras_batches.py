"""Batches of a Keras model: inputs and labels with the sizes that the model knows."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.tensors.specs import element_spec
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_outputs import structure_of
from fedcore.types import Type


def fixed_batch_size(model: keras.Model) -> int | None:
    """The number of examples in every batch, where layers keep a state for each of them; else None."""
    inputs = getattr(model, "inputs", None)
    return inputs[0].shape[0] if inputs and inputs[0].shape and stateful_layers(model) else None


def stateful_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The recurrent layers that hand a state for each example from batch to batch."""
    return [layer for layer in private_api.layers_within(model) if getattr(layer, "stateful", False)]


def label_specs(type_: Type, predictions: TensorStructure, indices: Sequence[bool]) -> TensorStructure:
    """Specs of labels, whose open sizes are those of the predictions that they are compared with.

    Args:
        indices: for each of the flattened predictions whether its labels are indices of classes.
    """
    specs = fit_labels(element_spec(type_), predictions, indices)
    leaves, outputs = tf.nest.flatten(specs), keras.tree.flatten(predictions)
    if len(leaves) != len(outputs):
        return specs
    return tf.nest.pack_sequence_as(specs, [_sized_like(*pair) for pair in zip(leaves, outputs, strict=True)])


def fit_labels(labels: TensorStructure, predictions: TensorStructure, indices: Sequence[bool]) -> TensorStructure:
    """The labels; of indices of classes with an open last size, that size is set to 1.

    Such labels have the rank of the predictions, [examples, ?] for [examples, classes], and an index has no other last
    size than 1, which Keras then drops.

    Args:
        labels: tensors, or their specs.
        predictions, indices: as of `label_specs`.
    """
    leaves, outputs = tf.nest.flatten(labels), keras.tree.flatten(predictions)
    if len(leaves) != len(outputs):
        return labels

    def fit(leaf: tf.Tensor | tf.TensorSpec, output: tf.TensorSpec) -> tf.Tensor | tf.TensorSpec:
        shape = getattr(leaf, "shape", None)  # a sparse tensor has no index
        if shape is None or not shape.rank or shape.rank != len(output.shape) or shape[-1] is not None:
            return leaf
        return _with_shape(leaf, [*shape[:-1], 1])

    fitted = [fit(*pair) if is_index else pair[0] for *pair, is_index in zip(leaves, outputs, indices, strict=True)]
    return tf.nest.pack_sequence_as(labels, fitted)


def fit_to_inputs(model: keras.Model, batch: Sequence[TensorStructure], batch_size: int | None) -> list:
    """The parts of a batch with the sizes that the model knows: those of its inputs, and a fixed batch size.

    Raises:
        InvalidArgumentError: when the graph runs, an input has another size, or a batch has not the fixed number of
            examples.
    """
    x, *others = batch
    leaves = tf.nest.flatten(x)
    pairs = zip(leaves, _inputs_like(model, x), strict=True)
    x = tf.nest.pack_sequence_as(x, [_fit_input(*pair) for pair in pairs])
    if batch_size is None or all(leaf.shape[0] == batch_size for leaf in tf.nest.flatten([x, others])):
        return [x, *others]
    layer, examples = stateful_layers(model)[0], tf.shape(leaves[0])[0]
    keeps = f"{layer.name} ({type(layer).__name__}) of {model.name} keeps states for {batch_size} examples"
    message = keeps + ", and a batch has {}; fix: dataset.batch(" + f"{batch_size}, drop_remainder=True)"
    check = tf.debugging.Assert(examples == batch_size, [tf.strings.format(message, examples)])
    with tf.control_dependencies([check]):
        return tf.nest.map_structure(lambda leaf: tf.ensure_shape(leaf, [batch_size, *leaf.shape[1:]]), [x, *others])


def input_spec_of(tensor: keras.KerasTensor) -> tf.TensorSpec | tf.SparseTensorSpec:
    """The spec of a model's input."""
    kind = tf.SparseTensorSpec if tensor.sparse else tf.TensorSpec
    return kind(tensor.shape, tensor.dtype)


def sized_inputs(model: keras.Model, specs: TensorStructure) -> TensorStructure:
    """Specs of inputs, whose open sizes are those that the model knows."""
    pairs = zip(tf.nest.flatten(specs), _inputs_like(model, specs), strict=True)
    sized = [spec if tensor is None else _sized_like(spec, tensor) for spec, tensor in pairs]
    return tf.nest.pack_sequence_as(specs, sized)


def _sized_like(leaf: tf.Tensor | tf.TensorSpec, other: tf.TensorSpec | keras.KerasTensor) -> Any:
    """A tensor or spec, whose open sizes are those of `other`; unchanged if ranks differ, or if it is not dense."""
    if not isinstance(leaf, tf.Tensor | tf.TensorSpec) or leaf.shape.rank is None:
        return leaf
    if leaf.shape.rank != len(other.shape):
        return leaf
    return _with_shape(leaf, [b if a is None else a for a, b in zip(leaf.shape, other.shape, strict=True)])


def _with_shape(leaf: tf.Tensor | tf.TensorSpec, shape: list) -> tf.Tensor | tf.TensorSpec:
    if isinstance(leaf, tf.TensorSpec):
        return tf.TensorSpec(shape, leaf.dtype)
    return leaf if shape == [*leaf.shape] else tf.ensure_shape(leaf, shape)


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


def _fit_input(leaf: tf.Tensor | tf.SparseTensor, tensor: keras.KerasTensor | None) -> tf.Tensor | tf.SparseTensor:
    """An input of a batch with the sizes of the model's symbolic input, where that is known."""
    if tensor is None:
        return leaf
    if not isinstance(leaf, tf.SparseTensor):
        return _sized_like(leaf, keras.KerasTensor((None, *tensor.shape[1:])))
    sizes = [
        leaf.dense_shape[i] if size is None else tf.constant(size, tf.int64) for i, size in enumerate(tensor.shape)
    ]
    return tf.SparseTensor(leaf.indices, leaf.values, tf.stack(sizes))

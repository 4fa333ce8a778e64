"""Batches of a Keras model: inputs and labels with the sizes that the model knows."""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.tensors.specs import element_spec
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_outputs import structure_of
from fedcore.types import Type


def fixed_batch_size(model: keras.Model) -> int | None:
    """The number of examples in every batch, where layers keep a state for each of them."""
    inputs = getattr(model, "inputs", None)
    return inputs[0].shape[0] if inputs and inputs[0].shape and _stateful_layers(model) else None


def _stateful_layers(model: keras.Model) -> list[keras.layers.Layer]:
    return [layer for layer in private_api.layers_within(model) if getattr(layer, "stateful", False)]


def label_specs(type_: Type, predictions: TensorStructure) -> TensorStructure:
    """Specs of labels, whose open sizes are those of the predictions that they are compared with."""
    specs = element_spec(type_)
    leaves, outputs = tf.nest.flatten(specs), keras.tree.flatten(predictions)
    if len(leaves) != len(outputs):
        return specs
    return tf.nest.pack_sequence_as(specs, [_sized_like(*pair) for pair in zip(leaves, outputs, strict=True)])


def fit_to_inputs(model: keras.Model, batch: Sequence[TensorStructure], batch_size: int | None) -> list:
    """The parts of a batch with static sizes: those of sparse inputs, whose type has none, and a fixed batch size.

    Raises:
        InvalidArgumentError: when the graph runs, a batch has not the fixed number of examples.
    """
    x, *others = batch
    leaves = tf.nest.flatten(x)
    if any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
        pairs = zip(leaves, _inputs_like(model, x), strict=True)
        x = tf.nest.pack_sequence_as(x, [_with_sizes(*pair) for pair in pairs])
    if batch_size is None or all(leaf.shape[0] == batch_size for leaf in tf.nest.flatten([x, others])):
        return [x, *others]
    layer, examples = _stateful_layers(model)[0], tf.shape(leaves[0])[0]
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


def _sized_like(spec: tf.TensorSpec, other: tf.TensorSpec | keras.KerasTensor) -> tf.TensorSpec:
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None or spec.shape.rank != len(other.shape):
        return spec
    pairs = zip(spec.shape, other.shape, strict=True)
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


def _with_sizes(leaf: tf.Tensor | tf.SparseTensor, tensor: keras.KerasTensor | None) -> tf.Tensor | tf.SparseTensor:
    if not isinstance(leaf, tf.SparseTensor) or tensor is None:
        return leaf
    sizes = [
        leaf.dense_shape[i] if size is None else tf.constant(size, tf.int64) for i, size in enumerate(tensor.shape)
    ]
    return tf.SparseTensor(leaf.indices, leaf.values, tf.stack(sizes))

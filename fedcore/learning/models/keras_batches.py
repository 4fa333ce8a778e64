"""Batches of a Keras model: inputs and labels with the sizes that the model knows."""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.tensors.specs import element_spec
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_outputs import LossLike, is_sparse, losses_of_outputs, structure_of
from fedcore.types import Type


def fixed_batch_size(model: keras.Model) -> int | None:
    """The number of examples in every batch, where layers keep a state for each of them."""
    inputs = getattr(model, "inputs", None)
    return inputs[0].shape[0] if inputs and inputs[0].shape and _stateful_layers(model) else None


def _stateful_layers(model: keras.Model) -> list[keras.layers.Layer]:
    return [layer for layer in private_api.layers_within(model) if getattr(layer, "stateful", False)]


def label_specs(
    model: keras.Model, type_: Type, predictions: TensorStructure, loss: LossLike | None
) -> TensorStructure:
    """Specs of labels, whose open sizes are those of the predictions that they are compared with.

    The number of a class for a sparse loss has the size 1, or no dimension.
    """
    specs = element_spec(type_)
    leaves, outputs = tf.nest.flatten(specs), keras.tree.flatten(predictions)
    if len(leaves) != len(outputs):
        return specs
    losses = tf.nest.flatten(losses_of_outputs(model, predictions, loss))
    if len(losses) != len(outputs):  # outputs within outputs
        losses = [None] * len(outputs)
    sized = []
    for leaf, output, output_loss in zip(leaves, outputs, losses, strict=True):
        of_classes = is_sparse(output_loss) and leaf.shape.rank is not None
        sized.append(_sized_like(leaf, [*output.shape[:-1], 1][: leaf.shape.rank] if of_classes else output.shape))
    return tf.nest.pack_sequence_as(specs, sized)


def fit_to_model(
    model: keras.Model, batch: Sequence[TensorStructure], batch_size: int | None, labels: TensorStructure | None
) -> list:
    """The parts of a batch with the sizes that the model knows where their type leaves them open, as that of sparse
    inputs does, and with a fixed batch size.

    Args:
        labels: of `label_specs`; None where the batch has none.
    Raises:
        InvalidArgumentError: when the graph runs, a batch has other sizes, or not the fixed number of examples.
    """
    x, *others = batch
    leaves = tf.nest.flatten(x)
    pairs = zip(leaves, _inputs_like(model, x), strict=True)
    x = tf.nest.pack_sequence_as(x, [leaf if tensor is None else _with_sizes(leaf, tensor) for leaf, tensor in pairs])
    if others and labels is not None:
        others[0] = tf.nest.map_structure(_with_sizes, others[0], labels)
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
    sized = [spec if tensor is None else _sized_like(spec, tensor.shape) for spec, tensor in pairs]
    return tf.nest.pack_sequence_as(specs, sized)


def _sized_like(spec: tf.TensorSpec, shape: Sequence[int | None]) -> tf.TensorSpec:
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None or spec.shape.rank != len(shape):
        return spec
    return tf.TensorSpec([b if a is None else a for a, b in zip(spec.shape, shape, strict=True)], spec.dtype)


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


def _with_sizes(leaf: TensorStructure, like: tf.TensorSpec | keras.KerasTensor) -> TensorStructure:
    """A part of a batch with the sizes of examples that its likeness has and it has not."""
    if isinstance(leaf, tf.Tensor):
        known = _sized_like(tf.TensorSpec.from_tensor(leaf), [None, *like.shape[1:]]).shape
        return leaf if known.as_list() == leaf.shape.as_list() else tf.ensure_shape(leaf, known)
    if not isinstance(leaf, tf.SparseTensor) or not isinstance(like, keras.KerasTensor):
        return leaf
    sizes = [leaf.dense_shape[i] if size is None else tf.constant(size, tf.int64) for i, size in enumerate(like.shape)]
    return tf.SparseTensor(leaf.indices, leaf.values, tf.stack(sizes))

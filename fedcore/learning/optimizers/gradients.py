"""Checks and conversions of gradients, for optimizers of one's own."""

from typing import Any

import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.graphs.tensors.structures import TensorStructure

LEARNING_RATE_KEY = "learning_rate"
"""Name of the learning rate among the hyperparameters of every optimizer."""


def check_weights_gradients_match(weights: Any, gradients: Any) -> None:
    """Checks that gradients are nested as the weights are, each None or of its weight's dtype and shape.

    Types, for weights W: (W, W with None in place of some tensors) -> None.

    Raises:
        InvalidValue: they are not; names the first difference.
    Example:
        >>> fc.learning.optimizers.check_weights_gradients_match({'a': tf.zeros(2), 'b': tf.zeros(3)},
        ...                                                      {'a': tf.ones(2), 'b': None})
    """
    try:
        tf.nest.assert_same_structure(weights, gradients)
    except (TypeError, ValueError):
        raise InvalidValue(
            f"gradients are nested as weights are\n  weights    {_text(weights)}\n  gradients  {_text(gradients)}"
        ) from None
    for weight, gradient in zip(tf.nest.flatten(weights), tf.nest.flatten(gradients), strict=True):
        if gradient is None:
            continue
        if weight.dtype != gradient.dtype or not weight.shape.is_compatible_with(gradient.shape):
            raise InvalidValue(f"a weight {_spec(weight)} has a gradient {_spec(gradient)}")


def handle_indexed_slices_gradients(gradients: Any) -> Any:
    """The gradients with a dense tensor in place of each `tf.IndexedSlices`, such as the gradient of an embedding.

    Types: nested tensors; every other leaf stays what it is.

    Example:
        >>> sparse = tf.IndexedSlices(tf.constant([5.0]), tf.constant([2]), tf.constant([3]))
        >>> fc.learning.optimizers.handle_indexed_slices_gradients((sparse, None))[0].numpy()
        array([0., 0., 5.], dtype=float32)
    """
    return tf.nest.map_structure(lambda g: tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g, gradients)


def _spec(tensor: tf.Tensor) -> str:
    return f"{tensor.dtype.name}{tensor.shape}"


def _text(tensors: TensorStructure) -> str:
    return str(tf.nest.map_structure(lambda t: None if t is None else _spec(t), tensors))

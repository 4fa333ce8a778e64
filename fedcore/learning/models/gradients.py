"""The gradients of a pure model, and losses that carry gradients computed elsewhere."""

from collections.abc import Sequence

import tensorflow as tf

from fedcore.learning.models.pure_model import PureModel


def gradients_of(model: PureModel, weights, metrics: dict, batch, training: bool = True) -> tuple:
    """The gradients of a batch's mean loss by the trainable weights, and what `PureModel.step` gives."""
    with tf.GradientTape() as tape:
        tape.watch(weights.trainable)
        output, non_trainable, after = model.step(weights, metrics, batch, training)
    gradients = tape.gradient(output.loss, weights.trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    found = zip(gradients, weights.trainable, strict=True)
    return tuple(_of_shape(tf.convert_to_tensor(g), w.shape) for g, w in found), output, non_trainable, after


def _of_shape(gradient: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """The gradient with the static shape of its weight, which operations on sizes of run time lose."""
    return gradient if gradient.shape.is_fully_defined() else tf.reshape(gradient, shape)


def with_gradients(loss: tf.Tensor, gradients: Sequence, weights: Sequence[tf.Tensor]) -> tf.Tensor:
    """The loss, such that its gradients by the weights are those given."""
    value = tf.stop_gradient(loss)
    found = [tf.stop_gradient(tf.convert_to_tensor(g)) for g in gradients]

    @tf.custom_gradient
    def attach(*_weights):
        return tf.identity(value), lambda upstream: [tf.cast(upstream, g.dtype) * g for g in found]

    return attach(*weights)

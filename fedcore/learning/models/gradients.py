"""The gradients of a pure model, and losses that carry gradients computed elsewhere."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.pure_model import PureModel


def gradients_of(
    model: PureModel,
    weights: ModelWeights,
    metrics: dict,
    batch: TensorStructure,
    training: bool = True,
    *,
    scale_loss: Callable | None = None,
) -> tuple:
    """The gradients of a batch's mean loss by the trainable weights, and what `PureModel.step` gives.

    Types, for weights W, batches B and metric states S: <W,S,B> -> <W.trainable,BatchOutput,W.non_trainable,S>. The
    gradient of a weight that the loss does not depend on is None: optimizers leave such a weight as it is, as those
    of Keras do, also where they decay weights.

    Args:
        training: whether layers such as dropout train.
        scale_loss: loss -> the loss of which the gradients are. Default: the mean loss itself.
    Raises:
        ValueError: the batch is not of the model's batch type.
        TracingError: the loss depends on none of the weights.
    Example:
        >>> model = fc.learning.models.trace_model(model_fn)
        >>> batch = (tf.ones([4, 2]), tf.ones([4, 1]))
        >>> gradients, output, _, _ = fc.learning.models.gradients_of(
        ...     model, model.initial_weights(), model.initial_metrics(), batch)
        >>> [gradient.shape for gradient in gradients], float(output.loss)
        ([TensorShape([2, 1]), TensorShape([1])], 1.0)
    """
    return _with_any_gradient(_gradients(model.step, weights, metrics, batch, training, scale_loss))


def gradients_and_weights(
    model: PureModel, weights: ModelWeights, metrics: dict, batch: TensorStructure, scale_loss: Callable | None = None
) -> tuple:
    """Like `gradients_of` of a training step, with what `PureModel.forward` gives: all weights, before the step."""
    return _with_any_gradient(_gradients(model.forward, weights, metrics, batch, True, scale_loss))


def _with_any_gradient(result: tuple) -> tuple:
    """The result of `_gradients` itself.

    Raises:
        TracingError: there are weights, and every gradient is None.
    """
    if result[0] and all(g is None for g in result[0]):
        raise TracingError("every gradient is None: the loss depends on none of the trainable weights of the model")
    return result


def _gradients(
    step: Callable, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool, scale: Callable | None
) -> tuple:
    """(gradients by the trainable weights, then the three results of `step`).

    Args:
        step: `step` or `forward` of a `PureModel`.
        scale: loss -> the loss of which the gradients are. None: the loss itself.
    """
    with tf.GradientTape() as tape:
        tape.watch(weights.trainable)
        output, moved, new_metrics = step(weights, metrics, batch, training)
        loss = output.loss if scale is None else scale(output.loss)
    gradients = tape.gradient(loss, weights.trainable)
    pairs = zip(gradients, weights.trainable, strict=True)
    tensors = tuple(None if g is None else _with_static_shape(tf.convert_to_tensor(g), w.shape) for g, w in pairs)
    return tensors, output, moved, new_metrics


def dense_gradients_of(
    model: PureModel, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool = True
) -> tuple:
    """Like `gradients_of`, with zeros for a weight that the loss does not depend on."""
    gradients, *others = _gradients(model.step, weights, metrics, batch, training, None)
    return or_zeros(gradients, weights.trainable), *others


def or_zeros(gradients: Sequence, weights: Sequence[tf.Tensor]) -> tuple:
    """The gradients, with zeros in the place of None."""
    return tuple(tf.zeros_like(w) if g is None else g for g, w in zip(gradients, weights, strict=True))


def _with_static_shape(gradient: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """The gradient with the static shape of its weight, which operations on sizes of run time lose."""
    return gradient if gradient.shape.is_fully_defined() else tf.reshape(gradient, shape)


def with_gradients(loss: tf.Tensor, gradients: Sequence, weights: Sequence[tf.Tensor]) -> tf.Tensor:
    """The loss, with these tensors as its gradients by the weights."""
    value = tf.stop_gradient(loss)
    constants = [tf.stop_gradient(tf.convert_to_tensor(g)) for g in gradients]

    @tf.custom_gradient
    def attach(*_weights: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return tf.identity(value), lambda upstream: [tf.cast(upstream, g.dtype) * g for g in constants]

    return attach(*weights)

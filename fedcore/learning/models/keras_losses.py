"""The losses of a Keras model as `compile` makes them, with checks of what they are given."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import TracingError, TypeMismatch
from fedcore.graphs import private_api_keras
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_checks import check_elementwise, check_number_of_losses, check_output_names
from fedcore.learning.models.keras_outputs import LossLike
from fedcore.scalars import real_number

_BY_SHAPE = ("crossentropy", "ce")  # names that Keras resolves by the shapes of labels and predictions


def compile_losses(
    model: keras.Model,
    predictions: TensorStructure,
    loss: LossLike,
    loss_weights: float | Sequence[float] | Mapping[str, float] | None,
) -> keras.losses.Loss:
    """Builds the loss (y, y_pred, sample_weight) -> scalar as Keras' `compile` does: the weighted sum over outputs.

    Args:
        predictions: the specs of the model's predictions.
        loss, loss_weights: as for `compile`.
    Raises:
        InvalidValue: a list of losses or of weights has another length than the outputs.
        TracingError: a dict names other outputs, Keras does not know a loss, or a weight is no number. When the result
            is called: a loss of Keras' own does not compare labels and predictions of these shapes element by element.
    """
    check_number_of_losses(model, predictions, loss, loss_weights)
    check_output_names("loss", loss, model, predictions)
    check_output_names("loss_weights", loss_weights, model, predictions)
    who = f"the loss of {model.name}"
    losses = keras.tree.map_structure(lambda leaf: None if leaf is None else CheckedLoss(leaf, who), loss)
    if isinstance(loss_weights, Mapping) and isinstance(loss, Mapping):  # an output without a weight has 1
        loss_weights = {name: loss_weights.get(name, 1.0) for name in loss}
    weights = None if loss_weights is None else keras.tree.map_structure(_loss_weight, loss_weights)
    return private_api_keras.compile_loss(losses, weights, getattr(model, "output_names", None))


class CheckedLoss(keras.losses.Loss):
    """A loss as `compile` takes it, which checks the shapes that it is called with.

    Args:
        spec: the loss as the user gave it. Which loss the names of `_BY_SHAPE` mean is known at the first call only.
        who: the loss in messages.
    Attributes:
        labels_id: the identity of the labels of the latest call, by which `check_labels_of_sample` finds its loss.
    """

    def __init__(self, spec: str | Callable, who: str) -> None:
        self._spec, self._who = spec, who
        self.labels_id: int | None = None
        self._units: int | None = None  # size of the last axis of the latest call's predictions
        self._checked: list[list[str]] = []  # shapes of labels and predictions of calls that passed the check
        by_shape = isinstance(spec, str) and spec.lower() in _BY_SHAPE
        loss: Any = None if by_shape else _resolve(spec)
        super().__init__(name=spec if by_shape else loss.name)
        self._loss = loss

    def __call__(
        self, y_true: TensorStructure, y_pred: TensorStructure, sample_weight: tf.Tensor | None = None
    ) -> tf.Tensor:
        if not keras.tree.is_nested(y_pred):
            self.labels_id, self._units = id(y_true), y_pred.shape[-1] if len(y_pred.shape) else None
        if self._loss is None:
            self._loss = private_api_keras.loss_object(self._spec, y_true, y_pred)
        shapes = [str(leaf.shape) for leaf in keras.tree.flatten((y_true, y_pred))]
        if shapes not in self._checked:
            check_elementwise(self._who, self._loss, y_true, y_pred)
            self._checked.append(shapes)
        return self._loss(y_true, y_pred, sample_weight)

    def check_sample(self, labels: np.ndarray) -> None:
        """Checks the labels of a sample batch for a sparse loss of the latest call's predictions.

        Raises:
            TracingError: a label has no output.
        """
        units = self._units
        labels = labels[labels != getattr(self._loss, "ignore_class", None)]
        if units is None or "sparse" not in self._loss.name.lower() or not labels.size:
            return
        if labels.min() >= 0 and labels.max() < units:
            return
        wrong = labels.max() if labels.max() >= units else labels.min()
        raise TracingError(
            f"a label of the sample batch is {wrong}, but the output has {units} units, for the labels 0 to "
            f"{units - 1}: give the last layer a unit for each label"
        )


class JointLoss(keras.losses.Loss):
    """A single loss of all outputs of a model together, used in place of the result of `compile_losses`."""

    metrics = ()  # Keras reads it of the loss of a compiled model

    def __init__(self, loss: str | Callable) -> None:
        self._loss = _resolve(loss)
        super().__init__(name=self._loss.name)

    def __call__(
        self, y_true: TensorStructure, y_pred: TensorStructure, sample_weight: tf.Tensor | None = None
    ) -> tf.Tensor:
        return self._loss(y_true, y_pred, sample_weight)


def check_labels_of_sample(losses: keras.losses.Loss, labels: TensorStructure, sample_labels: TensorStructure) -> None:
    """Checks that sparse losses have an output for each label of a sample batch.

    Args:
        losses: the result of `compile_losses`, already called with `labels`.
        labels: the labels of the traced batch, which tell by identity to which loss a sample belongs.
        sample_labels: the labels of the sample batch, in the structure of `labels`; specs are not checked.
    Raises:
        TracingError: a label has no output.
    """
    if isinstance(losses, JointLoss):
        return
    places = {id(leaf): i for i, leaf in enumerate(tf.nest.flatten(labels))}
    samples = tf.nest.flatten(sample_labels)
    for loss in private_api_keras.flat_losses(losses):
        place = places.get(loss.labels_id)
        if place is not None and isinstance(samples[place], np.ndarray | tf.Tensor):
            loss.check_sample(np.asarray(samples[place]))


def _resolve(spec: str | Callable) -> keras.losses.Loss:
    """The object that Keras makes of a loss.

    Raises:
        TracingError: Keras has no loss of this name, or the loss is a class that takes arguments.
    """
    try:
        return private_api_keras.loss_object(spec)
    except ValueError:
        raise TracingError(f"Keras has no loss named {spec!r}") from None
    except TypeError as error:
        name = spec if isinstance(spec, str) else spec.__name__
        raise TracingError(f"the loss is the class {name}, which takes arguments: {error}") from error


def _loss_weight(weight: object) -> float:
    try:
        return float(real_number("a loss weight", weight))
    except TypeMismatch as error:
        raise TracingError(f"{error}; by position, metrics stand before loss_weights") from None

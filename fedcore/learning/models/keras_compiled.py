"""The loss and the metrics of a Keras model, computed by its own `compute_loss` and `compute_metrics`.

Decision 0204.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs import private_api_keras
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_checks import check_has_loss, open_shape, overrides, words_of
from fedcore.learning.models.keras_compiled_metrics import compile_metrics, metric_names
from fedcore.learning.models.keras_losses import JointLoss, check_labels_of_sample, compile_losses
from fedcore.learning.models.keras_metric_states import check_additive
from fedcore.learning.models.keras_metrics import KerasMetrics
from fedcore.learning.models.keras_outputs import output_names
from fedcore.learning.models.keras_scope import StepScope
from fedcore.types import StructType, Type

_compiling = threading.RLock()


class CompiledModel:
    """A Keras model with losses and metrics, as `compile` makes them.

    Guarantees:
      - What the user gave to the model's own compile() is as it was after each call.
      - Threads wait for each other where they compute losses, since they may share a model.

    Args:
        losses, metrics: of `compile_losses` and `compile_metrics`; None where there are none.
    """

    def __init__(
        self, model: keras.Model, losses: keras.losses.Loss | None, metrics: keras.metrics.Metric | None
    ) -> None:
        self._model, self._losses, self._metrics = model, losses, metrics
        with private_api_keras.compile_state(model):
            own = list(model.metrics)
        self._loss_tracker = keras.metrics.Mean(name="loss") if overrides(model, "compute_metrics") else None
        trackers = losses.metrics if losses else []
        self.metrics = KerasMetrics(metric_names(metrics), own, trackers, were_used=model.compiled)

    @contextmanager
    def _compile_state(self) -> Iterator[None]:
        with _compiling, private_api_keras.compile_state(self._model, self._losses, self._metrics, self._loss_tracker):
            yield

    def values(self, state: dict) -> list[tuple[keras.Variable, Any]]:
        """The values of all variables of metrics before a batch; the model's own tracker of the loss is not read."""
        return [*self.metrics.values(state), *((v, tf.zeros(v.shape, v.dtype)) for v in self._tracker_variables)]

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables of all metrics."""
        return [*self.metrics.variables, *self._tracker_variables]

    @property
    def _tracker_variables(self) -> list[keras.Variable]:
        return self._loss_tracker.variables if self._loss_tracker else []

    def loss(
        self,
        x: TensorStructure,
        y: TensorStructure,
        predictions: TensorStructure,
        sample_weight: TensorStructure | None,
        training: bool,
    ) -> tf.Tensor:
        """The loss of a batch with what layers add: a tensor, whose sum has the gradient."""
        with self._compile_state():
            loss = private_api_keras.loss_method(self._model)(x, y, predictions, sample_weight, training=training)
        if loss is None:
            raise TracingError(f"compute_loss of {type(self._model).__name__} returns None; it returns the loss")
        return loss

    def loss_of_outputs(
        self, y: TensorStructure, predictions: TensorStructure, sample_weight: TensorStructure | None
    ) -> tf.Tensor:
        """The loss of a batch by its labels alone."""
        if self._losses is None:
            raise TracingError(f"{self._model.name} was given no loss of labels and predictions")
        zeros = [(v, tf.zeros(v.shape, v.dtype)) for metric in self._losses.metrics for v in metric.variables]
        with StepScope(zeros):
            return self._losses(y, predictions, sample_weight)

    def update_metrics(
        self,
        x: TensorStructure,
        y: TensorStructure,
        predictions: TensorStructure,
        sample_weight: TensorStructure | None,
    ) -> list[str]:
        """Counts a batch in the metrics' variables; returns the names that a `compute_metrics` of the user reports."""
        if self._loss_tracker is None:
            if self._metrics is not None:
                self._metrics.update_state(y, predictions, sample_weight)
            return []
        with self._compile_state():
            return list(self._model.compute_metrics(x, y, predictions, sample_weight=sample_weight) or ())

    def check_reports(self, names: Sequence[str]) -> None:
        """Checks the names that a `compute_metrics` of the user reports.

        Raises:
            TracingError: one is no metric, so that reports of several batches and clients are no sum of states.
        """
        reportable = {"loss", *self.metrics.initial()}
        unknown = [name for name in names if name not in reportable]
        if unknown:
            raise TracingError(
                f"compute_metrics of {type(self._model).__name__} reports {unknown[0]!r}, which is no metric of the "
                "model: a keras.metrics.Metric that __init__ makes is added over batches and clients; update it there, "
                f"and report it by its name ({', '.join(sorted(reportable))})"
            )


def compile_model(
    model: keras.Model,
    labels_and_weights: Sequence,
    batch_type: Type,
    predictions: TensorStructure,
    arguments: dict,
    sample_labels: TensorStructure | None = None,
) -> CompiledModel:
    """Gives a Keras model its losses and metrics.

    Args:
        labels_and_weights: specs of the labels and, where there are any, of the sample weights; [] without labels.
        predictions: specs of the predictions for the labels.
        arguments: `loss`, `loss_weights`, `metrics` and `weighted_metrics` of `compile`.
        sample_labels: the labels of a sample batch that the user gave. Default: there are none to check.
    Raises:
        TracingError: there is no loss, or a loss or a metric is unknown or does not take the labels and predictions.
    """
    loss = arguments["loss"]
    check_has_loss(model, loss, output_names(model, predictions))
    if not labels_and_weights:
        argument = next((name for name in ("metrics", "weighted_metrics") if arguments[name]), None)
        if argument is not None:
            raise TracingError(
                f"{argument} of {model.name} compare labels with predictions, but a batch of type {batch_type} has no "
                "labels: leave them out, or make metrics in __init__ of a layer, which updates them in its call"
            )
        return CompiledModel(model, None, None)
    losses = metrics = None
    assert isinstance(batch_type, StructType)  # it has labels
    labels_type = batch_type.types[1]
    if any(leaf is not None for leaf in keras.tree.flatten(loss)):
        losses = compile_losses(model, predictions, loss, arguments["loss_weights"])

    def build(labels: TensorStructure, predictions: TensorStructure, *sample_weight: TensorStructure) -> None:
        nonlocal losses, metrics
        if losses is not None:
            joint = JointLoss(loss) if _takes_all_outputs(arguments, predictions) else None
            losses = _fitting_losses(model, losses, joint, labels_type, predictions, labels, *sample_weight)
            if sample_labels is not None:
                check_labels_of_sample(losses, labels, sample_labels)
        metrics = compile_metrics(model, arguments["metrics"], arguments["weighted_metrics"], labels, predictions)

    labels, *sample_weight = labels_and_weights
    private_api_keras.outputs_of(build, labels, predictions, *sample_weight)
    if metrics is not None:
        for operands in private_api_keras.metric_operands(metrics, labels, predictions):
            check_additive(*operands)
    return CompiledModel(model, losses, metrics)


def _takes_all_outputs(arguments: dict, predictions: TensorStructure) -> bool:
    """Whether there is one loss, without loss weights, for several outputs: it may be a loss of all of them at once."""
    is_one = not keras.tree.is_nested(arguments["loss"]) and arguments["loss_weights"] is None
    return is_one and keras.tree.is_nested(predictions)


def _fitting_losses(
    model: keras.Model,
    losses: keras.losses.Loss,
    joint: JointLoss | None,
    labels_type: Type,
    predictions: TensorStructure,
    labels: TensorStructure,
    *sample_weight: TensorStructure,
) -> keras.losses.Loss:
    """`losses`, or `joint` if only that takes the labels and predictions; a call builds it, and its trackers are reset.

    Args:
        losses: the result of `compile_losses`, which has a loss for each output.
        joint: a loss of all outputs at once. None: there is no such loss.
    Raises:
        TracingError: neither takes the labels and predictions.
    """
    errors = []
    for candidate in (losses, joint):
        if candidate is None:
            continue
        try:
            candidate(labels, predictions, *sample_weight)
        except TracingError:
            raise
        except Exception as error:
            errors.append(error)
            continue
        for tracker in candidate.metrics:
            tracker.reset_state()
        return candidate
    shapes = " and ".join(open_shape(p) for p in keras.tree.flatten(predictions))
    raise TracingError(
        f"the loss of {model.name} does not take labels of type {labels_type} for predictions of "
        f"shape {shapes}: {words_of(errors[0])}"
    ) from errors[0]

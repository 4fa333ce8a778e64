"""The part of `private_api` for what Keras' `compile` makes of losses and metrics."""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from fedcore.graphs.private_api import part

_COMPILE = "keras.src.trainers.compile_utils"


@part("keras.src.trainers.compile_utils: CompileLoss(loss, loss_weights, output_names=)")
def compile_loss(loss, loss_weights, output_names: Sequence[str] | None):
    """The function (y, y_pred, sample_weight) -> a weighted sum that `compile` makes of losses."""
    return importlib.import_module(_COMPILE).CompileLoss(loss, loss_weights, output_names=output_names)


@part("keras.src.trainers.compile_utils: CompileMetrics(metrics, weighted_metrics, output_names=)")
def compile_metrics(metrics, weighted_metrics, output_names: Sequence[str] | None):
    """The metric that `compile` makes of metrics, with `build(y, y_pred)`, a list `metrics` and `result()` by name."""
    return importlib.import_module(_COMPILE).CompileMetrics(metrics, weighted_metrics, output_names=output_names)


@part("CompileLoss._flat_losses, of named tuples with `loss`")
def flat_losses(compiled) -> list[keras.losses.Loss]:
    """The losses that `compile_loss` calls, in their order; none before its first call."""
    return [entry.loss for entry in compiled._flat_losses or ()]


@part("keras.src.trainers.compile_utils: get_loss(identifier, y, y_pred)")
def loss_object(loss, labels=None, predictions=None) -> keras.losses.Loss:
    """The object that `compile` makes of one loss; "crossentropy" and "ce" need labels and predictions."""
    return importlib.import_module(_COMPILE).get_loss(loss, labels, predictions)


@part("keras.src.trainers.compile_utils: get_metric(identifier, y, y_pred)")
def metric_object(metric, labels=None, predictions=None) -> keras.metrics.Metric:
    """The object that `compile` makes of one metric; "accuracy" and "acc" need labels and predictions."""
    return importlib.import_module(_COMPILE).get_metric(metric, labels, predictions)


@part("CompileMetrics: _flat_metrics, _flat_weighted_metrics, _flatten_y")
def metric_operands(compiled, labels, predictions) -> list[tuple[keras.metrics.Metric, Any, Any]]:
    """Each metric of built `compile_metrics` with the labels and predictions that it is given, in their order."""
    pairs = list(zip(compiled._flatten_y(labels), compiled._flatten_y(predictions), strict=False))
    return [
        (metric, *pair)
        for groups in (compiled._flat_metrics, compiled._flat_weighted_metrics)
        for group, pair in zip(groups, pairs, strict=False)
        if group
        for metric in group.metrics
    ]


@part("keras.metrics.MeanMetricWrapper._fn, keras.losses.LossFunctionWrapper.fn")
def wrapped_function(wrapper):
    """The function of labels and predictions that a loss or metric of Keras calls; None if it calls none."""
    if isinstance(wrapper, keras.metrics.MeanMetricWrapper):
        return wrapper._fn
    return getattr(wrapper, "fn", None) if isinstance(wrapper, keras.losses.Loss) else None


@part("keras.Model: compiled, _compile_loss, _compile_metrics, _loss_tracker")
@contextlib.contextmanager
def compile_state(model: keras.Model, loss=None, metrics=None, loss_tracker=None) -> Iterator[None]:
    """Inside, the model is compiled with these parts; without any of them, it is not compiled.

    The parts are put past Keras' tracking of attributes, and what `compile` of the user made is put back.
    """
    parts = {"_compile_loss": loss, "_compile_metrics": metrics, "_loss_tracker": loss_tracker}
    parts["compiled"] = any(value is not None for value in parts.values())
    attributes = vars(model)
    before = {name: attributes[name] for name in parts}
    attributes.update(parts)
    try:
        yield
    finally:
        attributes.update(before)


@part("keras.Model._compute_loss(x, y, y_pred, sample_weight, training=)")
def loss_method(model: keras.Model):
    """The method that calls a model's `compute_loss`, with `training` only where it takes that."""
    return model._compute_loss

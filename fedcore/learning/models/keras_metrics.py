"""Keras metrics as pure functions of their states."""

from collections.abc import Mapping
from typing import Any

import attrs
import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import TracingError, brief
from fedcore.learning.models.keras_checks import check_elementwise, open_shape, words_of
from fedcore.learning.models.keras_purity import traced_once
from fedcore.learning.models.model_weights import has_value, value_now


@attrs.frozen
class _Metric:
    """A metric of one output, with the values that its variables start from."""

    name: str
    output: int
    keras: keras.metrics.Metric
    starts: list[np.ndarray]


class KerasMetrics:
    """The metrics of a model; their state is a dict from name to the values of the metric's variables.

    Args:
        given: for each output a metric, a list of them, a dict of them by name, or None.
        outputs: the outputs' names; they stand before the metrics' names where there are several.
        labels, predictions: for each output those of a batch of zeros; metrics' variables may depend on their shapes.
    Raises:
        TracingError: something is no metric, has the name of another, does not take the labels and predictions, or
            starts from other states than zeros.
    """

    def __init__(self, given: list, outputs: list[str], labels: list, predictions: list):
        found: dict[str, tuple] = {}
        for i, metrics in enumerate(given):
            for name, metric in _named(metrics):
                name = name if len(outputs) == 1 else f"{outputs[i]}_{name}"
                if name in found:
                    raise TracingError(f"there are two metrics named {name}; give one of them another name=")
                found[name] = (i, metric)
        self._metrics = [
            _Metric(name, i, metric, _starts(name, metric, labels[i], predictions[i]))
            for name, (i, metric) in found.items()
        ]

    def initial(self) -> dict:
        return {m.name: tuple(map(tf.constant, m.starts)) for m in self._metrics}

    def update(self, state: dict, labels: list, predictions: list) -> dict:
        return {
            m.name: tuple(m.keras.stateless_update_state(list(state[m.name]), labels[m.output], predictions[m.output]))
            for m in self._metrics
        }

    def finalize(self, state: dict) -> dict:
        return {m.name: metric_result(m.keras, list(state[m.name])) for m in self._metrics}

    def own(self, reported: dict) -> dict:
        """The part of a report that is these metrics'."""
        return {m.name: reported[m.name] for m in self._metrics}


def _starts(name: str, metric: keras.metrics.Metric, labels, predictions) -> list[np.ndarray]:
    """The values of the metric's variables before any update, which makes those that depend on shapes.

    A metric that was used already starts from where it is.
    """
    check_elementwise(f"the metric {name}", metric, labels, predictions)
    before = [_start(v) for v in metric.variables]
    try:
        if isinstance(metric, keras.metrics.Mean):  # has its variables; others may make some now
            traced_once(lambda: metric.update_state(labels, predictions))
        else:
            metric.update_state(labels, predictions)
    except Exception as error:
        raise TracingError(
            f"the metric {name} ({type(metric).__name__}) does not take labels of shape {open_shape(labels)} and "
            f"predictions of shape {open_shape(predictions)}: {words_of(error)}"
        ) from error
    if len(metric.variables) > len(before):
        metric.reset_state()
        before = [_start(v) for v in metric.variables]
    for variable, value in zip(metric.variables, before, strict=True):
        variable.assign(value)
    if any(np.any(value != 0) for value in before):
        raise TracingError(f"the metric {name} does not start from zeros, so states of clients cannot be added")
    return before


def _start(variable) -> np.ndarray:
    """The value of a metric's variable; one of a graph starts from zeros."""
    return value_now(variable) if has_value(variable) else np.zeros(variable.shape, variable.dtype)


def metric_result(metric: keras.metrics.Metric, values: list):
    """A metric's result; where that is one of its variables, as many write it, the value that stands for it."""
    by_variable = {id(v): value for v, value in zip(metric.variables, values, strict=True)}
    result = metric.stateless_result(values)
    return keras.tree.map_structure(lambda r: by_variable.get(id(r), r), result)


def _named(given) -> list[tuple[str, Any]]:
    """The metrics of one output by name: a dict's keys, or the metrics' own names."""
    if isinstance(given, Mapping):
        return [(name, _made(metric)) for name, metric in given.items() if metric is not None]
    several = given if isinstance(given, tuple | list) else [given]
    return [(metric.name, metric) for metric in map(_made, (m for m in several if m is not None))]


def _made(metric) -> keras.metrics.Metric:
    if isinstance(metric, keras.metrics.Metric):
        return metric
    try:
        made = metric() if callable(metric) else metric
    except TypeError as error:
        raise TracingError(
            f"{brief(metric)} makes no metric when it is called without arguments: {error}; a function of labels and "
            "predictions is one as keras.metrics.MeanMetricWrapper(function, name='…')"
        ) from error
    if not isinstance(made, keras.metrics.Metric):
        order = "; by position, metrics stand before loss_weights" if isinstance(made, int | float) else ""
        raise TracingError(
            f"a metric is a keras.metrics.Metric or a function that makes one, not {brief(metric)}{order}"
        )
    return made

"""Keras metrics as pure functions of their states."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import TracingError, brief
from fedcore.learning.models.pure_model import COUNTED


class KerasMetrics:
    """The metrics of a model; their state is a dict from name to the values of the metric's variables.

    Args:
        given: for each output a metric, a list of them, or None.
        labels, predictions: of a batch of zeros; what builds metrics whose variables depend on shapes.
    """

    def __init__(self, given: list, outputs: list[str], labels: list, predictions):
        self._metrics: list[tuple[str, int, Any]] = []
        parts = predictions
        if isinstance(predictions, dict):
            parts = [predictions[name] for name in outputs]
        elif not isinstance(predictions, tuple | list):
            parts = [predictions]
        for i, metrics in enumerate(given):
            several = metrics if isinstance(metrics, tuple | list) else [metrics]
            for metric in map(_made, (m for m in several if m is not None)):
                name = metric.name if len(outputs) == 1 else f"{outputs[i]}_{metric.name}"
                if name in COUNTED or any(name == taken for taken, _, _ in self._metrics):
                    raise TracingError(f"there are two metrics named {name}; give one of them another name=")
                if not metric.variables:
                    metric.update_state(labels[i], parts[i])
                    metric.reset_state()
                self._metrics.append((name, i, metric))
        self._starts = {name: [v.numpy() for v in metric.variables] for name, _, metric in self._metrics}
        for name, values in self._starts.items():
            if any(np.any(value != 0) for value in values):
                raise TracingError(f"the metric {name} does not start from zeros, so states of clients cannot be added")

    def initial(self) -> dict:
        return {name: tuple(map(tf.constant, values)) for name, values in self._starts.items()}

    def update(self, state: dict, labels: list, predictions: list) -> dict:
        return {
            name: tuple(metric.stateless_update_state(list(state[name]), labels[i], predictions[i]))
            for name, i, metric in self._metrics
        }

    def finalize(self, state: dict) -> dict:
        return {name: _result(metric, list(state[name])) for name, _, metric in self._metrics}


def _result(metric: keras.metrics.Metric, values: list):
    """A metric's result; where that is one of its variables, as many write it, the value that stands for it."""
    by_variable = {id(v): value for v, value in zip(metric.variables, values, strict=True)}
    result = metric.stateless_result(values)
    return keras.tree.map_structure(lambda r: by_variable.get(id(r), r), result)


def _made(metric) -> keras.metrics.Metric:
    made = metric() if callable(metric) and not isinstance(metric, keras.metrics.Metric) else metric
    if not isinstance(made, keras.metrics.Metric):
        raise TracingError(f"a metric is a keras.metrics.Metric or a function that makes one, not {brief(metric)}")
    return made

"""Keras metrics as pure functions of their states; the loss and the counts that every model has."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.learning.models.functional_model import BatchOutput

_ALWAYS = ("loss", "num_examples", "num_batches")


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
                if name in _ALWAYS or any(name == taken for taken, _, _ in self._metrics):
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
        start = {name: tuple(map(tf.constant, values)) for name, values in self._starts.items()}
        zero = tf.constant(0, tf.int64)
        return {**start, "loss": (tf.constant(0.0), tf.constant(0.0)), "num_examples": (zero,), "num_batches": (zero,)}

    def update(self, state: dict, labels: list, predictions: list, output: BatchOutput) -> dict:
        after = {
            name: tuple(metric.stateless_update_state(list(state[name]), labels[i], predictions[i]))
            for name, i, metric in self._metrics
        }
        weight = tf.cast(output.num_examples, tf.float32)
        total, count = state["loss"]
        after["loss"] = (total + tf.cast(output.loss, tf.float32) * weight, count + weight)
        after["num_examples"] = (state["num_examples"][0] + output.num_examples,)
        after["num_batches"] = (state["num_batches"][0] + 1,)
        return after

    def finalize(self, state: dict) -> dict:
        """No examples give a loss of NaN."""
        done = {name: _result(metric, list(state[name])) for name, _, metric in self._metrics}
        total, count = state["loss"]
        return {
            **done,
            "loss": total / count,
            "num_examples": state["num_examples"][0],
            "num_batches": state["num_batches"][0],
        }


def _result(metric: keras.metrics.Metric, values: list):
    """A metric's result; where that is one of its variables, as many write it, the value that stands for it."""
    by_variable = {id(v): value for v, value in zip(metric.variables, values, strict=True)}
    result = metric.stateless_result(values)
    return keras.tree.map_structure(lambda r: by_variable.get(id(r), r), result)


def _made(metric) -> keras.metrics.Metric:
    made = metric() if callable(metric) and not isinstance(metric, keras.metrics.Metric) else metric
    if not isinstance(made, keras.metrics.Metric):
        raise TracingError(f"a metric is a keras.metrics.Metric or a function that makes one, not {metric!r}")
    return made

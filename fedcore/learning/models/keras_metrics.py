"""Keras metrics as pure functions of their states."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.model_weights import has_value, value_now


@attrs.frozen
class _Metric:
    """A metric whose state is a tuple: the values of its variables; of an averaged one (sum of results, examples).

    Args:
        starts: for each of its variables the value before the first batch.
        is_averaged: whether it is read after each batch, and these results are averaged, weighted by examples: Keras
            counts the losses of outputs so.
    """

    name: str
    keras: keras.metrics.Metric
    starts: list[np.ndarray]
    is_averaged: bool

    def initial(self) -> tuple:
        return (tf.constant(0.0), tf.constant(0.0)) if self.is_averaged else tuple(map(tf.constant, self.starts))

    def after(self, state: tuple, values: list, examples: tf.Tensor) -> tuple:
        """The state after a batch.

        Args:
            values: of the metric's variables, which have counted the batch.
            examples: the number of them in the batch.
        """
        if not self.is_averaged:
            return tuple(values)
        value, weight = tf.cast(metric_result(self.keras, values), tf.float32), tf.cast(examples, tf.float32)
        return (state[0] + value * weight, state[1] + weight)

    def finalize(self, state: tuple) -> TensorStructure:
        return tf.math.divide_no_nan(*state) if self.is_averaged else metric_result(self.keras, list(state))


class KerasMetrics:
    """Metrics whose state is a dict from a metric's name to its state, see `_Metric`.

    Args:
        metrics: (name, metric), with all their variables.
        own: the metrics of a model and its layers; building the model has counted in them already.
        losses: trackers of the losses of several outputs.
        were_used: whether `metrics` may have counted in Keras' `fit`, which resets them before each epoch.
    Raises:
        TracingError: two metrics have one name, or one starts from other states than zeros.
    """

    def __init__(
        self,
        metrics: Sequence[tuple[str, keras.metrics.Metric]],
        own: Sequence[keras.metrics.Metric],
        losses: Sequence[keras.metrics.Metric],
        *,
        were_used: bool = False,
    ) -> None:
        names = [*(name for name, _ in metrics), *(metric.name for metric in (*own, *losses))]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise TracingError(f"there are two metrics named {twice[0]}; give one of them another name=")
        self._metrics = [
            *(
                _Metric(name, metric, _start_values(name, metric, were_used), is_averaged=False)
                for name, metric in metrics
            ),
            *(_Metric(metric.name, metric, _values_after_reset(metric), is_averaged=False) for metric in own),
            *(_Metric(metric.name, metric, _start_values(metric.name, metric), is_averaged=True) for metric in losses),
        ]

    @property
    def variables(self) -> list[keras.Variable]:
        return [v for m in self._metrics for v in m.keras.variables]

    def initial(self) -> dict:
        return {m.name: m.initial() for m in self._metrics}

    def values(self, state: dict) -> list[tuple[keras.Variable, Any]]:
        """The value of each variable before a batch."""
        return [
            pair
            for m in self._metrics
            for pair in zip(m.keras.variables, m.starts if m.is_averaged else state[m.name], strict=True)
        ]

    def after(self, state: dict, scope: keras.StatelessScope, examples: tf.Tensor) -> dict:
        """The state after a batch that was counted in a scope."""
        return {
            m.name: m.after(state[m.name], [scope.get_current_value(v) for v in m.keras.variables], examples)
            for m in self._metrics
        }

    def finalize(self, state: dict) -> dict:
        """The results by the names that `fit` reports: those of a result that is a dict are its keys."""
        return _flatten({m.name: m.finalize(state[m.name]) for m in self._metrics})

    def finalize_metric(self, state: dict, name: str) -> TensorStructure:
        """The result of one metric."""
        return next(m.finalize(state[m.name]) for m in self._metrics if m.name == name)

    def own(self, reported: dict) -> dict:
        """The part of a report that is these metrics'."""
        return {m.name: reported[m.name] for m in self._metrics}


def _flatten(results: Mapping[str, TensorStructure]) -> dict:
    """Results without dicts in them, in their order; of equal names `fit` reports the last one by alphabet."""
    entries = {
        name: _flatten(result) if isinstance(result, Mapping) else {name: result} for name, result in results.items()
    }
    last = {key: entries[name][key] for name in sorted(entries) for key in entries[name]}
    return {key: last[key] for parts in entries.values() for key in parts}


def _start_values(name: str, metric: keras.metrics.Metric, was_used: bool = False) -> list[np.ndarray]:
    """The values that a metric's variables start from: those of now, or those after a reset where it was used.

    Raises:
        TracingError: they are not zeros.
    """
    starts = _values_after_reset(metric) if was_used else [start_value(v) for v in metric.variables]
    if any(np.any(value != 0) for value in starts):
        raise TracingError(f"the metric {name} does not start from zeros, so states of clients cannot be added")
    return starts


def _values_after_reset(metric: keras.metrics.Metric) -> list[np.ndarray]:
    """The values of a metric's variables after a reset, as before each epoch of Keras' `fit`."""
    if not all(map(has_value, metric.variables)):
        return [start_value(v) for v in metric.variables]
    with tf.init_scope():
        return [np.asarray(keras.ops.convert_to_numpy(value)) for value in metric.stateless_reset_state()]


def start_value(variable: tf.Variable | keras.Variable) -> np.ndarray:
    """The value that a metric's variable has now; zeros for a variable that was made in a graph."""
    return value_now(variable) if has_value(variable) else np.zeros(variable.shape, variable.dtype)


def metric_result(metric: keras.metrics.Metric, values: Sequence) -> TensorStructure:
    """A metric's result; where that is one of its variables, as many write it, the value that stands for it."""
    by_variable = {id(v): value for v, value in zip(metric.variables, values, strict=True)}
    result = metric.stateless_result(values)
    return keras.tree.map_structure(lambda r: by_variable.get(id(r), r), result)

"""Whether a Keras metric adds to its states, so that states of clients can be added."""

import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_metrics import start_value

_SIZE = 7  # where it is open


def check_additive(metric: keras.metrics.Metric, labels: TensorStructure, predictions: TensorStructure) -> None:
    """Counts a batch from zeros and from other states: a metric that adds to them adds equal increments.

    Not checked: Keras' own metrics, one that draws random numbers, and one that does not take a random batch.

    Args:
        labels, predictions: specs of what the metric takes.
    Raises:
        TracingError: the increments depend on the states, as those of a maximum do.
    """
    starts = [start_value(v) for v in metric.variables]
    is_of_keras = type(metric).update_state.__module__.startswith("keras.")
    if is_of_keras or not tf.executing_eagerly() or any(map(np.any, starts)):
        return  # `KerasMetrics` refuses states that do not start from zeros
    rng = np.random.default_rng(0)
    batch = keras.tree.map_structure(lambda tensor: _draw(rng, tensor), (labels, predictions))
    others = [np.asarray(rng.integers(1, 4, np.shape(start)), start.dtype) for start in starts]
    try:
        from_zeros, repeated, from_others = (_increments(metric, states, batch) for states in (starts, starts, others))
    except Exception:  # it does not take what was drawn
        return
    is_random = not _are_close(from_zeros, repeated)
    if not is_random and not _are_close(from_zeros, from_others):
        raise TracingError(
            f"the metric {metric.name} does not add to its states, as a maximum does not, so "
            "states of clients cannot be added. Keep sums in update_state, such as a total and a count, and divide in "
            "result"
        )


def _draw(rng: np.random.Generator, spec: tf.TensorSpec) -> tf.Tensor:
    """Random entries; 0 and 1 where they are whole numbers."""
    shape = [_SIZE if size is None else size for size in spec.shape]
    if spec.dtype == tf.string:
        return tf.zeros(shape, tf.string)
    draws = rng.uniform(size=shape) if spec.dtype.is_floating else rng.integers(0, 2, shape)
    return tf.cast(tf.constant(draws), spec.dtype)


def _increments(metric: keras.metrics.Metric, states: list[np.ndarray], batch: tuple) -> list[np.ndarray]:
    updated = metric.stateless_update_state([tf.constant(s) for s in states], *batch)
    return [np.asarray(new, np.float64) - np.asarray(old, np.float64) for new, old in zip(updated, states, strict=True)]


def _are_close(increments: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(np.allclose(a, b, rtol=0.02, atol=0.02, equal_nan=True) for a, b in zip(increments, others, strict=True))

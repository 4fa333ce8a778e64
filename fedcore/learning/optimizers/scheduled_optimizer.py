"""An optimizer whose learning rate is a function of the step."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.learning.optimizers.optimizer import Optimizer, with_inner_names


class ScheduledOptimizer(Optimizer):
    """See `fc.learning.optimizers.schedule_learning_rate`."""

    def __init__(self, inner: Optimizer, schedule: Callable) -> None:
        if "learning_rate" not in inner.hyperparameters:
            raise FedcoreError("schedule_learning_rate: the optimizer keeps no learning_rate in its state")
        self.inner = inner
        self.schedule = schedule
        self.averages_weights = inner.averages_weights
        self.example_mechanism = inner.example_mechanism

    def with_names(self, names: Sequence[str]) -> Optimizer:
        return with_inner_names(self, names)

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return {name: value for name, value in self.inner.hyperparameters.items() if name != "learning_rate"}

    def initialize(self, specs: tuple) -> dict:
        return {"schedule_step": tf.constant(0, tf.int64), **self.inner.initialize(specs)}

    def next(self, state: dict, weights: tuple, gradients: tuple) -> tuple[dict, tuple]:
        step = state["schedule_step"]
        rate = scheduled_rate("schedule_fn", self.schedule, step)
        new_state, moved = self.inner.next({**_inner(state), "learning_rate": rate}, weights, gradients)
        return {"schedule_step": step + 1, **new_state}, moved

    def final_weights(self, state: dict, weights: tuple) -> tuple:
        return self.inner.final_weights(_inner(state), weights)


def _inner(state: dict) -> dict:
    """The state of the inner optimizer."""
    return {name: part for name, part in state.items() if name != "schedule_step"}


def scheduled_rate(argument: str, schedule: Callable, step: tf.Tensor) -> tf.Tensor:
    """The learning rate of a step or a round as a float32 scalar, in a graph.

    The schedule gets an int64. TensorFlow does not mix it with floats: where that fails, as in `0.9**step`, it gets a
    float32.

    Args:
        argument: the user's name of the schedule, for messages.
    Raises:
        TypeMismatch: it gives no number.
    """
    function = convert_function(schedule)
    try:
        rate = function(step)
    except (TypeError, ValueError) as error:
        try:
            rate = function(tf.cast(step, tf.float32))
        except Exception:
            raise error from None  # another mistake than the dtype
    try:
        number = tf.cast(tf.convert_to_tensor(rate), tf.float32)
    except (TypeError, ValueError):
        raise TypeMismatch(f"{argument} gives a learning rate, not {brief(rate)}") from None
    if number.shape.num_elements() not in (1, None):
        raise TypeMismatch(f"{argument} gives one learning rate, not numbers of shape {number.shape}")
    return tf.reshape(number, [])

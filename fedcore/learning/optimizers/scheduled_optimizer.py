"""An optimizer whose learning rate is a function of the step."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.frontend.control_flow import converted
from fedcore.learning.optimizers.optimizer import Optimizer


class ScheduledOptimizer(Optimizer):
    """See `fc.learning.optimizers.schedule_learning_rate`."""

    def __init__(self, inner: Optimizer, schedule: Callable):
        if "learning_rate" not in inner.hyperparameters:
            raise FedcoreError("schedule_learning_rate: the optimizer keeps no learning_rate in its state")
        self.inner = inner
        self.schedule = schedule

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return {name: value for name, value in self.inner.hyperparameters.items() if name != "learning_rate"}

    def initialize(self, weights: tuple) -> dict:
        return {"schedule_step": tf.constant(0, tf.int64), **self.inner.initialize(weights)}

    def next(self, state: dict, weights: tuple, gradients: tuple) -> tuple[dict, tuple]:
        step = state["schedule_step"]
        rate = tf.cast(tf.convert_to_tensor(converted(self.schedule)(step)), tf.float32)
        inner = {name: part for name, part in state.items() if name != "schedule_step"}
        after, moved = self.inner.next({**inner, "learning_rate": rate}, weights, gradients)
        return {"schedule_step": step + 1, **after}, moved

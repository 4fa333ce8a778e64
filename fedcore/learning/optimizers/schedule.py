from collections.abc import Callable, Mapping

import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.frontend.control_flow import converted
from fedcore.learning.optimizers.optimizer import Optimizer


class _Scheduled(Optimizer):
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


def schedule_learning_rate(optimizer: Optimizer, schedule_fn: Callable) -> Optimizer:
    """An optimizer whose learning rate is `schedule_fn(step)`, with steps from 0.

    A client's steps start from 0 in every round; a server's go on.

    Types: the state is that of the optimizer with schedule_step=int64 in front.

    Args:
        optimizer: one with a learning rate, which is replaced.
        schedule_fn: int64 tensor -> learning rate; run inside a graph. A Keras schedule is one.
    Raises:
        FedcoreError: the optimizer has no learning rate in its state, or it is scheduled already.
    Example:
        >>> optimizer = fc.learning.optimizers.schedule_learning_rate(
        ...     fc.learning.optimizers.build_sgdm(), lambda step: 0.1 / (1.0 + tf.cast(step, tf.float32)))
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, optimizer)
    """
    return _Scheduled(optimizer, schedule_fn)

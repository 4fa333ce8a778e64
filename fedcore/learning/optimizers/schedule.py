from collections.abc import Callable

from fedcore.errors import TypeMismatch, brief
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike, as_optimizer
from fedcore.learning.optimizers.optimizer import Optimizer
from fedcore.learning.optimizers.scheduled_optimizer import ScheduledOptimizer


def schedule_learning_rate(optimizer: OptimizerLike, schedule_fn: Callable) -> Optimizer:
    """An optimizer whose learning rate is `schedule_fn(step)`, with steps from 0.

    A client's steps start from 0 in every round; a server's go on.

    Types: the state is that of the optimizer with schedule_step=int64 in front.

    Args:
        optimizer: one with a learning rate, which is replaced; a Keras one is accepted.
        schedule_fn: int64 tensor -> learning rate; run inside a graph. One that mixes it with floats gets a float32. A
            Keras schedule is one.
    Raises:
        FedcoreError: the optimizer has no learning rate in its state, or it is scheduled already; `schedule_fn` is no
            function, or gives no number.
    Example:
        >>> optimizer = fc.learning.optimizers.schedule_learning_rate(
        ...     fc.learning.optimizers.build_sgdm(), lambda step: 0.1 * 0.9**step)
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, optimizer)
    """
    if not callable(schedule_fn):
        raise TypeMismatch(f"schedule_fn is a function of the step, not {brief(schedule_fn)}")
    return ScheduledOptimizer(as_optimizer(optimizer, clips_examples=True), schedule_fn)

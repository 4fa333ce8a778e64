"""Federated averaging whose clients' learning rate changes from round to round."""

import inspect
from collections.abc import Callable
from typing import Any, TypeGuard

import keras
import tensorflow as tf

from fedcore.aggregators import AggregationFactory
from fedcore.computation import tf_computation
from fedcore.errors import FedcoreError
from fedcore.intrinsics import federated_map
from fedcore.learning.algorithms.client_work import ClientWork
from fedcore.learning.algorithms.fed_avg import build_local_steps, federated_averaging
from fedcore.learning.models import trace_model
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers import Optimizer, as_optimizer
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.optimizers.scheduled_optimizer import scheduled_rate
from fedcore.learning.process import LearningProcess
from fedcore.learning.weighting import ClientWeighting, Weighting
from fedcore.templates import MeasuredProcess
from fedcore.tff_names import drops_tff_arguments


@drops_tff_arguments("loop_implementation")
def build_weighted_fed_avg_with_optimizer_schedule(
    model_fn: ModelFn,
    client_learning_rate_fn: Callable,
    client_optimizer_fn: OptimizerLike | Callable[[float], Optimizer | keras.optimizers.Optimizer],
    server_optimizer_fn: OptimizerLike | None = None,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
) -> LearningProcess:
    """Builds federated averaging with a client learning rate that depends on the round.

    Types and other arguments: those of `build_weighted_fed_avg`; `state.client_work` is <round=int64>, and a round's
    `metrics.client_work` has client_learning_rate=float32 beside `train`.

    Args:
        client_learning_rate_fn: round number (int64 tensor, from 0) -> learning rate, in a graph at the server. One
            that mixes it with floats, as `lambda r: 0.1 * 0.9**r`, gets a float32. A Keras schedule is one.
        client_optimizer_fn: learning rate -> an optimizer with it, such as `fc.learning.optimizers.build_sgdm`; called
            with numbers while the process is built. Or an optimizer, or a function that makes one whatever the rate:
            its learning rate is replaced.
    Returns:
        A `LearningProcess`. A round without clients counts for the schedule and leaves the weights as they were.
    Raises:
        FedcoreError: the client optimizer has no learning rate in its state, or takes another one or other numbers
            from the one it is given; or as for `build_weighted_fed_avg`.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_avg_with_optimizer_schedule(
        ...     model_fn, keras.optimizers.schedules.ExponentialDecay(0.25, 10, 0.5),
        ...     lambda rate: fc.learning.optimizers.build_sgdm(rate, momentum=0.9))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> state.client_work['round'], metrics['client_work']['client_learning_rate']
        (np.int64(1), np.float32(0.25))
    """
    model = trace_model(model_fn)
    optimizer = _scheduled_optimizer(client_optimizer_fn).with_names(model.trainable_names)
    start = tf_computation(lambda: {"round": tf.constant(0, tf.int64)})

    @tf_computation(start.type_signature.result)
    def send(state: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"learning_rate": scheduled_rate("client_learning_rate_fn", client_learning_rate_fn, state["round"])}

    work = ClientWork(
        initialize=start,
        send=send,
        train=build_local_steps(model, optimizer, client_weighting, send.type_signature.result),
        advance=tf_computation(start.type_signature.result)(lambda state: {"round": state["round"] + 1}),
        measure=lambda sent: {"client_learning_rate": federated_map(lambda message: message["learning_rate"], sent)},
    )
    return federated_averaging(
        model,
        work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )


def check_has_rate(argument: str, optimizer: Optimizer) -> None:
    """Refuses an optimizer, the user's `argument`, whose learning rate is not in its state."""
    if "learning_rate" not in optimizer.hyperparameters:
        raise FedcoreError(f"{argument}: the optimizer keeps no learning_rate in its state to be scheduled")


def _scheduled_optimizer(
    client_optimizer_fn: OptimizerLike | Callable[[float], Optimizer | keras.optimizers.Optimizer],
) -> Optimizer:
    """The optimizer whose learning rate is replaced in every round.

    A function of a rate is called with two rates, since only one of the optimizers is used: they may differ in the
    learning rate alone, and in no number that depends on it.
    """
    if not _takes_a_rate(client_optimizer_fn):
        optimizer = as_optimizer(client_optimizer_fn, scales_loss=True, clips_examples=True)
        check_has_rate("client_optimizer_fn", optimizer)
        return optimizer
    probes = (1.0, 0.5)
    first, second = (as_optimizer(client_optimizer_fn(rate), scales_loss=True, clips_examples=True) for rate in probes)
    check_has_rate("client_optimizer_fn", first)
    hyperparameters = [dict(optimizer.hyperparameters) for optimizer in (first, second)]
    if hyperparameters[0] == hyperparameters[1]:
        return first
    if (
        hyperparameters[1] != {**hyperparameters[0], "learning_rate": probes[1]}
        or hyperparameters[0]["learning_rate"] != probes[0]
    ):
        raise FedcoreError(
            "client_optimizer_fn hands its learning rate to the optimizer as it is, and nothing else depends on it; "
            f"but for {probes[0]} and {probes[1]} the optimizers have {hyperparameters[0]} and {hyperparameters[1]}"
        )
    return first


def _takes_a_rate(optimizer_fn: object) -> TypeGuard[Callable[[float], OptimizerLike]]:
    """Whether a function has to be called with an argument; a class, as of Keras' optimizers, counts as none."""
    if not callable(optimizer_fn) or isinstance(optimizer_fn, type):
        return False
    parameters = inspect.signature(optimizer_fn).parameters.values()
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)

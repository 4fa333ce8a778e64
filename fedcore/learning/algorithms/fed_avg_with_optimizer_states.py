"""Federated averaging whose clients keep the state of their optimizer, such as Adam's moments, between rounds."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.aggregators import WeightedAggregationFactory
from fedcore.computation import tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.algorithms.client_work import ClientWork, Steps, client_steps, initial_hyperparameters
from fedcore.learning.algorithms.fed_avg import optimizer_step
from fedcore.learning.algorithms.fed_avg_with_client_states import (
    ClientStateResult,
    client_state_averaging,
    result_with_state,
)
from fedcore.learning.client_state_process import ClientStateProcess
from fedcore.learning.models import ModelWeights, trace_model
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers import as_optimizer
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report


def build_fed_avg_with_optimizer_states(
    model_fn: ModelFn,
    client_optimizer_fn: OptimizerLike,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> ClientStateProcess:
    """Builds federated averaging whose clients keep the state of their optimizer between their rounds.

    Types: those of `ClientStateProcess`, where C is the state of the client's optimizer, such as
    <learning_rate=float32,step=int64,accumulator=…,preconditioner=…>; `state.client_work` has its hyperparameters,
    which are sent with the weights, 32 bits each.

    Args:
        model_fn, server_optimizer_fn, client_weighting, model_aggregator, metrics_aggregator: as for
            `build_weighted_fed_avg`.
        client_optimizer_fn: of the local steps, such as Adam. In `build_weighted_fed_avg` it starts anew in each round;
            here a client goes on with the moments and the number of steps of its last round.
    Returns:
        A process; a client's state begins as that of a new optimizer. A client without examples, or whose change or
        state is not finite, keeps its state. A round without clients leaves the weights as they were.
    Raises:
        FedcoreError: the optimizer averages weights (`use_ema`), or clips examples; or as for `build_weighted_fed_avg`.
    Source:
        McMahan et al. 2017, arXiv:1602.05629, Algorithm 1, with stateful clients (Kairouz et al. 2021,
        arXiv:1912.04977, table 1). Adam: Kingma and Ba 2015, arXiv:1412.6980, Algorithm 1.
    Example:
        >>> process = fc.learning.algorithms.build_fed_avg_with_optimizer_states(
        ...     model_fn, lambda: keras.optimizers.Adam(0.01))
        >>> states = [process.initial_client_state() for _ in range(2)]
        >>> state, metrics, states = process.next(process.initialize(), [client_a, client_b], states)
    """
    model = trace_model(model_fn)
    optimizer = as_optimizer(client_optimizer_fn, model.trainable_names, scales_loss=True, averages_weights=False)
    roles = model.weight_roles

    initialize = initial_hyperparameters(optimizer.hyperparameters)

    @tf_computation
    def initial_client_state() -> TensorStructure:
        return optimizer.initialize(model.initial_changing_weights().trainable)

    # `saved` is the state of the client's optimizer, as its last round left it.

    def begin(initial: ModelWeights, hparams: dict[str, tf.Tensor] | tuple[()], saved: TensorStructure) -> Steps:
        return Steps(initial, model.initial_metrics(), optimizer.set_hparams(saved, hparams or {}))

    def step(carry: Steps, batch: TensorStructure, weights: ModelWeights) -> Steps:
        return optimizer_step(model, optimizer, carry, batch, weights)

    def finish(initial: ModelWeights, carry: Steps, saved: TensorStructure) -> ClientStateResult:
        update = roles.difference(carry.weights, initial)
        weight, report = weight_and_report(model, client_weighting, carry.metrics)
        return result_with_state(update, weight, report, carry.optimizer, saved)

    state_type, hparams_type = initial_client_state.type_signature.result, initialize.type_signature.result
    train = client_steps(model, begin, step, finish, hparams=hparams_type, saved=state_type)
    return client_state_averaging(
        model,
        ClientWork(train, initialize, hyperparameters=tuple(optimizer.hyperparameters)),
        initial_client_state,
        server_optimizer_fn,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )

"""Ditto: beside the global model, each client keeps a personal one, which is pulled towards it."""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import WeightedAggregationFactory
from fedcore.computation import tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.algorithms.client_work import ClientWork, Steps, client_steps, initial_hyperparameters
from fedcore.learning.algorithms.fed_avg import optimizer_step
from fedcore.learning.algorithms.fed_avg_with_client_states import client_state_averaging, result_with_state
from fedcore.learning.algorithms.fed_prox import proximal_term
from fedcore.learning.client_state_process import ClientStateProcess
from fedcore.learning.models import ModelWeights, trace_model
from fedcore.learning.models.frozen_weights import changing_type
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers import as_optimizer
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.templates.training_result import finite_or_nothing
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.scalars import real_number

_PERSONAL_PREFIX = "personal_"  # before the names of the personal optimizer's hyperparameters in the state


@attrs.frozen
class _Carry:
    """The `Steps` of the global model and of the personal one, which one batch hands to the next."""

    shared: Any
    personal: Any


@attrs.frozen
class _Result:
    """A `ClientStateResult`, whose state is the personal model's U, with the report of the personal model's metrics."""

    client: Any
    state: Any
    personal: Any


def build_ditto(
    model_fn: ModelFn,
    personal_strength: float,
    client_optimizer_fn: OptimizerLike,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    personal_optimizer_fn: OptimizerLike | None = None,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> ClientStateProcess:
    """Builds Ditto: federated averaging of a global model, beside personal models that are pulled towards it.

    Types: those of `ClientStateProcess`, where C is U, the changing weights of a client's personal model; a round's
    `metrics.client_work` has the training metrics of the global model in `train`, those of the personal ones in
    `personal`. `state.client_work` has the hyperparameters of both optimizers, <learning_rate=float32,…,
    personal_learning_rate=float32,…>.

    Args:
        model_fn, client_optimizer_fn, server_optimizer_fn, client_weighting, model_aggregator, metrics_aggregator: as
            for `build_weighted_fed_avg`; they train the global model, which does not depend on the personal ones.
        personal_strength: λ of the paper, 0 or more: a personal model's loss gains λ/2 times the squared distance of
            its trainable weights from those that the server sent. 0 trains every personal model alone.
        personal_optimizer_fn: of the personal steps, one for each batch; starts anew in each round. Default:
            `client_optimizer_fn`.
    Returns:
        A process; a personal model begins as the global model of its client's first round. A client without examples,
        or whose change or personal model is not finite, keeps its personal model. A round without clients leaves the
        weights as they were.
    Raises:
        FedcoreError: `personal_strength` is negative or not finite; an optimizer averages weights (`use_ema`) or clips
            examples; or as for `build_weighted_fed_avg`.
    Source:
        Li et al. 2021, "Ditto: fair and robust federated learning through personalization", arXiv:2012.04221, Algorithm
        1, with federated averaging as the solver of the global model. A personal model takes as many steps in a round
        as the global one, on the same batches.
    Example:
        >>> process = fc.learning.algorithms.build_ditto(model_fn, 0.1, lambda: keras.optimizers.SGD(0.1))
        >>> personal = [process.initial_client_state(process.initialize()) for _ in range(2)]
        >>> state, metrics, personal = process.next(process.initialize(), [client_a, client_b], personal)
    """
    personal_strength = real_number("personal_strength", personal_strength, at_least=0)
    model = trace_model(model_fn)
    roles, pull = model.weight_roles, proximal_term(personal_strength)
    personal_fn = client_optimizer_fn if personal_optimizer_fn is None else personal_optimizer_fn
    optimizer, personal_optimizer = (
        as_optimizer(fn, model.trainable_names, scales_loss=True, averages_weights=False)
        for fn in (client_optimizer_fn, personal_fn)
    )
    hyperparameters = {
        **optimizer.hyperparameters,
        **{_PERSONAL_PREFIX + name: value for name, value in personal_optimizer.hyperparameters.items()},
    }

    initialize = initial_hyperparameters(hyperparameters)

    @tf_computation(model.weights_type)
    def initial_client_state(weights: ModelWeights) -> ModelWeights:
        return roles.changing(weights)

    # `personal` is U of the client's personal model, as it was before the round.

    def begin(initial: ModelWeights, hparams: dict[str, tf.Tensor] | tuple[()], personal: ModelWeights) -> _Carry:
        def start(optimizer: Any, weights: ModelWeights, prefix: str) -> Steps:
            values = {name: hparams[prefix + name] for name in optimizer.hyperparameters if hparams}
            state = optimizer.set_hparams(optimizer.initialize(weights.trainable), values)
            return Steps(weights, model.initial_metrics(), state)

        return _Carry(start(optimizer, initial, ""), start(personal_optimizer, personal, _PERSONAL_PREFIX))

    def step(carry: _Carry, batch: TensorStructure, weights: ModelWeights) -> _Carry:
        return _Carry(
            optimizer_step(model, optimizer, carry.shared, batch, weights),
            optimizer_step(model, personal_optimizer, carry.personal, batch, weights, pull),  # towards `weights`
        )

    def finish(initial: ModelWeights, carry: _Carry, personal: ModelWeights) -> _Result:
        update, new_personal = roles.difference(carry.shared.weights, initial), carry.personal.weights
        weight, report = weight_and_report(model, client_weighting, carry.shared.metrics)
        result = result_with_state(update, weight, report, new_personal, personal)
        personal_report = model.report_metrics(carry.personal.metrics)
        measured = finite_or_nothing((update, new_personal), weight, personal_report).metrics
        return _Result(result.client, result.state, measured)

    hparams_type, personal_type = initialize.type_signature.result, changing_type(model)
    train = client_steps(model, begin, step, finish, hparams=hparams_type, personal=personal_type)
    return client_state_averaging(
        model,
        ClientWork(train, initialize, hyperparameters=tuple(hyperparameters)),
        initial_client_state,
        server_optimizer_fn,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
        reports=["personal"],
    )

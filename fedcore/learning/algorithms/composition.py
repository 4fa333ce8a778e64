"""The round that the algorithms share: send, work at the clients, aggregate, update."""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import (
    MeanFactory,
    UnweightedAggregationFactory,
    WeightedAggregationFactory,
    as_weighted_aggregator,
)
from fedcore.aggregators.factory import refuse_weights
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_random_seed,
    federated_value,
    federated_zip,
)
from fedcore.learning.algorithms.client_result import CountingModel, all_finite
from fedcore.learning.algorithms.client_work import ClientWork
from fedcore.learning.metrics import sum_then_finalize
from fedcore.learning.models import ModelWeights, PureModel
from fedcore.learning.optimizers import Optimizer, as_optimizer, build_sgdm
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, Type


@attrs.frozen
class ServerWork:
    """The server's part of an algorithm, as `ClientWork` is the clients'.

    Args:
        start: (-> <W,O>), the first weights and the first state of the optimizer.
        update: (<O,W,mean change=W> -> <O,W>).
        aggregate_metrics: traced in a round; {M}@CLIENTS -> (the added metric states, the metrics), both at the server.
        hyperparameters: the names of those in O.
    """

    start: Computation
    update: Computation
    aggregate_metrics: Callable
    hyperparameters: tuple[str, ...]


def build_server_work(model: PureModel, server_optimizer_fn=None, metrics_aggregator=None) -> ServerWork:
    """An optimizer's step with the mean change, and the aggregation of metrics.

    Args:
        server_optimizer_fn: takes the mean change as a negative gradient. Default: SGD with rate 1, which adds it.
        metrics_aggregator: model -> `aggregate_metrics`. Default: `sum_then_finalize`.
    """
    optimizer = as_optimizer(build_sgdm(1.0) if server_optimizer_fn is None else server_optimizer_fn)
    aggregate_metrics = (metrics_aggregator or sum_then_finalize)(CountingModel(model))
    hyperparameters = tuple(optimizer.hyperparameters)
    return ServerWork(_build_start(model, optimizer), _build_update(optimizer), aggregate_metrics, hyperparameters)


def weighted(factory: WeightedAggregationFactory | None) -> WeightedAggregationFactory:
    """The aggregator that a weighted algorithm was given, or a weighted mean.

    Raises:
        TypeMismatch: it is not weighted.
    """
    if factory is None:
        return MeanFactory()
    refuse_weights(factory, "a weighted algorithm")
    if not isinstance(factory, WeightedAggregationFactory):
        raise TypeMismatch(
            f"model_aggregator takes no weights ({type(factory).__name__}); "
            "fc.aggregators.as_weighted_aggregator makes one that ignores them"
        )
    return factory


def unweighted(factory: UnweightedAggregationFactory | None) -> WeightedAggregationFactory | None:
    """The aggregator that an unweighted algorithm was given, for the weighted one that it is built on."""
    return None if factory is None else as_weighted_aggregator(factory)


def _build_update(optimizer: Optimizer) -> Any:
    """`(<state,W,mean update=W> -> <state,W>)`: the optimizer takes the mean change as a negative gradient.

    Non-trainable weights move by their mean change. A mean that is not finite (no clients, weights that add to zero)
    changes nothing, the optimizer's state included.
    """

    @tf_computation
    def update(optimizer_state, weights, mean_update):
        finite = all_finite(mean_update)
        gradients = tuple(-u for u in mean_update.trainable)
        state, trainable = optimizer.next(optimizer_state, weights.trainable, gradients)
        moved = tuple(w + u for w, u in zip(weights.non_trainable, mean_update.non_trainable, strict=True))
        after = (state, trainable, moved)
        before = (optimizer_state, weights.trainable, weights.non_trainable)
        state, trainable, moved = tf.nest.map_structure(lambda a, b: tf.where(finite, a, b), after, before)
        return state, ModelWeights(trainable, moved)

    return update


def _build_start(model: PureModel, optimizer: Optimizer) -> Computation:
    """`(-> <W,state of the server's optimizer>)`."""

    @tf_computation
    def start():
        weights = model.initial_weights()
        return weights, optimizer.initialize(weights.trainable)

    return start


def first_state(weights, optimizer_state, *, distributor=None, client_work=None, aggregator=None):
    """The state before the first round, of values at the server; what is left out is <>."""
    nothing, zero = federated_value((), SERVER), tf_computation(lambda: tf.constant(0, tf.int64))
    return federated_zip(
        LearningAlgorithmState(
            global_model_weights=weights,
            distributor=nothing if distributor is None else distributor,
            client_work=nothing if client_work is None else client_work,
            aggregator=nothing if aggregator is None else aggregator,
            finalizer=optimizer_state,
            round=federated_eval(zero, SERVER),
            seed=federated_random_seed(SERVER),
        )
    )


def next_state(before, **changes):
    """The state after a round: some parts changed, the round counted."""
    add_one = tf_computation(lambda round_number: round_number + 1)
    parts = {name: getattr(before, name) for name in LearningAlgorithmState.__annotations__}
    changes["round"] = federated_map(add_one, before.round)
    return federated_zip(LearningAlgorithmState(**{**parts, **changes}))


def round_metrics(*, client_work, distributor=None, aggregator=None, finalizer=None):
    """A round's metrics by part; what is left out is <>."""
    nothing = federated_value((), SERVER)
    return federated_zip(
        {
            "distributor": nothing if distributor is None else distributor,
            "client_work": client_work,
            "aggregator": nothing if aggregator is None else aggregator,
            "finalizer": nothing if finalizer is None else finalizer,
        }
    )


def compose_learning_process(
    model: PureModel,
    work: ClientWork,
    server_optimizer_fn=None,
    *,
    model_distributor=None,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> LearningProcess:
    """The process whose round is: send the weights, do `work` at the clients, aggregate, update.

    Args:
        server_optimizer_fn, metrics_aggregator: as for `build_server_work`.
        model_distributor: a measured process `next : (<S@SERVER,W@SERVER> -> <state,result=W@CLIENTS,measurements>)`.
            Default: the weights are broadcast as they are, together with what `work` sends.
        model_aggregator: joins the changes. Default: a weighted mean.
    Raises:
        TypeMismatch: the aggregator is not weighted, or the distributor gives other weights.
    """
    server = build_server_work(model, server_optimizer_fn, metrics_aggregator)
    client_result: Any = work.train.type_signature.result
    aggregation = weighted(model_aggregator).create(client_result["update"], client_result["weight"])
    _check_distributor(model_distributor, work.train.module.main.parameters[0].type)

    @federated_computation
    def initialize():
        first = federated_eval(server.start, SERVER)
        return first_state(
            first[0],
            first[1],
            distributor=model_distributor.initialize() if model_distributor else None,
            client_work=federated_eval(work.initialize, SERVER),
            aggregator=aggregation.initialize(),
        )

    @federated_computation(initialize.type_signature.result, FederatedType(SequenceType(model.batch_type), CLIENTS))
    def next_round(state, data):
        sent = federated_map(work.send, state.client_work)
        if model_distributor is None:
            both = federated_broadcast(federated_zip((state.global_model_weights, sent)))
            weights, extra, sending, sending_metrics = both[0], both[1], state.distributor, None
        else:
            distributed = model_distributor.next(state.distributor, state.global_model_weights)
            weights, extra = distributed.result, federated_broadcast(sent)
            sending, sending_metrics = distributed.state, distributed.measurements
        results = federated_map(work.train, (weights, extra, data))
        aggregated = aggregation.next(state.aggregator, results.update, results.weight)
        updated = federated_map(server.update, (state.finalizer, state.global_model_weights, aggregated.result))
        _, train_metrics = server.aggregate_metrics(results.metrics)
        after = next_state(
            state,
            global_model_weights=updated[1],
            distributor=sending,
            client_work=federated_map(work.advance, state.client_work),
            aggregator=aggregated.state,
            finalizer=updated[0],
        )
        metrics = round_metrics(
            distributor=sending_metrics,
            client_work=federated_zip({"train": train_metrics}),
            aggregator=aggregated.measurements,
        )
        return LearningProcessOutput(after, metrics)

    return LearningProcess(
        initialize, next_round, {"client_work": work.hyperparameters, "finalizer": server.hyperparameters}
    )


def _check_distributor(distributor, weights_type: Type) -> None:
    if distributor is None:
        return
    result = distributor.next.type_signature.result["result"]
    if result not in [FederatedType(weights_type, CLIENTS, all_equal) for all_equal in (True, False)]:
        raise TypeMismatch(
            f"model_distributor gives {result}, but clients start from {FederatedType(weights_type, CLIENTS, True)}"
        )

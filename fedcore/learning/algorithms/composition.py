"""The round that the algorithms share: send, work at the clients, aggregate, update.

Decision 0150.
"""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import (
    AggregationFactory,
    MeanFactory,
    WeightedAggregationFactory,
    as_weighted_aggregator,
)
from fedcore.aggregators.factory import check_factory, refuse_weights
from fedcore.aggregators.state_containers import PRIVATE_STATES, container_paths
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import (
    federated_eval,
    federated_map,
    federated_value,
)
from fedcore.ir import Value
from fedcore.ir.locations import warn_user
from fedcore.learning.models import ModelWeights, PureModel
from fedcore.learning.models.frozen_weights import changing_type, weights_functions, whole_weights
from fedcore.learning.models.pure_model import with_weight_names
from fedcore.learning.models.weight_roles import WeightRoles
from fedcore.learning.optimizers import Optimizer, as_optimizer, build_sgdm
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningProcess
from fedcore.learning.templates.composition import compose
from fedcore.learning.templates.distribution import build_broadcast_process
from fedcore.learning.templates.finalizer import FinalizerProcess
from fedcore.learning.templates.training import ClientWork
from fedcore.learning.templates.training_result import aggregation_of_metrics, all_finite
from fedcore.learning.templates.work_process import work_process
from fedcore.learning.trainable_weights_aggregator import TrainableWeightsState
from fedcore.templates import AggregationProcess, MeasuredProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, Type, explain, fits, member_of

_SHOWN = 4
"""Names of weights in a message."""


@attrs.frozen
class ServerWork:
    """The server's part of an algorithm, as `ClientWork` is the clients'.

    Args:
        start: (-> <U,O>), the first changing weights and the first state of the optimizer.
        update: (<O,U,mean change=U> -> <O,U>).
        aggregate_metrics: traced in a round; {M}@CLIENTS -> (the added metric states, the metrics), both at the server.
        hyperparameters: the names of those in O.
    """

    start: Computation
    update: Computation
    aggregate_metrics: Callable
    hyperparameters: tuple[str, ...]


def build_server_work(
    model: PureModel,
    server_optimizer_fn: OptimizerLike | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> ServerWork:
    """An optimizer's step with the mean change, and the aggregation of metrics.

    Args:
        server_optimizer_fn: takes the mean change as a negative gradient. Default: SGD with rate 1, which adds it.
        metrics_aggregator: model -> `aggregate_metrics`, or a function that gives the metrics alone; the model is also
            the function of all states that finalizes them. Default: `sum_then_finalize`.
    """
    optimizer_fn = build_sgdm(1.0) if server_optimizer_fn is None else server_optimizer_fn
    optimizer = as_optimizer(optimizer_fn, model.trainable_names)
    aggregator = aggregation_of_metrics(metrics_aggregator, model)

    def aggregate_metrics(client_states: Value) -> tuple[Value | None, Value]:
        metrics = aggregator(client_states)
        return metrics if isinstance(metrics, tuple) else (None, metrics)

    start, roles = _build_start(model, optimizer), model.weight_roles
    first: Any = start.type_signature.result
    if isinstance(model, PureModel) and not first[0]["trainable"].types and not roles.assigned:
        warn_user("the model has no trainable weights, so that training changes nothing")
    hyperparameters = tuple(optimizer.hyperparameters)
    return ServerWork(start, _build_update(optimizer, roles), aggregate_metrics, hyperparameters)


def build_aggregation(
    factory: AggregationFactory | None,
    update: Type,
    weight: Type,
    argument: str = "model_aggregator",
    *,
    roles: WeightRoles | None = None,
) -> AggregationProcess:
    """The aggregation of updates by the factory that a weighted algorithm was given, or by a weighted mean.

    Args:
        roles: of the weights, where the updates are those of a model. A warning tells of noise on assigned ones.
    Raises:
        TypeMismatch: it is not weighted, no aggregator, or its result is not of the type of the updates.
    """
    if factory is None:
        factory = MeanFactory()
    check_factory(argument, factory)
    refuse_weights(factory, "a weighted algorithm")
    if not isinstance(factory, WeightedAggregationFactory):
        raise TypeMismatch(
            f"{argument} takes no weights ({type(factory).__name__}), so it is no WeightedAggregationFactory; "
            "fc.aggregators.as_weighted_aggregator makes one that ignores them"
        )
    process = factory.create(update, weight)
    output: Any = process.next.type_signature.result
    result = member_of(output["result"])
    if not fits(result, update):
        title = f"{argument} gives no update, but a result of another type"
        raise TypeMismatch(explain(title, result, update, have_label="it gives", want_label="update"))
    if roles is not None and roles.assigned:
        _warn_of_noise(argument, process, roles)
    return process


def _warn_of_noise(argument: str, process: AggregationProcess, roles: WeightRoles) -> None:
    """Warns where weights that training steps assign are clipped and get noise, unless the user has chosen."""
    state = member_of(process.state_type)
    if not container_paths(state, PRIVATE_STATES) or container_paths(state, (TrainableWeightsState,)):
        return
    names = ", ".join(roles.names[:_SHOWN]) + (", …" if len(roles.names) > _SHOWN else "")
    warn_user(
        f"{argument} clips and adds noise to {len(roles.names)} weights that training steps assign ({names}): they "
        "take part of the clip norm, and averages with noise spoil evaluations. Use a model without them, such as one "
        "with GroupNormalization, freeze their layers, or leave them at the server: "
        f"{argument}=fc.learning.trainable_weights_aggregator(…)"
    )


def adapt_unweighted(
    factory: AggregationFactory | None, argument: str = "model_aggregator"
) -> WeightedAggregationFactory | None:
    """The aggregator that an unweighted algorithm was given, for the weighted one that it is built on.

    Raises:
        TypeMismatch: it takes weights, or is no aggregator.
    """
    if factory is None:
        return None
    check_factory(argument, factory)
    if isinstance(factory, WeightedAggregationFactory):
        raise TypeMismatch(
            f"{argument} of an unweighted algorithm takes weights ({type(factory).__name__}); give a factory without, "
            "an UnweightedAggregationFactory such as fc.aggregators.UnweightedMeanFactory(), or weighted=False to what "
            "made it"
        )
    return as_weighted_aggregator(factory)


def _build_update(optimizer: Optimizer, roles: WeightRoles) -> Any:
    """`(<state,U,mean update=U> -> <state,U>)`: the optimizer takes the mean change as a negative gradient.

    Assigned weights move by their mean change. A mean that is not finite (no clients, weights that
    add to zero) changes nothing, the optimizer's state included.
    """

    @tf_computation
    def update(
        optimizer_state: TensorStructure, weights: ModelWeights, mean_update: ModelWeights
    ) -> tuple[TensorStructure, ModelWeights]:
        finite = all_finite(mean_update)
        gradients = tuple(-u for u in mean_update.trainable)
        state, trainable = optimizer.next(optimizer_state, weights.trainable, gradients)
        new_values = (state, trainable, roles.assigned_after(weights, mean_update))
        old_values = (optimizer_state, weights.trainable, weights.non_trainable)
        state, trainable, moved = tf.nest.map_structure(lambda a, b: tf.where(finite, a, b), new_values, old_values)
        return state, ModelWeights(trainable, moved)

    return update


def _build_start(model: PureModel, optimizer: Optimizer) -> Computation:
    """`(-> <U,state of the server's optimizer>)`."""

    @tf_computation
    def start() -> tuple[ModelWeights, TensorStructure]:
        weights = model.initial_changing_weights()
        return weights, optimizer.initialize(weights.trainable)

    return start


def compose_learning_process(
    model: PureModel,
    work: ClientWork,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """The process whose round is: send the weights, do `work` at the clients, aggregate, update.

    Args:
        server_optimizer_fn, metrics_aggregator: as for `build_server_work`.
        model_distributor: a measured process `next : (<S@SERVER,U@SERVER> -> <state,result=U@CLIENTS,measurements>)`
            for the changing weights U. Default: they are broadcast as they are, together with what `work` sends.
        model_aggregator: joins the changes. Default: a weighted mean.
    Raises:
        TypeMismatch: the aggregator is not weighted or gives no update, or the distributor gives other weights.
    """
    server = build_server_work(model, server_optimizer_fn, metrics_aggregator)
    trained: Any = work.train.type_signature.result
    weights_type = changing_type(model)
    check_distributor(model_distributor, weights_type)
    aggregator = build_aggregation(model_aggregator, trained["update"], trained["weight"], roles=model.weight_roles)
    distributor = model_distributor or build_broadcast_process(weights_type)
    initialize, next_round = compose(
        tf_computation(lambda: model.initial_changing_weights()),
        _WholeWeights(model, distributor) if model.weight_roles.frozen else distributor,
        work_process(work, model.batch_type, server.aggregate_metrics),
        aggregator,
        _finalizer(server, aggregator),
    )
    return LearningProcess(
        initialize,
        with_weight_names(next_round, model),
        hyperparameters={"client_work": work.hyperparameters, "finalizer": server.hyperparameters},
        **weights_functions(model),
    )


@attrs.frozen
class _WholeWeights:
    """A distributor of the changing weights, with the frozen ones beside them at the clients; used in traces."""

    model: PureModel
    distributor: MeasuredProcess

    @property
    def initialize(self) -> Computation:
        return self.distributor.initialize

    def next(self, state: Value, weights: Value) -> MeasuredProcessOutput:
        sent = self.distributor.next(state, weights)
        return MeasuredProcessOutput(sent.state, whole_weights(self.model, sent.result), sent.measurements)


def _finalizer(server: ServerWork, aggregator: AggregationProcess) -> FinalizerProcess:
    first: Any = server.start.type_signature.result
    output: Any = aggregator.next.type_signature.result

    @federated_computation
    def initialize() -> Value:
        return federated_eval(federated_computation(lambda: server.start()[1]), SERVER)

    @federated_computation(FederatedType(first[1], SERVER), FederatedType(first[0], SERVER), output["result"])
    def finalize(state: Value, weights: Value, change: Value) -> MeasuredProcessOutput:
        updated = federated_map(server.update, (state, weights, change))
        return MeasuredProcessOutput(updated[0], updated[1], federated_value((), SERVER))

    return FinalizerProcess(initialize, finalize)


def check_distributor(distributor: object, weights_type: Type, argument: str = "model_distributor") -> None:
    if distributor is None:
        return
    if not isinstance(distributor, MeasuredProcess):
        raise TypeMismatch(
            f"{argument} is a fc.templates.MeasuredProcess, not {brief(distributor)}; "
            "fc.learning.templates.DistributionProcess is one"
        )
    output: Any = distributor.next.type_signature.result
    result = output["result"]
    if not any(result.is_equivalent_to(FederatedType(weights_type, CLIENTS, equal)) for equal in (True, False)):
        raise TypeMismatch(
            f"{argument} gives {result}, but clients start from {FederatedType(weights_type, CLIENTS, True)}"
        )

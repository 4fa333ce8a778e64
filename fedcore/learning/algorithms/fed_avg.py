"""Federated averaging, whole: the clients' steps, the server's update, and the round.

Other algorithms are federated averaging with other steps at the clients: they give `federated_averaging` a `ClientWork`
of their own. Decision 0333.
"""

import functools
from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import AggregationFactory
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_eval, federated_map, federated_value
from fedcore.ir import Value
from fedcore.ir.locations import warn_user
from fedcore.learning.algorithms.client_work import ClientWork, Steps, client_steps, initial_hyperparameters
from fedcore.learning.algorithms.given_parts import adapt_unweighted, build_aggregation, check_distributor
from fedcore.learning.algorithms.server_work import ServerWork
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.example_gradients import NoisyGradients, check_private_model, private_gradients_of
from fedcore.learning.models.frozen_weights import changing_type, whole_weights
from fedcore.learning.models.gradients import gradients_and_weights
from fedcore.learning.models.pure_model import constrained
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers import Optimizer, as_optimizer, build_sgdm
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningProcess, LearningProcessOutput
from fedcore.learning.templates.distribution import build_broadcast_process
from fedcore.learning.templates.finalizer import FinalizerProcess
from fedcore.learning.templates.state import first_state, next_state, round_metrics
from fedcore.learning.templates.training_result import (
    TrainingResult,
    aggregation_of_metrics,
    all_finite,
    finite_or_nothing,
)
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.templates import AggregationProcess, MeasuredProcess, MeasuredProcessOutput
from fedcore.tff_names import drops_tff_arguments
from fedcore.types import SERVER, FederatedType, Type


@drops_tff_arguments("loop_implementation", "measure_timing")
def build_weighted_fed_avg(
    model_fn: ModelFn,
    client_optimizer_fn: OptimizerLike | None = None,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds federated averaging: clients train, the server adds their mean change.

    Types, for weights W, changing weights U (W without frozen ones), batches B and metrics M of the model:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{B*}@CLIENTS> -> <state=State@SERVER,metrics=<client_work=<train=M>,…>@SERVER>)
        State       <global_model_weights=W,client_work=C,finalizer=O,…>: C the hyperparameters of the client
                    optimizer, which are sent with the weights, 32 bits each; O the state of the server optimizer.

    Args:
        model_fn: makes the model; called once, and its initialisers are traced. A `PureModel` is taken as it is.
        client_optimizer_fn: the optimizer of the local steps, one for each batch; a Keras one is accepted, also by its
            name. Default: that of a Keras model's `compile`.
        server_optimizer_fn: takes the mean change as a negative gradient. Default: SGD with rate 1, which adds it.
        client_weighting: by examples, all alike, or a function of a client's metric states in a graph.
        model_distributor: a measured process that sends the weights. Default: a broadcast.
        model_aggregator: joins changes of type U, weighted by a float32. Default: a weighted mean. One that adds noise
            costs a warning where U has weights that training steps assign, such as averages.
        metrics_aggregator: joins the clients' metrics. Default: they are added, then computed.
    Returns:
        A `LearningProcess`. A round without clients, or whose weights are all 0, leaves W as it was. A client
        whose change is not finite has weight 0 and is counted in the metric num_non_finite_clients.
    Raises:
        TypeMismatch: the aggregator does not take a weighted U, the distributor does not give W, or the weighting is
            neither a `ClientWeighting` nor a function.
        TracingError: `model_fn` makes no model of `fc.learning`.
        FedcoreError: an optimizer has no functional counterpart.
    Source:
        McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
        arXiv:1602.05629, Algorithm 1. The caller chooses the clients, and `repeat` and `batch` of their data the
        epochs and B. With a server optimizer: Reddi et al. 2021, arXiv:2003.00295, Algorithm 1, weighted.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['client_work']['train']['num_examples']
        np.int64(5)
    """
    model = trace_model(model_fn)
    return federated_averaging(
        model,
        local_training(model, client_optimizer_fn, client_weighting),
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )


@drops_tff_arguments("loop_implementation", "measure_timing")
def build_unweighted_fed_avg(
    model_fn: ModelFn,
    client_optimizer_fn: OptimizerLike | None = None,
    server_optimizer_fn: OptimizerLike | None = None,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds federated averaging in which every client counts the same.

    Types and other arguments: those of `build_weighted_fed_avg`.

    Args:
        model_aggregator: joins changes of type U. Default: the mean over the clients that have examples and a finite
            change. One that is given gets zeros from the others.
    Returns:
        A `LearningProcess`. A round without clients leaves W as it was.
    Raises:
        TypeMismatch: the aggregator is no factory of `fc.aggregators`, or does not take U.
        FedcoreError: as for `build_weighted_fed_avg`.
    Source:
        Reddi et al. 2021, "Adaptive federated optimization", arXiv:2003.00295, Algorithm 1; with the default server
        optimizer, federated averaging over clients instead of examples.
    Example:
        >>> median = fc.aggregators.coordinate_median_factory()
        >>> process = fc.learning.algorithms.build_unweighted_fed_avg(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=median)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    return build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn,
        client_weighting=ClientWeighting.UNIFORM,
        model_distributor=model_distributor,
        model_aggregator=adapt_unweighted(model_aggregator),
        metrics_aggregator=metrics_aggregator,
    )


# At a client.


def build_local_steps(
    model: PureModel,
    optimizer: Optimizer,
    weighting: Weighting,
    sent_type: Type,
    correct: Callable | None = None,
    gradients_at: Callable | None = None,
    update_of: Callable = lambda change, metrics: change,
) -> Computation:
    """The computation `(<W,H,B*> -> TrainingResult)`: one step of the optimizer for each batch.

    A change that is not finite counts for nothing, see `finite_or_nothing`. A client without examples has weight 0.

    Args:
        sent_type: H, the optimizer's hyperparameters by name, which the server sends; <> for those it was built with.
        correct: in a step's graph, (gradients, the weights W, those that were sent, a function that scales a loss or
            None) -> the gradients of the step. Default: as they are.
        gradients_at: (model, weights W, metric states, a batch, a function that scales a loss or None) -> the result of
            `gradients_and_weights`. Default: that.
        update_of: (the client's change of U, the metric states) -> the update that the client sends, of any structure.
            Default: the change.
    """
    roles = model.weight_roles
    if optimizer.example_mechanism is not None:
        check_private_model(model)

    def begin(initial: ModelWeights, sent: dict[str, tf.Tensor] | tuple[()]) -> Steps:
        state = optimizer.set_hparams(optimizer.initialize(initial.trainable), sent or {})
        return Steps(initial, model.initial_metrics(), state)

    def step(carry: Steps, batch: TensorStructure, weights: ModelWeights) -> Steps:
        return optimizer_step(model, optimizer, carry, batch, weights, correct, gradients_at)

    def finish(initial: ModelWeights, carry: Steps) -> TrainingResult:
        trainable = optimizer.final_weights(carry.optimizer, carry.weights.trainable)
        change = roles.difference(attrs.evolve(carry.weights, trainable=trainable), initial)
        update = update_of(change, carry.metrics)
        return finite_or_nothing(update, *weight_and_report(model, weighting, carry.metrics))

    return client_steps(model, begin, step, finish, sent=sent_type)


def optimizer_step(
    model: PureModel,
    optimizer: Optimizer,
    carry: Steps,
    batch: TensorStructure,
    weights: ModelWeights,
    correct: Callable | None = None,
    gradients_at: Callable | None = None,
) -> Steps:
    """The carry after one step of an optimizer on one batch, in a graph.

    Args:
        carry: after the batches before; its optimizer state is that of `optimizer`.
        weights: W as the server sent it.
        correct, gradients_at: as for `build_local_steps`.
    """
    roles = model.weight_roles
    current = roles.replace(weights, carry.weights)
    gradients_at = gradients_and_weights if gradients_at is None else gradients_at
    gradients, current, metrics = _gradients(model, optimizer, carry, current, batch, weights, correct, gradients_at)
    state, trainable = optimizer.next(carry.optimizer, current.trainable, gradients)
    moved = roles.changing(ModelWeights(model.constrain(trainable), current.non_trainable))
    return Steps(moved, metrics, state)


def _gradients(
    model: PureModel,
    optimizer: Optimizer,
    carry: Any,
    current: ModelWeights,
    batch: TensorStructure,
    sent: ModelWeights,
    correct: Callable | None,
    gradients_at: Callable,
) -> tuple:
    """(The gradients as the optimizer takes them, W with the values that layers assigned, the metric states).

    Of an optimizer with a mechanism of differential privacy the gradients are `NoisyGradients`.

    Args:
        carry: `Steps` before the batch.
        current: W before the batch.
        sent: W as the server sent it.
        correct, gradients_at: as for `build_local_steps`.
    """
    mechanism = optimizer.example_mechanism
    scale_loss = functools.partial(optimizer.scale_loss, carry.optimizer) if optimizer.scales_loss else None
    if mechanism is None:
        gradients, _, current, metrics = gradients_at(model, current, carry.metrics, batch, scale_loss)
    else:
        gradients, metrics = private_gradients_of(mechanism, model, current, carry.metrics, batch)
    if correct is not None:
        gradients = correct(gradients, current, sent, scale_loss)
    return gradients if mechanism is None else NoisyGradients(gradients), current, metrics


def local_training(
    model: PureModel,
    client_optimizer_fn: OptimizerLike | None,
    weighting: Weighting,
    *,
    conclude: Callable | None = None,
    **hooks: Any,
) -> ClientWork:
    """The clients' work of taking an optimizer's steps; its hyperparameters stand in the state, and are sent.

    Args:
        client_optimizer_fn: Default: the optimizer that the model was compiled with.
        conclude: in the server's graph, the joined updates -> the change of U. Default: the joined updates are it.
        hooks: `correct`, `gradients_at` and `update_of` of `build_local_steps`.
    """
    optimizer_fn = model.optimizer if client_optimizer_fn is None else client_optimizer_fn
    optimizer = as_optimizer(optimizer_fn, model.trainable_names, scales_loss=True, clips_examples=True)

    initialize = initial_hyperparameters(optimizer.hyperparameters)
    sent_type = initialize.type_signature.result
    steps: Any = build_local_steps(model, optimizer, weighting, sent_type, **hooks)
    end = None
    if conclude is not None:
        end = tf_computation(sent_type, steps.type_signature.result["update"])(
            lambda state, mean: (state, conclude(mean))
        )
    return ClientWork(steps, initialize, conclude=end, hyperparameters=tuple(optimizer.hyperparameters))


# At the server.


def build_server_work(
    model: PureModel,
    server_optimizer_fn: OptimizerLike | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> ServerWork:
    """An optimizer's step with the mean change, and the aggregation of metrics.

    A mean change that is not finite (no clients, weights that add to zero) changes nothing, the optimizer's state
    included. Assigned weights move by their mean change.

    Args:
        server_optimizer_fn: takes the mean change as a negative gradient. Default: SGD with rate 1, which adds it.
        metrics_aggregator: from a `CountingModel` to the function `aggregate_metrics` of `ServerWork`, or to one that
            gives the metrics alone. Default: `sum_then_finalize`.
    """
    optimizer_fn = build_sgdm(1.0) if server_optimizer_fn is None else server_optimizer_fn
    optimizer = as_optimizer(optimizer_fn, model.trainable_names)
    join_metrics, roles = aggregation_of_metrics(metrics_aggregator, model), model.weight_roles
    constraints = tuple(model.trainable_constraints)  # without the model, `update` has a key (decision 0332)

    @tf_computation
    def update(
        optimizer_state: TensorStructure, weights: ModelWeights, mean_update: ModelWeights
    ) -> tuple[TensorStructure, ModelWeights]:
        finite = all_finite(mean_update)
        gradients = tuple(-u for u in mean_update.trainable)
        state, trainable = optimizer.next(optimizer_state, weights.trainable, gradients)
        new_values = (state, constrained(trainable, constraints), roles.assigned_after(weights, mean_update))
        old_values = (optimizer_state, weights.trainable, weights.non_trainable)
        chosen = tf.nest.map_structure(lambda new, old: tf.where(finite, new, old), new_values, old_values)
        state, trainable, assigned = chosen
        return state, ModelWeights(trainable, assigned)

    def aggregate_metrics(client_states: Value) -> tuple[Value | None, Value]:
        metrics = join_metrics(client_states)
        return metrics if isinstance(metrics, tuple) else (None, metrics)

    weights: Any = model.weights_type
    if isinstance(model, PureModel) and not weights["trainable"].types and not roles.assigned:
        warn_user("the model has no trainable weights, so that training changes nothing")
    return ServerWork(model, optimizer, update, aggregate_metrics)


# A round.


def federated_averaging(
    model: PureModel,
    work: ClientWork,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """The process whose round is: send the weights, do `work` at the clients, join the changes, update the weights.

    Args:
        server_optimizer_fn, metrics_aggregator: as for `build_server_work`.
        model_distributor: a measured process `next : (<S@SERVER,U@SERVER> -> <state,result=U@CLIENTS,measurements>)`
            for the changing weights U. Default: they are broadcast as they are, together with what `work` sends.
        model_aggregator: joins the changes. Default: a weighted mean.
    Raises:
        TypeMismatch: the aggregator is not weighted or gives no update, or the distributor gives other weights.
    """
    server = build_server_work(model, server_optimizer_fn, metrics_aggregator)
    weights_type = changing_type(model)
    trained: Any = work.train.type_signature.result
    check_distributor(model_distributor, weights_type)
    distributor = model_distributor or build_broadcast_process(weights_type)
    aggregator = build_aggregation(model_aggregator, trained["update"], trained["weight"], roles=model.weight_roles)
    initialize, next_round = build_round(
        server.initial_weights,
        _WholeWeights(model, distributor) if model.weight_roles.frozen else distributor,
        work.process(server.aggregate_metrics),
        aggregator,
        _finalizer(server, aggregator, work.conclude),
        work.conclude,
    )
    return server.process(initialize, next_round, client_work=work.hyperparameters)


def build_round(
    initial_weights: Computation,
    distributor: Any,
    client_work: MeasuredProcess,
    aggregator: AggregationProcess,
    finalizer: MeasuredProcess,
    conclude: Computation | None = None,
) -> tuple[Computation, Computation]:
    """(`initialize`, `next`) of the process of these parts, whose types must fit; they are not checked here.

    Args:
        distributor: a measured process, or an object whose `next` is used while a round is traced.
        conclude: as for `ClientWork`.
    """

    @federated_computation
    def initialize() -> Value:
        return first_state(
            federated_eval(initial_weights, SERVER),
            finalizer.initialize(),
            distributor=distributor.initialize(),
            client_work=client_work.initialize(),
            aggregator=aggregator.initialize(),
        )

    *_, data = (p.type for p in client_work.next.module.main.parameters)

    @federated_computation(initialize.type_signature.result, data)
    def next_round(state: Value, data: Value) -> LearningProcessOutput:
        sent = distributor.next(state.distributor, state.global_model_weights)
        worked = client_work.next(state.client_work, sent.result, data)
        joined = aggregator.next(state.aggregator, worked.result.update, worked.result.update_weight)
        concluded = None if conclude is None else federated_map(conclude, (worked.state, joined.result))
        moved = finalizer.next(
            state.finalizer, state.global_model_weights, joined.result if concluded is None else concluded[1]
        )
        new_state = next_state(
            state,
            global_model_weights=moved.result,
            distributor=sent.state,
            client_work=worked.state if concluded is None else concluded[0],
            aggregator=joined.state,
            finalizer=moved.state,
        )
        metrics = round_metrics(
            distributor=sent.measurements,
            client_work=worked.measurements,
            aggregator=joined.measurements,
            finalizer=moved.measurements,
        )
        return LearningProcessOutput(new_state, metrics)

    return initialize, next_round


@attrs.frozen
class _WholeWeights:
    """A distributor that sends the changing weights U, and gives W: at the clients the frozen ones are constants.

    It is used while a computation is traced.
    """

    model: PureModel
    distributor: MeasuredProcess

    @property
    def initialize(self) -> Computation:
        return self.distributor.initialize

    def next(self, state: Value, weights: Value) -> MeasuredProcessOutput:
        sent = self.distributor.next(state, weights)
        return MeasuredProcessOutput(sent.state, whole_weights(self.model, sent.result), sent.measurements)


def _finalizer(server: ServerWork, aggregator: AggregationProcess, conclude: Computation | None) -> FinalizerProcess:
    """The part of a round that gives the change of U to `server.update`; its state is the server optimizer's.

    Args:
        aggregator: its result has the type of the change, unless `conclude` computes the change from the result.
    """
    state_type, weights_type = server.initial_state.type_signature.result, changing_type(server.model)
    output: Any = aggregator.next.type_signature.result
    concluded: Any = None if conclude is None else conclude.type_signature.result
    change_type = output["result"] if concluded is None else FederatedType(concluded[1], SERVER)

    @federated_computation
    def start() -> Value:
        return server.initial_state(server.initial_weights().trainable)

    @federated_computation
    def initialize() -> Value:
        return federated_eval(start, SERVER)

    @federated_computation(FederatedType(state_type, SERVER), FederatedType(weights_type, SERVER), change_type)
    def finalize(state: Value, weights: Value, change: Value) -> MeasuredProcessOutput:
        updated = federated_map(server.update, (state, weights, change))
        return MeasuredProcessOutput(updated[0], updated[1], federated_value((), SERVER))

    return FinalizerProcess(initialize, finalize)

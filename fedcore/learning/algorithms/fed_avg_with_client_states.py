"""Federated averaging whose clients keep a state of the author's own between their rounds."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import WeightedAggregationFactory
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_map, federated_zip
from fedcore.ir import Value
from fedcore.learning.algorithms.client_work import ClientWork, client_steps
from fedcore.learning.algorithms.fed_avg import build_server_work
from fedcore.learning.algorithms.given_parts import build_aggregation
from fedcore.learning.client_state_process import ClientStateOutput, ClientStateProcess
from fedcore.learning.models import PureModel, trace_model
from fedcore.learning.models.frozen_weights import whole_weights
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.templates.state import next_state, round_metrics
from fedcore.learning.templates.training_result import TrainingResult, finite_or_nothing
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.types import CLIENTS, FederatedType, member_of


@attrs.frozen
class _Carry:
    """The values that one local step hands to the next: U as trained so far, the client's own state, metric states."""

    weights: Any
    own: Any
    metrics: Any


@attrs.frozen
class ClientStateResult:
    """The result of a client's work: what counts at the server, and the state that the client keeps."""

    client: TrainingResult
    state: Any


def result_with_state(
    update: TensorStructure, weight: tf.Tensor, report: dict, new_state: TensorStructure, state: TensorStructure
) -> ClientStateResult:
    """The result of a client's work, of its change, weight and report, its new state and the state of before.

    A client whose change, weight or new state is not finite sends zeros with weight 0, and keeps its old `state`. A
    client without examples keeps its old state too.
    """
    result = finite_or_nothing((update, new_state), weight, report)
    client = TrainingResult(result.update[0], result.weight, result.metrics)
    learned = result.weight > 0
    return ClientStateResult(
        client, tf.nest.map_structure(lambda new, old: tf.where(learned, new, old), new_state, state)
    )


def build_fed_avg_with_client_states(
    model_fn: ModelFn,
    local_step: Callable,
    initial_client_state: Callable,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    finish: Callable | None = None,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> ClientStateProcess:
    """Builds federated averaging whose clients train by steps of yours, with a state that each client keeps.

    Types, for weights W, batches B, metric states S of the model, and client states C of any structure:
        local_step            (weights=W, own=C, metrics=S, batch=B, sent=W -> <W,C,S>)
        initial_client_state  (-> C), or (W -> C) of the weights of the client's first round
        finish                (weights=W, own=C, sent=W -> C)
        process               that of `ClientStateProcess`, with these C

    Args:
        model_fn, server_optimizer_fn, client_weighting, model_aggregator, metrics_aggregator: as for
            `build_weighted_fed_avg`.
        local_step: a function of TensorFlow, traced once and run for each batch: from the weights that are trained,
            the client's own state, the metric states, a batch, and the weights that the server sent, to the next
            weights, own state and metric states. `fc.learning.models.gradients_of` computes its gradients.
        initial_client_state: a function of TensorFlow.
        finish: the client's next state, after its last batch. Default: that of the last step.
    Returns:
        A process. A client without examples, or whose change, weight or next state is not finite, keeps its state, and
        adds nothing to the mean. A round without clients leaves the weights as they were.
    Raises:
        TypeMismatch: a function does not return what the types say; or as for `build_weighted_fed_avg`.
    Source:
        McMahan et al. 2017, arXiv:1602.05629, Algorithm 1, with local steps of the caller, such as those of Ditto (Li
        et al. 2021, arXiv:2012.04221) or FedDyn (Acar et al. 2021, arXiv:2111.04263).
    Example:
        >>> model = fc.learning.models.trace_model(model_fn)
        >>> def local_step(weights, own, metrics, batch, sent):
        ...     gradients, _, _, metrics = fc.learning.models.gradients_of(model, weights, metrics, batch)
        ...     moved = tuple(w - 0.1 * g for w, g in zip(weights.trainable, gradients))
        ...     return fc.learning.ModelWeights(moved, weights.non_trainable), own + 1, metrics
        >>> process = fc.learning.algorithms.build_fed_avg_with_client_states(model, local_step, lambda: tf.constant(0))
        >>> process.next(process.initialize(), [client_a], [process.initial_client_state()]).client_states
        [np.int32(2)]
    """
    functions = {"local_step": local_step, "initial_client_state": initial_client_state, "finish": finish}
    for name, function in functions.items():
        if not callable(function) and not (name == "finish" and function is None):
            raise TypeMismatch(f"{name} is a function, not {brief(function)}")
    model = trace_model(model_fn)
    roles = model.weight_roles
    takes_weights = bool(inspect.signature(initial_client_state).parameters)
    initial = tf_computation(initial_client_state, *([model.weights_type] if takes_weights else []))
    client_state_type = initial.type_signature.result

    def begin(weights: ModelWeights, own: TensorStructure) -> _Carry:
        return _Carry(roles.changing(weights), own, model.initial_metrics())

    def step(carry: _Carry, batch: TensorStructure, weights: ModelWeights) -> _Carry:
        current = roles.replace(weights, carry.weights)
        result = convert_function(local_step)(current, carry.own, carry.metrics, batch, weights)
        if not isinstance(result, tuple | list) or len(result) != 3:
            raise TypeMismatch(f"local_step returns (weights, own state, metric states), not {brief(result)}")
        return _Carry(roles.changing(result[0]), *result[1:])

    def end(weights: ModelWeights, carry: _Carry, own: TensorStructure) -> ClientStateResult:
        new_own = carry.own
        if finish is not None:
            new_own = convert_function(finish)(roles.replace(weights, carry.weights), carry.own, weights)
        change = roles.difference(carry.weights, roles.changing(weights))
        return result_with_state(change, *weight_and_report(model, client_weighting, carry.metrics), new_own, own)

    train = client_steps(model, begin, step, end, own=client_state_type)
    return client_state_averaging(
        model,
        ClientWork(train),
        initial,
        server_optimizer_fn,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )


def client_state_averaging(
    model: PureModel,
    work: ClientWork,
    initial_client_state: Computation,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
    reports: Sequence[str] = (),
) -> ClientStateProcess:
    """The process whose round is: send the weights, do `work` with the clients' states, join the changes, update.

    Args:
        work: its `train` is (<W,C,B*> -> ClientStateResult), or (<W,H,C,B*> -> ClientStateResult).
        initial_client_state: (-> C), or (W -> C) of the weights of the client's first round.
        server_optimizer_fn, metrics_aggregator: as for `build_server_work`.
        model_aggregator: joins the changes. Default: a weighted mean.
        reports: names of further fields of the result of `train` that are reports of metrics; a round's
            `metrics.client_work` has their metrics under these names.
    """
    server, roles = build_server_work(model, server_optimizer_fn, metrics_aggregator), model.weight_roles
    trained: Any = work.train.type_signature.result
    aggregator = build_aggregation(model_aggregator, trained.client["update"], trained.client["weight"], roles=roles)
    _, *message_type, client_state_type, batches_type = (p.type for p in work.train.module.main.parameters)
    initialize = server.initialize(aggregator=aggregator, client_work=work.initialize if message_type else None)
    client_types = [FederatedType(member, CLIENTS) for member in (batches_type, client_state_type)]

    @federated_computation(initialize.type_signature.result, *client_types)
    def next_round(state: Value, data: Value, client_states: Value) -> ClientStateOutput:
        message: list[Value] = []
        if message_type:
            message_at_server = federated_map(work.send, state.client_work)
            weights, *message = federated_broadcast(federated_zip((state.global_model_weights, message_at_server)))
        else:
            weights = federated_broadcast(state.global_model_weights)
        results: Any = federated_map(work.train, (whole_weights(model, weights), *message, client_states, data))
        joined = aggregator.next(state.aggregator, results.client.update, results.client.weight)
        client_work, change = state.client_work, joined.result
        if work.conclude is not None:
            client_work, change = federated_map(work.conclude, (client_work, change))
        updated = federated_map(server.update, (state.finalizer, state.global_model_weights, change))  # <O,U>
        reported = {"train": results.client.metrics, **{name: getattr(results, name) for name in reports}}
        metrics = {name: server.aggregate_metrics(report)[1] for name, report in reported.items()}
        new_state = next_state(
            state,
            global_model_weights=updated[1],
            client_work=client_work,
            aggregator=joined.state,
            finalizer=updated[0],
        )
        measured = round_metrics(client_work=federated_zip(metrics), aggregator=joined.measurements)
        return ClientStateOutput(new_state, measured, results.state)

    first = initial_client_state  # (-> C), or, of a server state S, (S -> C)
    if initial_client_state.module.main.parameters:
        state_type = member_of(initialize.type_signature.result)
        frozen = model.frozen_weights.constants
        first = federated_computation(
            lambda s: initial_client_state(roles.join(s.global_model_weights, frozen)), state_type
        )
    return server.process(initialize, next_round, first, kind=ClientStateProcess, client_work=work.hyperparameters)

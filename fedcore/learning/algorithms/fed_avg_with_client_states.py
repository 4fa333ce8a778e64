"""Federated averaging whose clients keep a state of the author's own between their rounds."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from fedcore.aggregators import WeightedAggregationFactory
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.intrinsics import federated_broadcast, federated_eval, federated_map, federated_zip
from fedcore.learning.algorithms.composition import build_aggregation, build_server_work
from fedcore.learning.client_state_process import ClientStateOutput, ClientStateProcess
from fedcore.learning.models import trace_model
from fedcore.learning.templates.state import first_state, next_state, round_metrics
from fedcore.learning.templates.training import weights_type_of
from fedcore.learning.templates.training_result import TrainingResult, finite_or_nothing
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, StructType, Type, explain, fits, member_of


class _Result(NamedTuple):
    client: Any
    state: Any


def build_fed_avg_with_client_states(
    model_fn,
    client_update: Callable,
    initial_client_state: Callable,
    server_optimizer_fn=None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> ClientStateProcess:
    """Builds federated averaging whose clients train as a function of yours says, with a state that each client keeps.

    Types, for weights W, batches B, metric states S of the model, and client states C of any structure:
        client_update         (<W,B*,C> -> <W,C,S>)
        initial_client_state  (-> C), or (W -> C) of the weights of the client's first round
        process               that of `ClientStateProcess`, with these C

    Args:
        model_fn, server_optimizer_fn, client_weighting, model_aggregator, metrics_aggregator: as for
            `build_weighted_fed_avg`.
        client_update: a function of TensorFlow (weights, batches, client state) -> (trained weights, next client
            state, metric states), traced once. `for batch in batches` is a loop of the graph; the model's functions
            and `fc.learning.models.gradients_of` compute its steps.
        initial_client_state: a function of TensorFlow.
    Returns:
        A process. A client without examples, or whose change, weight or next state is not finite, keeps its state, and
        adds nothing to the mean. A round without clients leaves the weights as they were.
    Raises:
        TypeMismatch: `client_update` does not return three such parts; or as for `build_weighted_fed_avg`.
    Source:
        McMahan et al. 2017, arXiv:1602.05629, Algorithm 1, with the client update of the caller: that of Ditto (Li et
        al. 2021, arXiv:2012.04221), of FedRep (Collins et al. 2021, arXiv:2102.07078), or of one's own.
    Example:
        >>> model = fc.learning.models.trace_model(model_fn)
        >>> def client_update(weights, batches, rounds):
        ...     metrics = model.initial_metrics()
        ...     for batch in batches:
        ...         gradients, _, _, metrics = fc.learning.models.gradients_of(model, weights, metrics, batch)
        ...         steps = zip(weights.trainable, gradients)
        ...         weights = fc.learning.ModelWeights(tuple(w - 0.1 * g for w, g in steps), weights.non_trainable)
        ...     return weights, rounds + 1, metrics
        >>> process = fc.learning.algorithms.build_fed_avg_with_client_states(
        ...     model, client_update, lambda: tf.zeros([]))
        >>> process.next(process.initialize(), [client_a], [process.initial_client_state()]).client_states
        [np.float32(1.0)]
    """
    for name, function in (("client_update", client_update), ("initial_client_state", initial_client_state)):
        if not callable(function):
            raise TypeMismatch(f"{name} is a function, not {brief(function)}")
    model = trace_model(model_fn)
    roles, weights_type = model.weight_roles, weights_type_of(model)
    server = build_server_work(model, server_optimizer_fn, metrics_aggregator)
    batches_type = SequenceType(model.batch_type)
    takes_weights = bool(inspect.signature(initial_client_state).parameters)
    initial = tf_computation(initial_client_state, *([weights_type] if takes_weights else []))
    client_state_type = initial.type_signature.result
    update = tf_computation(client_update, weights_type, batches_type, client_state_type)
    _check_update(update, weights_type, client_state_type)

    @tf_computation(weights_type, client_state_type, update.type_signature.result)
    def finish(weights, own, result):
        trained, after, metrics = result
        change = roles.difference(roles.changing(trained), roles.changing(weights))
        result = finite_or_nothing((change, after), *weight_and_report(model, client_weighting, metrics))
        client = TrainingResult(result.update[0], result.weight, result.metrics)
        state = tf.nest.map_structure(lambda a, b: tf.where(result.weight > 0, a, b), after, own)
        return _Result(client, state)

    @federated_computation(weights_type, batches_type, client_state_type)
    def train(weights, batches, own):
        return finish(weights, own, update(weights, batches, own))

    trained: Any = train.type_signature.result
    aggregator = build_aggregation(model_aggregator, trained.client["update"], trained.client["weight"], roles=roles)

    @federated_computation
    def initialize():
        start = federated_eval(server.start, SERVER)
        return first_state(start[0], start[1], aggregator=aggregator.initialize())

    clients = [FederatedType(member, CLIENTS) for member in (batches_type, client_state_type)]

    @federated_computation(initialize.type_signature.result, *clients)
    def next_round(state, data, client_states):
        sent = federated_broadcast(state.global_model_weights)
        results: Any = federated_map(train, (sent, data, client_states))
        mean = aggregator.next(state.aggregator, results.client.update, results.client.weight)
        updated = federated_map(server.update, (state.finalizer, state.global_model_weights, mean.result))
        _, metrics = server.aggregate_metrics(results.client.metrics)
        after = next_state(state, global_model_weights=updated[1], aggregator=mean.state, finalizer=updated[0])
        measured = round_metrics(client_work=federated_zip({"train": metrics}), aggregator=mean.measurements)
        return ClientStateOutput(after, measured, results.state)

    if takes_weights:
        state_type = member_of(initialize.type_signature.result)
        first = federated_computation(lambda state: initial(state.global_model_weights), state_type)
    else:
        first = initial
    return ClientStateProcess(initialize, next_round, first, hyperparameters={"finalizer": server.hyperparameters})


def _check_update(update: Computation, weights_type: Type, client_state_type: Type) -> None:
    """Raises TypeMismatch unless a client update returns trained weights, a client state, and metric states."""
    result = update.type_signature.result
    if not isinstance(result, StructType) or len(result) != 3:
        raise TypeMismatch(
            f"client_update returns (trained weights, next client state, metric states), but has the type {result}"
        )
    parts = (("weights", weights_type, "it takes"), ("client state", client_state_type, "initial_client_state"))
    for (part, want, label), have in zip(parts, result.types, strict=False):
        if not fits(have, want):
            title = f"client_update does not return a {part} of the type that it takes"
            raise TypeMismatch(explain(title, have, want, have_label="it returns", want_label=label))

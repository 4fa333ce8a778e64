"""Mime Lite: clients step with the statistics of one optimizer that the server keeps."""

from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import UnweightedAggregationFactory, WeightedAggregationFactory
from fedcore.computation import federated_computation, tf_computation
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_mean,
    federated_zip,
    sequence_reduce,
)
from fedcore.learning.algorithms.client_result import all_finite, finite_or_nothing, zeros_unless
from fedcore.learning.algorithms.client_work import difference, weights_type_of
from fedcore.learning.algorithms.composition import (
    build_server_work,
    first_state,
    next_state,
    round_metrics,
    unweighted,
    weighted,
)
from fedcore.learning.algorithms.fed_sgd import build_gradient
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.gradients import gradients_of
from fedcore.learning.optimizers import Optimizer, as_optimizer
from fedcore.learning.process import LearningProcess, LearningProcessOutput
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, Type


@attrs.frozen
class _Carry:
    weights: Any
    metrics: Any


@attrs.frozen
class _Result:
    """The change of a client, its weight and metrics, and the mean gradient of its examples at the first weights."""

    client: Any
    gradients: Any
    examples: Any


def _build_training(model: PureModel, optimizer: Optimizer, weighting: Weighting, weights_type: Type, state_type: Type):
    """The computation `(<W,S,B*> -> _Result)`: local steps whose statistics S stay as they are."""
    gradient = build_gradient(model, weights_type)

    @tf_computation
    def begin(weights):
        return _Carry(weights, model.initial_metrics())

    @tf_computation
    def step(carry, batch, state):
        gradients, _, non_trainable, metrics = gradients_of(model, carry.weights, carry.metrics, batch)
        _, trainable = optimizer.next(state, carry.weights.trainable, gradients)
        return _Carry(ModelWeights(trainable, non_trainable), metrics)

    @tf_computation
    def finish(before, carry, full):
        finite = all_finite(full.gradients)
        examples = tf.cast(full.metrics["num_examples"][0], tf.float32)
        weight, report = weight_and_report(model, weighting, carry.metrics)
        change = finite_or_nothing(difference(carry.weights, before), weight, report, full.gradients)
        return _Result(change, *zeros_unless(finite, (full.gradients, examples)))

    @federated_computation(weights_type, state_type, SequenceType(model.batch_type))
    def train(weights, state, batches):
        trained = sequence_reduce(batches, begin(weights), lambda carry, batch: step(carry, batch, state))
        return finish(weights, trained, gradient(weights, batches))

    return train


def _build_learning(optimizer: Optimizer):
    """`(<S,W,mean gradient> -> S)`: the statistics after a round; a gradient that is not finite leaves them."""

    @tf_computation
    def learn(state, weights, gradients):
        after, _ = optimizer.next(state, weights.trainable, gradients)
        finite = all_finite(gradients)
        return tf.nest.map_structure(lambda a, b: tf.where(finite, a, b), after, state)

    return learn


def build_weighted_mime_lite(
    model_fn,
    base_optimizer,
    server_optimizer=None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> LearningProcess:
    """Builds Mime Lite: local steps of `base_optimizer` with its statistics frozen for the round.

    Types and other arguments: those of `build_weighted_fed_avg`; `state.client_work` is the state of the base
    optimizer, which is sent with the weights. A client sends the mean gradient of its examples too.

    Args:
        base_optimizer: its statistics move once a round, by the mean gradient over all examples at the weights that
            the round started from.
        server_optimizer: takes the mean change as a negative gradient. Default: SGD with rate 1, which adds it.
    Returns:
        A `LearningProcess`. A round without examples leaves the weights and the statistics as they were.
    Raises:
        FedcoreError: as for `build_weighted_fed_avg`.
    Source:
        Karimireddy et al. 2020, "Mime: mimicking centralized stochastic algorithms in federated learning",
        arXiv:2008.03606, Algorithm 1 (MimeLite). Changes and gradients are averaged over examples, where the paper
        averages over clients, and a server optimizer takes the mean change, which the paper adds.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_mime_lite(model_fn, keras.optimizers.SGD(0.1, momentum=0.9))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    model, base = trace_model(model_fn), as_optimizer(base_optimizer)
    server = build_server_work(model, server_optimizer, metrics_aggregator)
    weights_type = weights_type_of(model)
    base_start = tf_computation(lambda: base.initialize(model.initial_weights().trainable))
    state_type = base_start.type_signature.result
    train = _build_training(model, base, client_weighting, weights_type, state_type)
    client: Any = train.type_signature.result["client"]
    aggregation = weighted(model_aggregator).create(client["update"], client["weight"])
    learn = _build_learning(base)

    @federated_computation
    def initialize():
        first = federated_eval(server.start, SERVER)
        return first_state(
            first[0], first[1], client_work=federated_eval(base_start, SERVER), aggregator=aggregation.initialize()
        )

    @federated_computation(initialize.type_signature.result, FederatedType(SequenceType(model.batch_type), CLIENTS))
    def next_round(state, data):
        sent = federated_broadcast(federated_zip((state.global_model_weights, state.client_work)))
        results = federated_map(train, (sent[0], sent[1], data))
        aggregated = aggregation.next(state.aggregator, results.client.update, results.client.weight)
        updated = federated_map(server.update, (state.finalizer, state.global_model_weights, aggregated.result))
        gradients = federated_mean(results.gradients, results.examples)
        _, train_metrics = server.aggregate_metrics(results.client.metrics)
        after = next_state(
            state,
            global_model_weights=updated[1],
            client_work=federated_map(learn, (state.client_work, state.global_model_weights, gradients)),
            aggregator=aggregated.state,
            finalizer=updated[0],
        )
        metrics = round_metrics(client_work=federated_zip({"train": train_metrics}), aggregator=aggregated.measurements)
        return LearningProcessOutput(after, metrics)

    names = {"client_work": tuple(base.hyperparameters), "finalizer": server.hyperparameters}
    return LearningProcess(initialize, next_round, names)


def build_unweighted_mime_lite(
    model_fn,
    base_optimizer,
    server_optimizer=None,
    *,
    model_aggregator: UnweightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> LearningProcess:
    """Builds Mime Lite in which every client's change counts the same.

    Types and other arguments: those of `build_weighted_mime_lite`.

    Args:
        model_aggregator: as for `build_unweighted_fed_avg`.
    Returns:
        A `LearningProcess`. A round without examples leaves the weights and the statistics as they were.
    Raises:
        FedcoreError: as for `build_unweighted_fed_avg`.
    Source:
        Karimireddy et al. 2020, arXiv:2008.03606, Algorithm 1 (MimeLite). Gradients are averaged over examples, where
        the paper averages over clients, and a server optimizer takes the mean change, which the paper adds.
    Example:
        >>> process = fc.learning.algorithms.build_unweighted_mime_lite(
        ...     model_fn, keras.optimizers.SGD(0.1, momentum=0.9))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    return build_weighted_mime_lite(
        model_fn,
        base_optimizer,
        server_optimizer,
        client_weighting=ClientWeighting.UNIFORM,
        model_aggregator=unweighted(model_aggregator),
        metrics_aggregator=metrics_aggregator,
    )

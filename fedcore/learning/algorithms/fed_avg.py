"""Federated averaging.

Source: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
arXiv:1602.05629, Algorithm 1; with a server optimizer, Reddi et al. 2021, arXiv:2003.00295, Algorithm 1.
"""

import tensorflow as tf

from fedcore.aggregators import MeanFactory, WeightedAggregationFactory
from fedcore.computation import federated_computation, tf_computation
from fedcore.intrinsics import federated_broadcast, federated_eval, federated_map, federated_value, federated_zip
from fedcore.learning.algorithms.client_work import build_training
from fedcore.learning.metrics import sum_then_finalize
from fedcore.learning.models import ModelWeights, trace_model
from fedcore.learning.optimizers import as_optimizer, build_sgdm
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.weighting import ClientWeighting
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType


def build_weighted_fed_avg(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn=None,
    *,
    client_weighting: ClientWeighting = ClientWeighting.NUM_EXAMPLES,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> LearningProcess:
    """Builds federated averaging: clients train, the server adds their mean change.

    Types, for weights W and batches B:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{B*}@CLIENTS> -> <state=State@SERVER,metrics=M@SERVER>)

    Args:
        model_fn: makes the model; called once, and its initialisers are traced.
        client_optimizer_fn: the optimizer of the local steps; a Keras one is accepted.
        server_optimizer_fn: takes the mean change as a negative gradient. Default: SGD with rate 1.
        client_weighting: by examples, or all alike.
        model_aggregator: joins changes of type W, weighted. Default: a weighted mean.
        metrics_aggregator: joins the clients' metrics. Default: they are added, then computed.
    Returns:
        A `LearningProcess`. A round without clients, or whose weights are all 0, leaves W as it was. A client
        whose change is not finite has weight 0.
    Raises:
        TypeMismatch: the aggregator does not take a weighted W.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    model = trace_model(model_fn)
    client_optimizer = as_optimizer(client_optimizer_fn)
    server_optimizer = as_optimizer(server_optimizer_fn or build_sgdm(1.0))
    initial_weights = tf_computation(lambda: model.initial_weights())
    weights_type = initial_weights.type_signature.result
    train = build_training(model, client_optimizer, client_weighting, weights_type)
    aggregation = (model_aggregator or MeanFactory()).create(
        train.type_signature.result["update"], train.type_signature.result["weight"]
    )
    aggregate_metrics = (metrics_aggregator or sum_then_finalize)(model)

    @tf_computation
    def initial_server():
        weights = model.initial_weights()
        return weights, server_optimizer.initialize(weights.trainable)

    @tf_computation
    def update_server(optimizer_state, weights, mean_update):
        leaves = (*mean_update.trainable, *mean_update.non_trainable)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves])
        gradients = tuple(-u for u in mean_update.trainable)
        state, trainable = server_optimizer.next(optimizer_state, weights.trainable, gradients)
        moved = tuple(w + u for w, u in zip(weights.non_trainable, mean_update.non_trainable, strict=True))
        after = (state, trainable, moved)
        before = (optimizer_state, weights.trainable, weights.non_trainable)
        state, trainable, moved = tf.nest.map_structure(lambda a, b: tf.where(finite, a, b), after, before)
        return state, ModelWeights(trainable, moved)

    add_one = tf_computation(lambda round_number: round_number + 1)
    start = tf_computation(lambda: tf.constant(0, tf.int64))

    @federated_computation
    def initialize():
        nothing = federated_value((), SERVER)
        server = federated_eval(initial_server, SERVER)
        return federated_zip(
            LearningAlgorithmState(
                global_model_weights=server[0],
                distributor=nothing,
                client_work=nothing,
                aggregator=aggregation.initialize(),
                finalizer=server[1],
                round=federated_eval(start, SERVER),
                seed=federated_eval(start, SERVER),
            )
        )

    @federated_computation(initialize.type_signature.result, FederatedType(SequenceType(model.batch_type), CLIENTS))
    def next_round(state, data):
        weights_at_clients = federated_broadcast(state.global_model_weights)
        results = federated_map(train, (weights_at_clients, data))
        aggregated = aggregation.next(state.aggregator, results.update, results.weight)
        updated = federated_map(update_server, (state.finalizer, state.global_model_weights, aggregated.result))
        _, train_metrics = aggregate_metrics(results.metrics)
        after = LearningAlgorithmState(
            global_model_weights=updated[1],
            distributor=state.distributor,
            client_work=state.client_work,
            aggregator=aggregated.state,
            finalizer=updated[0],
            round=federated_map(add_one, state.round),
            seed=state.seed,
        )
        metrics = {
            "distributor": federated_value((), SERVER),
            "client_work": federated_zip({"train": train_metrics}),
            "aggregator": aggregated.measurements,
            "finalizer": federated_value((), SERVER),
        }
        return LearningProcessOutput(federated_zip(after), federated_zip(metrics))

    return LearningProcess(initialize, next_round)

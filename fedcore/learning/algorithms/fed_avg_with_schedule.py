"""Federated averaging whose clients' learning rate changes from round to round."""

from collections.abc import Callable

import tensorflow as tf

from fedcore.aggregators import WeightedAggregationFactory
from fedcore.computation import tf_computation
from fedcore.errors import FedcoreError
from fedcore.learning.algorithms.client_work import ClientWork, build_training
from fedcore.learning.algorithms.composition import compose_learning_process, initial_weights_of, weighted
from fedcore.learning.models import trace_model
from fedcore.learning.optimizers import as_optimizer, build_sgdm
from fedcore.learning.process import LearningProcess
from fedcore.learning.weighting import ClientWeighting, Weighting


def build_weighted_fed_avg_with_optimizer_schedule(
    model_fn,
    client_learning_rate_fn: Callable,
    client_optimizer_fn,
    server_optimizer_fn=None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor=None,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> LearningProcess:
    """Builds federated averaging with a client learning rate that depends on the round.

    Types: as `build_weighted_fed_avg`, whose other arguments it takes; `state.client_work` is <round=int64>.

    Args:
        client_learning_rate_fn: round number (int64 tensor, from 0) -> learning rate, in a graph at the server. A
            Keras schedule is one.
        client_optimizer_fn: an optimizer with a learning rate, which is replaced; its other numbers stay.
    Raises:
        FedcoreError: the client optimizer has no learning rate in its state.
    Example:
        >>> process = build_weighted_fed_avg_with_optimizer_schedule(
        ...     model_fn, lambda r: 0.1 * 0.99 ** tf.cast(r, tf.float32), lambda: keras.optimizers.SGD())
    """
    optimizer = as_optimizer(client_optimizer_fn)
    if "learning_rate" not in optimizer.hyperparameters:
        raise FedcoreError("client_optimizer_fn: the optimizer keeps no learning_rate in its state to be scheduled")
    model = trace_model(model_fn)
    start = tf_computation(lambda: {"round": tf.constant(0, tf.int64)})

    @tf_computation(start.type_signature.result)
    def send(state):
        rate = tf.cast(tf.convert_to_tensor(client_learning_rate_fn(state["round"])), tf.float32)
        return {"learning_rate": tf.reshape(rate, [])}

    work = ClientWork(
        initialize=start,
        send=send,
        train=build_training(
            model,
            optimizer,
            client_weighting,
            initial_weights_of(model).type_signature.result,
            send.type_signature.result,
        ),
        advance=tf_computation(start.type_signature.result)(lambda state: {"round": state["round"] + 1}),
    )
    return compose_learning_process(
        model,
        work,
        as_optimizer(server_optimizer_fn or build_sgdm(1.0)),
        model_distributor=model_distributor,
        model_aggregator=weighted(model_aggregator, "build_weighted_fed_avg_with_optimizer_schedule"),
        metrics_aggregator=metrics_aggregator,
    )

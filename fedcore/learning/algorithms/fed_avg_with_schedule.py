"""Federated averaging whose clients' learning rate changes from round to round."""

from collections.abc import Callable

import tensorflow as tf

from fedcore.aggregators import WeightedAggregationFactory
from fedcore.computation import tf_computation
from fedcore.errors import FedcoreError
from fedcore.learning.algorithms.client_work import ClientWork, build_training, weights_type_of
from fedcore.learning.algorithms.composition import compose_learning_process
from fedcore.learning.models import trace_model
from fedcore.learning.optimizers import as_optimizer
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

    Types and other arguments: those of `build_weighted_fed_avg`; `state.client_work` is <round=int64>.

    Args:
        client_learning_rate_fn: round number (int64 tensor, from 0) -> learning rate, in a graph at the server. A
            Keras schedule is one.
        client_optimizer_fn: an optimizer with a learning rate, which is replaced; its other numbers stay.
    Returns:
        A `LearningProcess`. A round without clients counts for the schedule and leaves the weights as they were.
    Raises:
        FedcoreError: the client optimizer has no learning rate in its state; or as for `build_weighted_fed_avg`.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_avg_with_optimizer_schedule(
        ...     model_fn, keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), lambda: keras.optimizers.SGD())
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> state.client_work['round']
        np.int64(1)
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

    hparams_type = send.type_signature.result
    work = ClientWork(
        initialize=start,
        send=send,
        train=build_training(model, optimizer, client_weighting, weights_type_of(model), hparams_type),
        advance=tf_computation(start.type_signature.result)(lambda state: {"round": state["round"] + 1}),
    )
    return compose_learning_process(
        model,
        work,
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )

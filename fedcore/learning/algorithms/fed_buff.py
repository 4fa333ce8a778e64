"""Buffered asynchronous federated averaging (FedBuff)."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.aggregators import UnweightedAggregationFactory
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.intrinsics import federated_broadcast, federated_map, federated_zip
from fedcore.ir import Value
from fedcore.learning.algorithms.fed_avg import build_server_work, local_training
from fedcore.learning.algorithms.given_parts import adapt_unweighted, build_aggregation
from fedcore.learning.asynchronous_process import AsynchronousProcess, client_start_type
from fedcore.learning.models import trace_model
from fedcore.learning.models.frozen_weights import changing_type, whole_weights
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningProcessOutput
from fedcore.learning.templates.state import next_state, round_metrics
from fedcore.learning.weighting import ClientWeighting
from fedcore.types import CLIENTS, FederatedType, SequenceType


def inverse_square_root(staleness: tf.Tensor) -> tf.Tensor:
    """1 / sqrt(1 + staleness)."""
    return tf.math.rsqrt(1.0 + tf.cast(staleness, tf.float32))


def build_fed_buff(
    model_fn: ModelFn,
    client_optimizer_fn: OptimizerLike,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    staleness_scale: Callable | None = inverse_square_root,
    model_aggregator: UnweightedAggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> AsynchronousProcess:
    """Builds federated averaging whose clients may have begun from older models: FedBuff.

    Types, for changing weights U, batches B and metrics M of the model:
        process  that of `AsynchronousProcess`, with these U and M

    A client trains from the model that it began with; its change is scaled by its staleness and added to the others'.
    The server adds the mean over the buffer to the newest model. `fc.learning.programs.train` needs a
    `fc.simulation.BufferedClock`, which says who fills the buffer and when; without one all staleness is 0.

    Args:
        model_fn, client_optimizer_fn, server_optimizer_fn, metrics_aggregator: as for `build_weighted_fed_avg`.
        staleness_scale: a function of TensorFlow, from an int32 staleness, 0 or more, to the factor of a client's
            change. None: no scaling, as Algorithm 1 is written. Default: 1 / sqrt(1 + staleness).
        model_aggregator: as for `build_unweighted_fed_avg`. Default: the mean over the clients that have examples and a
            finite change.
    Returns:
        A process. A round without clients leaves the weights as they were.
    Raises:
        TypeMismatch: `staleness_scale` is no function, or returns no number; or as for `build_unweighted_fed_avg`.
    Source:
        Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", arXiv:2106.06639,
        Algorithm 1.
    Example:
        >>> process = fc.learning.algorithms.build_fed_buff(model_fn, lambda: keras.optimizers.SGD(0.1))
        >>> devices = fc.simulation.build_devices(data.client_ids, work_s=60, seed=0)
        >>> clock = fc.simulation.BufferedClock(devices, buffer_size=1, concurrency=2, seed=0)
        >>> history = fc.learning.programs.train(process, data, 3, clock=clock, seed=0)
        >>> history["clock/staleness"]
        [0.0, 1.0, 1.0]
    """
    if staleness_scale is not None and not callable(staleness_scale):
        raise TypeMismatch(f"staleness_scale is a function or None, not {brief(staleness_scale)}")
    model = trace_model(model_fn)
    work = local_training(model, client_optimizer_fn, ClientWeighting.UNIFORM)
    server = build_server_work(model, server_optimizer_fn, metrics_aggregator)
    trained: Any = work.train.type_signature.result
    aggregator = build_aggregation(
        adapt_unweighted(model_aggregator), trained["update"], trained["weight"], roles=model.weight_roles
    )

    @tf_computation(trained["update"], "int32")
    def scale(update: ModelWeights, staleness: tf.Tensor) -> ModelWeights:
        if staleness_scale is None:
            return update
        factor = tf.convert_to_tensor(convert_function(staleness_scale)(staleness))
        if not factor.dtype.is_floating or factor.shape.rank != 0:
            raise TypeMismatch(f"staleness_scale returns a float, not {factor.dtype.name}{factor.shape}")
        return tf.nest.map_structure(lambda u: u * tf.cast(factor, u.dtype), update)

    initialize = server.initialize(client_work=work.initialize, aggregator=aggregator)

    batches = FederatedType(SequenceType(model.batch_type), CLIENTS)
    starts = FederatedType(client_start_type(changing_type(model)), CLIENTS)

    @federated_computation(initialize.type_signature.result, batches, starts)
    def next_round(state: Value, data: Value, client_starts: Value) -> LearningProcessOutput:
        hyperparameters = federated_broadcast(federated_map(work.send, state.client_work))
        weights = whole_weights(model, federated_map(lambda start: start.weights, client_starts))
        results: Any = federated_map(work.train, (weights, hyperparameters, data))
        updates = federated_map(lambda update, start: scale(update, start.staleness), (results.update, client_starts))
        mean = aggregator.next(state.aggregator, updates, results.weight)
        updated = federated_map(server.update, (state.finalizer, state.global_model_weights, mean.result))  # <O,U>
        _, metrics = server.aggregate_metrics(results.metrics)
        new_state = next_state(
            state,
            global_model_weights=updated[1],
            client_work=federated_map(work.advance, state.client_work),
            aggregator=mean.state,
            finalizer=updated[0],
        )
        measured = round_metrics(client_work=federated_zip({"train": metrics}), aggregator=mean.measurements)
        return LearningProcessOutput(new_state, measured)

    return server.process(initialize, next_round, kind=AsynchronousProcess, client_work=work.hyperparameters)

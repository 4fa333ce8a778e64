"""Federated averaging of encoded changes with error feedback; clients keep what their codes left out."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.aggregators.encoders.encoded_values import EncoderFn, value_codec
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import TypeMismatch
from fedcore.intrinsics import (
    federated_broadcast,
    federated_map,
    federated_mean,
    federated_random_seed,
    federated_zip,
    message,
)
from fedcore.ir import Value
from fedcore.learning.algorithms.fed_avg import build_server_work, local_training
from fedcore.learning.client_state_process import ClientStateOutput, ClientStateProcess
from fedcore.learning.models import trace_model
from fedcore.learning.models.frozen_weights import whole_weights
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.templates.state import next_state, round_metrics
from fedcore.learning.templates.training_result import all_finite
from fedcore.learning.weighting import ClientWeighting, Weighting
from fedcore.types import CLIENTS, FederatedType, SequenceType


def build_fed_avg_with_error_feedback(
    model_fn: ModelFn,
    client_optimizer_fn: OptimizerLike,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    encoder_fn: EncoderFn,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> ClientStateProcess:
    """Builds federated averaging whose clients send codes, and add to their next change what a code left out.

    Types, for the changing weights U, batches B and metrics M of the model:
        initialize            (-> State@SERVER)
        initial_client_state  (-> U)
        next                  (<State@SERVER,{B*}@CLIENTS,{U}@CLIENTS> ->
                               <state=State@SERVER,metrics=M@SERVER,client_states={U}@CLIENTS>)

    Args:
        model_fn, client_optimizer_fn, server_optimizer_fn, client_weighting, metrics_aggregator: as for
            `build_weighted_fed_avg`.
        encoder_fn: as for `fc.aggregators.EncodedSumFactory`. A biased encoder such as `top_k` converges only with
            error feedback.
    Returns:
        A process; a client's state begins with zeros. A client without examples, or whose change is not finite, keeps
        its state. A round without clients leaves the weights as they were. The mean of the decoded changes is weighted.
    Raises:
        TypeMismatch: the function returns no encoder, or an adaptive one.
        FedcoreError: as for `build_weighted_fed_avg`.
    Source:
        Karimireddy et al. 2019, "Error feedback fixes SignSGD and other gradient compression schemes",
        arXiv:1901.09847, Algorithm 2; here, a change is a client's work of a round, not a gradient.
    Example:
        >>> process = fc.learning.algorithms.build_fed_avg_with_error_feedback(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1), encoder_fn=lambda spec: fc.aggregators.encoders.top_k(0.5))
        >>> states = [process.initial_client_state() for _ in range(2)]
        >>> state, metrics, states = process.next(process.initialize(), [client_a, client_b], states)
    """
    model = trace_model(model_fn)
    work = local_training(model, client_optimizer_fn, client_weighting)
    trained: Any = work.train.type_signature.result
    update_type = trained["update"]
    server = build_server_work(model, server_optimizer_fn, metrics_aggregator)
    codec = value_codec(encoder_fn, update_type, "build_fed_avg_with_error_feedback")
    if codec.is_adaptive:
        raise TypeMismatch("build_fed_avg_with_error_feedback takes no adaptive encoders")

    @tf_computation
    def initial_client_state() -> ModelWeights:
        return tf.nest.map_structure(tf.zeros_like, model.initial_changing_weights())

    @tf_computation(update_type, update_type)
    def add(update: ModelWeights, left_out: ModelWeights) -> ModelWeights:
        return tf.nest.map_structure(lambda u, e: u + e, update, left_out)

    @tf_computation(update_type, update_type, update_type, "float32")
    def left_out_after(
        corrected: ModelWeights, decoded: ModelWeights, left_out: ModelWeights, weight: tf.Tensor
    ) -> ModelWeights:
        counts = (weight > 0) & all_finite((corrected, decoded))
        return tf.nest.map_structure(lambda c, d, old: tf.where(counts, c - d, old), corrected, decoded, left_out)

    initialize = server.initialize(client_work=work.initialize)

    batches = FederatedType(SequenceType(model.batch_type), CLIENTS)

    @federated_computation(initialize.type_signature.result, batches, FederatedType(update_type, CLIENTS))
    def next_round(state: Value, data: Value, client_states: Value) -> ClientStateOutput:
        hyperparameters = federated_map(work.send, state.client_work)
        sent = federated_broadcast(federated_zip((state.global_model_weights, hyperparameters)))
        results: Any = federated_map(work.train, (whole_weights(model, sent[0]), sent[1], data))
        corrected = federated_map(add, (results.update, client_states))
        codes = federated_map(
            lambda value, seed: codec.encode(value, seed, ())[0], (corrected, federated_random_seed(CLIENTS))
        )
        # The client decodes its own code, as the server does, to learn what the code left out.
        own = federated_map(lambda code: codec.decode(code, ()), codes)
        left_out = federated_map(left_out_after, (corrected, own, client_states, results.weight))
        # The message holds the code and the weight: the server decodes and weights the change, which does not cross.
        messages = federated_map(lambda code, weight: message((code, weight)), (codes, results.weight))
        decoded = federated_map(lambda pair: codec.decode(pair[0], ()), messages)
        mean = federated_mean(decoded, federated_map(lambda pair: pair[1], messages))
        updated = federated_map(server.update, (state.finalizer, state.global_model_weights, mean))  # <O,U>
        _, train_metrics = server.aggregate_metrics(results.metrics)
        new_state = next_state(
            state,
            global_model_weights=updated[1],
            client_work=federated_map(work.advance, state.client_work),
            finalizer=updated[0],
        )
        metrics = round_metrics(client_work=federated_zip({"train": train_metrics}))
        return ClientStateOutput(new_state, metrics, left_out)

    return server.process(
        initialize, next_round, initial_client_state, kind=ClientStateProcess, client_work=work.hyperparameters
    )

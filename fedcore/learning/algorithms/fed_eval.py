"""Federated evaluation."""

import tensorflow as tf

from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_random_seed,
    federated_value,
    federated_zip,
    generic_plus,
)
from fedcore.learning.algorithms.client_work import build_evaluation
from fedcore.learning.metrics import sum_then_finalize
from fedcore.learning.models import PureModel, trace_model
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType


def build_fed_eval(model_fn) -> LearningProcess:
    """Builds federated evaluation: every client computes the metrics of the model on its data.

    Types, for weights W, batches B and metrics M of the model:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{B*}@CLIENTS> -> <state=State@SERVER,metrics=<client_work=<eval=E>,…>@SERVER>)
        E           <current_round_metrics=M,total_rounds_metrics=M>: of this round, and of all so far
        State       <global_model_weights=W,client_work=…,…>: the total of the clients' reports in `client_work`.

    Args:
        model_fn: makes the model, or a `PureModel`; the state starts from its initial weights.
    Returns:
        A `LearningProcess`; put a model into its state with `set_model_weights`. No clients: counts of 0, a loss of
        NaN.
    Raises:
        TracingError: `model_fn` makes no model of `fc.learning`.
    Example:
        >>> evaluation = fc.learning.algorithms.build_fed_eval(model_fn)
        >>> weights = fc.learning.ModelWeights((np.ones([2, 1], np.float32), np.zeros([1], np.float32)), ())
        >>> evaluated = evaluation.set_model_weights(evaluation.initialize(), weights)
        >>> evaluated, metrics = evaluation.next(evaluated, [client_a, client_b])
        >>> metrics['client_work']['eval']['current_round_metrics']['loss']
        np.float32(0.0)
    """
    model = trace_model(model_fn)
    initial_weights = tf_computation(lambda: model.initial_weights())
    evaluate = build_evaluation(model, initial_weights.type_signature.result)
    aggregate_metrics = sum_then_finalize(model)
    finalize = tf_computation(lambda state: model.finalize_metrics(state))
    add_one = tf_computation(lambda round_number: round_number + 1)
    initialize = _build_initialize(model, initial_weights)

    @federated_computation(initialize.type_signature.result, FederatedType(SequenceType(model.batch_type), CLIENTS))
    def next_round(state, data):
        weights_at_clients = federated_broadcast(state.global_model_weights)
        summed, current = aggregate_metrics(federated_map(evaluate, (weights_at_clients, data)))
        total = federated_map(lambda a, b: generic_plus(a, b), (state.client_work, summed))
        nothing = federated_value((), SERVER)
        after = LearningAlgorithmState(
            global_model_weights=state.global_model_weights,
            distributor=state.distributor,
            client_work=total,
            aggregator=state.aggregator,
            finalizer=state.finalizer,
            round=federated_map(add_one, state.round),
            seed=state.seed,
        )
        metrics = {
            "distributor": nothing,
            "client_work": federated_zip(
                {"eval": {"current_round_metrics": current, "total_rounds_metrics": federated_map(finalize, total)}}
            ),
            "aggregator": nothing,
            "finalizer": nothing,
        }
        return LearningProcessOutput(federated_zip(after), federated_zip(metrics))

    return LearningProcess(initialize, next_round)


def _build_initialize(model: PureModel, initial_weights: Computation) -> Computation:
    """`(-> State@SERVER)`, with the total of no clients."""
    # Reports are added, so zeros are the total of no clients; the report of a client without data need not be zeros.
    no_metrics = tf_computation(
        lambda: tf.nest.map_structure(tf.zeros_like, model.report_metrics(model.initial_metrics()))
    )
    start = tf_computation(lambda: tf.constant(0, tf.int64))

    @federated_computation
    def initialize():
        nothing = federated_value((), SERVER)
        return federated_zip(
            LearningAlgorithmState(
                global_model_weights=federated_eval(initial_weights, SERVER),
                distributor=nothing,
                client_work=federated_eval(no_metrics, SERVER),
                aggregator=nothing,
                finalizer=nothing,
                round=federated_eval(start, SERVER),
                seed=federated_random_seed(SERVER),
            )
        )

    return initialize

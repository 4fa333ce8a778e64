"""FedDyn: each client's loss gains terms that move its minimum to that of the mean loss of all clients."""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import SumFactory, as_weighted_aggregator
from fedcore.computation import tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.algorithms.client_work import ClientWork, Steps, begin_without_optimizer, client_steps, descend
from fedcore.learning.algorithms.fed_avg_with_client_states import (
    ClientStateResult,
    client_state_averaging,
    result_with_state,
)
from fedcore.learning.client_state_process import ClientStateProcess
from fedcore.learning.models import ModelWeights, trace_model
from fedcore.learning.models.frozen_weights import changing_type
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.templates.training_result import at_least_float32
from fedcore.learning.weighting import ClientWeighting, weight_and_report
from fedcore.scalars import real_number, whole_number


@attrs.frozen
class _Update:
    """A client's change of U and 1.0, which the server adds up; zeros of a client that does not count."""

    change: Any
    clients: Any


def build_fed_dyn(
    model_fn: ModelFn,
    regularization: float,
    client_learning_rate: float,
    num_clients: int,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> ClientStateProcess:
    """Builds FedDyn: a client descends on its loss - <g_k, w> + α/2 |w - w_sent|², with a state g_k of its own.

    Types: those of `ClientStateProcess`, where C is g_k, of the trainable weights; `state.client_work` is
    <learning_rate=float32,h=C>, of which the rate is sent. With w_k the weights after the client's steps, P the clients
    of a round and m all clients, a round is

        g_k ← g_k - α(w_k - w),  h ← h - α/m Σ_P (w_k - w),  w ← mean_P w_k - h/α.

    Args:
        model_fn, server_optimizer_fn, metrics_aggregator: as for `build_weighted_fed_avg`; the server's optimizer takes
            the movement of w above as a negative gradient.
        regularization: α of the paper, above 0; its experiments have 0.001 to 0.1.
        client_learning_rate: of the local steps, which are plain gradient descent, one for each batch; above 0.
        num_clients: how many there are in all, m of the paper.
    Returns:
        A process; a client's state begins with zeros. Clients count alike, as in the paper. A client without examples,
        or whose change is not finite, keeps its state. A round without clients leaves the weights and h as they were.
    Raises:
        FedcoreError: `num_clients` is less than 1, or another number is not greater than 0.
    Source:
        Acar et al. 2021, "Federated learning based on dynamic regularization", arXiv:2111.04263, Algorithm 1. The
        minimum of a client's loss is approached by the steps over its batches.
    Example:
        >>> process = fc.learning.algorithms.build_fed_dyn(model_fn, 0.1, 0.1, num_clients=2)
        >>> states = [process.initial_client_state() for _ in range(2)]
        >>> state, metrics, states = process.next(process.initialize(), [client_a, client_b], states)
    """
    strength = real_number("regularization", regularization, above=0)
    client_learning_rate = real_number("client_learning_rate", client_learning_rate, above=0)
    num_clients = whole_number("num_clients", num_clients, at_least=1)
    model = trace_model(model_fn)
    roles = model.weight_roles

    def zeros() -> tuple[tf.Tensor, ...]:
        return tuple(tf.zeros_like(w) for w in model.initial_changing_weights().trainable)

    initial_client_state = tf_computation(zeros)

    @tf_computation
    def initialize() -> dict:
        return {"learning_rate": tf.constant(client_learning_rate, tf.float32), "h": zeros()}

    work_type: Any = initialize.type_signature.result

    @tf_computation(work_type)
    def send(work: dict) -> dict:
        return {"learning_rate": work["learning_rate"]}

    def step(
        carry: Steps, batch: TensorStructure, weights: ModelWeights, sent: dict, client_state: tuple[tf.Tensor, ...]
    ) -> Steps:
        def correct(gradients: tuple, current: ModelWeights) -> tuple:
            parts = zip(gradients, client_state, current.trainable, weights.trainable, strict=True)
            return tuple(g - gk + strength * (w - w_sent) for g, gk, w, w_sent in parts)

        return descend(model, carry, batch, weights, sent["learning_rate"], correct)

    def finish(initial: ModelWeights, carry: Steps, client_state: tuple[tf.Tensor, ...]) -> ClientStateResult:
        change = roles.difference(carry.weights, initial)
        new_state = tuple(gk - strength * c for gk, c in zip(client_state, change.trainable, strict=True))
        weight, report = weight_and_report(model, ClientWeighting.UNIFORM, carry.metrics)
        summand = _Update(tf.nest.map_structure(at_least_float32, change), weight)
        return result_with_state(summand, weight, report, new_state, client_state)

    begin, state_type = begin_without_optimizer(model), initial_client_state.type_signature.result
    train = client_steps(model, begin, step, finish, sent=send.type_signature.result, client_state=state_type)
    trained: Any = train.type_signature.result
    weights_type: Any = changing_type(model)

    @tf_computation(work_type, trained.client["update"])
    def conclude(work: dict, total: _Update) -> tuple[dict, ModelWeights]:
        """The next `state.client_work` and the movement of w, by the formulas of the docstring above."""

        def scaled(factor: Any, sums: tuple, types: Any) -> tuple[tf.Tensor, ...]:
            """Sums times a factor, in the dtypes of the weights, whose types are given."""
            pairs = zip(sums, types.types, strict=True)
            return tuple(tf.cast(tf.cast(factor, c.dtype) * c, w.dtype.numpy) for c, w in pairs)

        share, trainable = 1.0 / total.clients, weights_type["trainable"]
        means = scaled(share, total.change.trainable, trainable)
        moves = scaled(strength / num_clients, total.change.trainable, trainable)
        h = tuple(h - move for h, move in zip(work["h"], moves, strict=True))
        change = tuple(c - new_h / strength for c, new_h in zip(means, h, strict=True))
        averages = scaled(share, total.change.non_trainable, weights_type["non_trainable"])
        return {**work, "h": h}, ModelWeights(change, averages)

    return client_state_averaging(
        model,
        ClientWork(train, initialize, send, conclude=conclude, hyperparameters=("learning_rate",)),
        initial_client_state,
        server_optimizer_fn,
        model_aggregator=as_weighted_aggregator(SumFactory()),
        metrics_aggregator=metrics_aggregator,
    )

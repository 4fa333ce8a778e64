"""SCAFFOLD: control variates take the drift out of local steps; clients keep a state of their own."""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_map, federated_mean, federated_sum, federated_zip
from fedcore.ir import Value
from fedcore.learning.algorithms.client_work import Steps, begin_without_optimizer, client_steps, descend
from fedcore.learning.algorithms.fed_avg import build_server_work
from fedcore.learning.algorithms.server_work import ServerWork
from fedcore.learning.client_state_process import ClientStateOutput, ClientStateProcess
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.frozen_weights import whole_weights
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.templates.state import next_state, round_metrics
from fedcore.learning.templates.training_result import finite_or_nothing
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.scalars import real_number, whole_number
from fedcore.types import CLIENTS, FederatedType, Type


@attrs.frozen
class _Result:
    """The result of a client's work.

    Args:
        client: a `TrainingResult`.
        state: the client's next control variate.
        change: the next control variate minus the one before, which the server adds up.
    """

    client: Any
    state: Any
    change: Any


def _zero_control(model: PureModel) -> tuple:
    """A control variate of zeros: a tensor for each trainable weight."""
    return tuple(tf.zeros_like(w) for w in model.initial_changing_weights().trainable)


def _build_training(model: PureModel, weighting: Weighting, work_type: Any) -> Computation:
    """The computation `(<W,S,C,B*> -> _Result)`: gradient descent whose gradients the controls correct.

    Args:
        work_type: S, `state.client_work`: <learning_rate=float32,control=C>, with the server's control variate.
    """
    roles = model.weight_roles

    def step(
        carry: Steps, batch: TensorStructure, weights: ModelWeights, work: dict, client_control: tuple[tf.Tensor, ...]
    ) -> Steps:
        def correct(gradients: tuple, current: ModelWeights) -> tuple:
            return tuple(g - ci + c for g, ci, c in zip(gradients, client_control, work["control"], strict=True))

        return descend(model, carry, batch, weights, work["learning_rate"], correct)

    def finish(initial: ModelWeights, carry: Steps, work: dict, client_control: tuple[tf.Tensor, ...]) -> _Result:
        update = roles.difference(carry.weights, initial)
        result = finite_or_nothing(update, *weight_and_report(model, weighting, carry.metrics))
        steps = tf.cast(carry.metrics["num_batches"][0], tf.float32)
        # A rate of 0, which a schedule may set, moves no weights and so tells nothing of the gradients.
        learned = (steps > 0) & (result.weight > 0) & (work["learning_rate"] > 0)
        parts = zip(client_control, work["control"], result.update.trainable, strict=True)
        new_control = tuple(
            tf.where(learned, ci - c - u / tf.cast(tf.maximum(steps, 1.0) * work["learning_rate"], u.dtype), ci)
            for ci, c, u in parts
        )
        change = tuple(new - old for new, old in zip(new_control, client_control, strict=True))
        return _Result(result, new_control, change)

    begin, control_type = begin_without_optimizer(model), work_type["control"]
    return client_steps(model, begin, step, finish, work=work_type, client_control=control_type)


def _build_round(
    model: PureModel, server: ServerWork, train: Computation, move: Computation, state_type: Type
) -> Computation:
    """`next` of the process.

    Args:
        train: see `_build_training`.
        move: (<S,sum of the changes of the clients' controls> -> S): the server's control after a round.
    """
    _, _, control, batches = (p.type for p in train.module.main.parameters)

    @federated_computation(state_type, FederatedType(batches, CLIENTS), FederatedType(control, CLIENTS))
    def next_round(state: Value, data: Value, client_states: Value) -> ClientStateOutput:
        sent = federated_broadcast(federated_zip((state.global_model_weights, state.client_work)))
        results = federated_map(train, (whole_weights(model, sent[0]), sent[1], client_states, data))
        mean = federated_mean(results.client.update, results.client.weight)
        updated = federated_map(server.update, (state.finalizer, state.global_model_weights, mean))  # <O,U>
        _, train_metrics = server.aggregate_metrics(results.client.metrics)
        new_state = next_state(
            state,
            global_model_weights=updated[1],
            client_work=federated_map(move, (state.client_work, federated_sum(results.change))),
            finalizer=updated[0],
        )
        metrics = round_metrics(client_work=federated_zip({"train": train_metrics}))
        return ClientStateOutput(new_state, metrics, results.state)

    return next_round


def build_scaffold(
    model_fn: ModelFn,
    client_learning_rate: float,
    num_clients: int,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    client_weighting: Weighting = ClientWeighting.UNIFORM,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> ClientStateProcess:
    """Builds SCAFFOLD: a client's gradients are corrected by its control variate and the server's.

    Types: those of `ClientStateProcess`, where C are control variates of the trainable weights;
    `state.client_work` is <learning_rate=float32,control=C>.

    Args:
        model_fn, server_optimizer_fn, metrics_aggregator: as for `build_weighted_fed_avg`.
        client_learning_rate: of the local steps, which are plain gradient descent.
        num_clients: how many there are in all, N of the paper: a round moves the server's control by the share of
            its clients.
        client_weighting: of the changes of the weights. Default: all alike, as in the paper.
    Returns:
        A process; a client's state begins with zeros. A client without examples, or whose change is not finite, keeps
        its state, and so do all clients in a round of rate 0. A round without clients leaves the weights and the
        server's control as they were.
    Raises:
        FedcoreError: `num_clients` is less than 1, or the rate is not greater than 0.
    Source:
        Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging for federated learning", arXiv:1910.06378,
        Algorithm 1 with option II for the controls; a server optimizer in place of the global step size.
    Example:
        >>> process = fc.learning.algorithms.build_scaffold(model_fn, 0.1, num_clients=2)
        >>> states = [process.initial_client_state() for _ in range(2)]
        >>> state, metrics, states = process.next(process.initialize(), [client_a, client_b], states)
    """
    num_clients = whole_number("num_clients", num_clients, at_least=1)
    client_learning_rate = real_number("client_learning_rate", client_learning_rate, above=0)
    model = trace_model(model_fn)
    server = build_server_work(model, server_optimizer_fn, metrics_aggregator)

    @tf_computation
    def initial_client_state() -> tuple:
        return _zero_control(model)

    @tf_computation
    def initial_work() -> dict:
        return {"learning_rate": tf.constant(client_learning_rate, tf.float32), "control": _zero_control(model)}

    @tf_computation
    def move(work: dict, change: tuple[tf.Tensor, ...]) -> dict:
        pairs = zip(work["control"], change, strict=True)
        return {**work, "control": tuple(c + total / num_clients for c, total in pairs)}

    initialize = server.initialize(client_work=initial_work)

    train = _build_training(model, client_weighting, initial_work.type_signature.result)
    next_round = _build_round(model, server, train, move, initialize.type_signature.result)
    return server.process(
        initialize, next_round, initial_client_state, kind=ClientStateProcess, client_work=("learning_rate",)
    )

"""FedNova: changes are normalised by the clients' local steps, so that those with more of them do not lead."""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import AggregationFactory
from fedcore.computation import tf_computation
from fedcore.errors import InvalidValue
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.algorithms.client_work import ClientWork, client_steps, initial_hyperparameters
from fedcore.learning.algorithms.fed_avg import federated_averaging
from fedcore.learning.models import ModelWeights, trace_model
from fedcore.learning.models.gradients import dense_gradients_of
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.optimizers.optimizer import kept_share
from fedcore.learning.process import LearningProcess
from fedcore.learning.templates.training_result import TrainingResult, finite_or_nothing
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.scalars import real_number
from fedcore.templates import MeasuredProcess


@attrs.frozen
class _Carry:
    """The values that one local step hands to the next.

    Args:
        weights: U, as trained so far.
        velocity: v of the paper, for each trainable weight.
        metrics: the states of the model's metrics.
        unit_velocity: the velocity, a scalar, that gradients of 1 would have.
        norm: ‖a‖₁, the distance that such gradients would have moved a weight, over the learning rate.
    """

    weights: Any
    velocity: Any
    metrics: Any
    unit_velocity: Any
    norm: Any


@attrs.frozen
class _Update:
    """Δ/‖a‖₁ of a client, of the form of U, and its part of the effective number of steps τ, a float32."""

    normalized: Any
    steps: Any


def build_fed_nova(
    model_fn: ModelFn,
    client_learning_rate: float,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    momentum: float = 0.0,
    proximal_strength: float = 0.0,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds FedNova: the server adds the mean of normalised changes, times the effective number of local steps.

    Types: those of `build_weighted_fed_avg`; `state.client_work` is <learning_rate=float32>. With Δ_i the change of a
    client i of the share p_i of the weights, τ_i its steps, and a_i the factors with which its gradients stand in
    Δ_i, the weights move by τ · Σ p_i Δ_i / ‖a_i‖₁.

    Args:
        model_fn, server_optimizer_fn, client_weighting, model_distributor, metrics_aggregator: as for
            `build_weighted_fed_avg`; the server's optimizer takes the movement above as a negative gradient.
        client_learning_rate: η of the local steps, above 0.
        momentum: ρ, at least 0 and below 1, of the local steps v ← ρv + g, w ← w - ηv; v begins with 0 in each round.
        proximal_strength: μ, 0 or more, of a term μ/2 · |w - w_sent|² as in FedProx, outside of the momentum; ημ is
            below 1.
        model_aggregator: joins <normalized=U,steps=float32>, of each client Δ_i/‖a_i‖₁ and its part of τ. One that
            clips takes the norm of both together, in which `steps` outweighs a small change. Default: a weighted mean.
    Returns:
        A `LearningProcess`. Clients with equal numbers of steps make it federated averaging, without a proximal term.
        Weights that training steps assign are averaged as they are. A round without examples leaves the weights as
        they were.
    Raises:
        FedcoreError: a number is outside its range; or as for `build_weighted_fed_avg`.
    Source:
        Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization",
        arXiv:2007.07481, section 5, with the factors a_i of its section 4. τ is Σ p_i ‖a_i‖₁, and with a proximal term
        Σ p_i τ_i, as in the authors' program.
    Example:
        >>> process = fc.learning.algorithms.build_fed_nova(model_fn, 0.1, momentum=0.9)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    client_learning_rate = real_number("client_learning_rate", client_learning_rate, above=0)
    momentum = kept_share("momentum", momentum)
    proximal_strength = real_number("proximal_strength", proximal_strength, at_least=0)

    def check_rate(name: str, rate: float) -> None:
        if rate * proximal_strength >= 1:
            raise InvalidValue(
                f"{name} * proximal_strength is below 1, not {rate} * {proximal_strength}: a step would jump over the "
                "weights that were sent"
            )

    check_rate("client_learning_rate", client_learning_rate)
    model = trace_model(model_fn)
    roles = model.weight_roles

    initialize = initial_hyperparameters({"learning_rate": client_learning_rate})

    def begin(initial: ModelWeights) -> _Carry:
        zeros = tuple(tf.zeros_like(w) for w in initial.trainable)
        return _Carry(initial, zeros, model.initial_metrics(), tf.constant(0.0), tf.constant(0.0))

    def step(carry: _Carry, batch: TensorStructure, weights: ModelWeights, sent: dict) -> _Carry:
        current, rate = roles.replace(weights, carry.weights), sent["learning_rate"]
        gradients, _, assigned, metrics = dense_gradients_of(model, current, carry.metrics, batch)
        velocity = tuple(momentum * v + g for v, g in zip(carry.velocity, gradients, strict=True))
        parts = zip(current.trainable, velocity, weights.trainable, strict=True)
        moved = tuple(w - tf.cast(rate, w.dtype) * (v + proximal_strength * (w - w_sent)) for w, v, w_sent in parts)
        unit_velocity = momentum * carry.unit_velocity + 1.0
        norm = (1.0 - rate * proximal_strength) * carry.norm + unit_velocity
        changing = roles.changing(ModelWeights(model.constrain(moved), assigned))
        return _Carry(changing, velocity, metrics, unit_velocity, norm)

    def finish(initial: ModelWeights, carry: _Carry) -> TrainingResult:
        change = roles.difference(carry.weights, initial)
        normalized = tuple(tf.math.divide_no_nan(c, tf.cast(carry.norm, c.dtype)) for c in change.trainable)
        steps = tf.cast(carry.metrics["num_batches"][0], tf.float32) if proximal_strength else carry.norm
        update = _Update(ModelWeights(normalized, change.non_trainable), steps)
        return finite_or_nothing(update, *weight_and_report(model, client_weighting, carry.metrics))

    sent_type = initialize.type_signature.result
    train = client_steps(model, begin, step, finish, sent=sent_type)
    joined_type: Any = train.type_signature.result

    @tf_computation(sent_type, joined_type["update"])
    def conclude(state: dict, joined: _Update) -> tuple[dict, ModelWeights]:
        mean = joined.normalized
        change = tuple(tf.cast(joined.steps, d.dtype) * d for d in mean.trainable)
        return state, ModelWeights(change, mean.non_trainable)

    process = federated_averaging(
        model,
        ClientWork(train, initialize, conclude=conclude, hyperparameters=("learning_rate",)),
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )
    process.hyperparameter_checks = {"client_work.learning_rate": check_rate}
    return process

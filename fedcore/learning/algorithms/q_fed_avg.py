"""q-FedAvg: clients with a higher loss count more, so that the model does about equally well at all of them."""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import AggregationFactory
from fedcore.computation import tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.algorithms.client_work import (
    ClientWork,
    Steps,
    begin_without_optimizer,
    client_steps,
    descend,
    initial_hyperparameters,
)
from fedcore.learning.algorithms.fed_avg import federated_averaging
from fedcore.learning.algorithms.fed_eval import build_loss
from fedcore.learning.models import ModelWeights, trace_model
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningProcess
from fedcore.learning.templates.training_result import TrainingResult, at_least_float32, finite_or_nothing
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.scalars import real_number
from fedcore.templates import MeasuredProcess

_SMALLEST_LOSS = 1e-10
"""Added to a client's loss, so that the power q - 1 of a loss of 0 is finite, as in the authors' program."""


@attrs.frozen
class _Update:
    """-Δ_k of the paper, of the form of U, and h_k, a float32."""

    change: Any
    scale: Any


def build_q_fed_avg(
    model_fn: ModelFn,
    fairness: float,
    client_learning_rate: float,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    client_weighting: Weighting = ClientWeighting.UNIFORM,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds q-FedAvg, for the objective of the sum over clients of loss^(q+1) / (q+1).

    Types: those of `build_weighted_fed_avg`; `state.client_work` is <learning_rate=float32>. With F_k the mean loss of
    a client's examples at the weights w that were sent, w_k its weights after its steps, and L = 1/η, a client sends
    Δ_k = F_k^q L(w - w_k) and h_k = q F_k^(q-1) ‖L(w - w_k)‖² + L F_k^q, and the weights move by -Σ Δ_k / Σ h_k.

    Args:
        model_fn, server_optimizer_fn, model_distributor, metrics_aggregator: as for `build_weighted_fed_avg`; the
            server's optimizer takes the movement above as a negative gradient.
        fairness: q of the paper, without a unit, 0 or more; the larger, the more a client's loss counts. 0 is federated
            averaging.
        client_learning_rate: η of the local steps, which are plain gradient descent; above 0. As in the paper, choose
            the best one for q = 0, whose 1/η estimates the Lipschitz constant, and keep it. With q above 0 the weights
            move less: equal clients that take one step, of gradient g, by g / (1/η + q ‖g‖² / F). Give more rounds.
        client_weighting: factors of Δ_k and h_k. Default: all alike, as in the paper, which draws clients in proportion
            to their examples.
        model_aggregator: joins <change=U,scale=float32>, -Δ_k and h_k, with float32 in the place of floats of 16 bits.
            One that clips takes the norm of both together, and noise on h_k can change its sign. Default: a weighted
            mean.
    Returns:
        A `LearningProcess`. A client reads its data twice. With q above 0, one whose loss is negative counts for
        nothing, and is counted in num_non_finite_clients. Weights that training steps assign are averaged as they are.
        A round without examples leaves the weights as they were.
    Raises:
        FedcoreError: a number is outside its range; or as for `build_weighted_fed_avg`.
    Source:
        Li et al. 2020, "Fair resource allocation in federated learning", arXiv:1905.10497, Algorithm 2, with L = 1/η as
        in its section 3.3. F_k is the loss of an evaluation, without dropout.
    Example:
        >>> process = fc.learning.algorithms.build_q_fed_avg(model_fn, 1.0, 0.1)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    fairness = real_number("fairness", fairness, at_least=0)
    client_learning_rate = real_number("client_learning_rate", client_learning_rate, above=0)
    model = trace_model(model_fn)
    roles = model.weight_roles

    initialize = initial_hyperparameters({"learning_rate": client_learning_rate})

    def step(carry: Steps, batch: TensorStructure, weights: ModelWeights, sent: dict) -> Steps:
        return descend(model, carry, batch, weights, sent["learning_rate"])

    def finish(initial: ModelWeights, carry: Steps, sent: dict, second: tf.Tensor) -> TrainingResult:
        # `second` is F_k, the loss at the weights that were sent; NaN makes the client count for nothing.
        loss = tf.where(second < 0, float("nan"), second + _SMALLEST_LOSS) if fairness else tf.constant(1.0)
        lipschitz, power = 1.0 / sent["learning_rate"], loss**fairness
        change = roles.difference(carry.weights, initial)
        wide = [at_least_float32(c) for c in change.trainable]
        gradients = [tf.cast(lipschitz, c.dtype) * c for c in wide]
        square = tf.add_n([tf.zeros([]), *(tf.cast(tf.reduce_sum(tf.square(g)), tf.float32) for g in gradients)])
        scaled = tuple(tf.cast(power, g.dtype) * g for g in gradients)  # wide, since F_k^q L may be large
        scale = fairness * loss ** (fairness - 1) * square + lipschitz * power
        update = _Update(ModelWeights(scaled, change.non_trainable), scale)
        return finite_or_nothing(update, *weight_and_report(model, client_weighting, carry.metrics))

    sent_type = initialize.type_signature.result
    begin, second_pass = begin_without_optimizer(model), build_loss(model)
    train = client_steps(model, begin, step, finish, second_pass=second_pass, sent=sent_type)
    joined_type: Any = train.type_signature.result
    weights_type: Any = model.weights_type

    @tf_computation(sent_type, joined_type["update"])
    def conclude(state: dict, joined: _Update) -> tuple[dict, ModelWeights]:
        pairs = zip(joined.change.trainable, weights_type["trainable"].types, strict=True)
        change = tuple(tf.cast(c / tf.cast(joined.scale, c.dtype), w.dtype.numpy) for c, w in pairs)
        return state, ModelWeights(change, joined.change.non_trainable)

    return federated_averaging(
        model,
        ClientWork(train, initialize, conclude=conclude, hyperparameters=("learning_rate",)),
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )

"""Client work of a round: local optimizer steps over the batches, then an update, a weight and metrics."""

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import tensorflow as tf

from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import sequence_reduce
from fedcore.ir import Value
from fedcore.learning.models import ModelWeights, PureModel
from fedcore.learning.models.example_gradients import NoisyGradients, check_private_model, private_gradients_of
from fedcore.learning.models.gradients import gradients_of, or_zeros
from fedcore.learning.optimizers import Optimizer, as_optimizer
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.templates.training_result import TrainingResult, finite_or_nothing
from fedcore.learning.weighting import Weighting, weight_and_report
from fedcore.types import SequenceType, Type


@attrs.frozen
class ClientWork:
    """The clients' part of an algorithm: its state at the server, the message to the clients, and their work.

    Args:
        initialize: (-> S), at the server.
        send: (S -> H): what clients get beside the weights.
        train: (<W,H,B*> -> TrainingResult), at every client.
        advance: (S -> S), at the server, after a round.
        hyperparameters: the names of those in S.
        measure: H at the server -> metrics by name beside `train`; used while a round is traced.
    """

    initialize: Computation
    send: Computation
    train: Computation
    advance: Computation
    hyperparameters: tuple[str, ...] = ()
    measure: Callable[[Any], dict] = lambda sent: {}


@attrs.frozen
class _Carry:
    """The values that one local step hands to the next."""

    weights: Any
    optimizer: Any
    metrics: Any


def weights_type_of(model: PureModel) -> Type:
    """W of a model: `<trainable=<…>,non_trainable=<…>>`."""
    return model.weights_type


def build_training(
    model: PureModel,
    optimizer: Optimizer,
    weighting: Weighting,
    weights_type: Type,
    hparams_type: Type,
    proximal_strength: float = 0.0,
) -> Computation:
    """The computation `(<W,H,B*> -> TrainingResult)` of local training with the hyperparameters H.

    The carry of the steps holds the changing weights only, see `WeightRoles`; frozen ones are constants of the loop.

    A change that is not finite counts for nothing, see `finite_or_nothing`. A client without examples has weight 0.

    Args:
        proximal_strength: adds its half times the squared distance from the first weights to the loss of every step.
    """
    roles, mechanism = model.weight_roles, optimizer.example_mechanism
    if mechanism is not None:
        check_private_model(model)

    @tf_computation
    def begin(changing: ModelWeights, hparams: dict[str, tf.Tensor] | tuple[()]) -> _Carry:
        state = optimizer.set_hparams(optimizer.initialize(changing.trainable), hparams or {})
        return _Carry(changing, state, model.initial_metrics())

    @tf_computation
    def step(carry: _Carry, batch: TensorStructure, start: ModelWeights) -> _Carry:
        weights = roles.replace(start, carry.weights)
        scale_loss = partial(optimizer.scale_loss, carry.optimizer) if optimizer.scales_loss else None
        gradients: tuple
        if mechanism is None:
            gradients, _, non_trainable, metrics = gradients_of(
                model, weights, carry.metrics, batch, scale_loss=scale_loss
            )
        else:
            gradients, metrics = private_gradients_of(mechanism, model, weights, carry.metrics, batch)
            non_trainable = weights.non_trainable
        if proximal_strength:
            gradients = or_zeros(gradients, carry.weights.trainable)
            pairs = zip(gradients, carry.weights.trainable, start.trainable, strict=True)
            strength = tf.constant(proximal_strength)
            strength = strength if scale_loss is None else scale_loss(strength)
            gradients = tuple(g + tf.cast(strength, g.dtype) * (w - s) for g, w, s in pairs)
        if mechanism is not None:
            gradients = NoisyGradients(gradients)
        state, trainable = optimizer.next(carry.optimizer, carry.weights.trainable, gradients)
        return _Carry(roles.changing(ModelWeights(trainable, non_trainable)), state, metrics)

    @tf_computation
    def finish(initial: ModelWeights, carry: _Carry) -> TrainingResult:
        trainable = optimizer.final_weights(carry.optimizer, carry.weights.trainable)
        update = roles.difference(attrs.evolve(carry.weights, trainable=trainable), initial)
        return finite_or_nothing(update, *weight_and_report(model, weighting, carry.metrics))

    @federated_computation(weights_type, hparams_type, SequenceType(model.batch_type))
    def train(weights: Value, hparams: Value, batches: Value) -> Value:
        changing = roles.changing(weights)
        carry = sequence_reduce(batches, begin(changing, hparams), lambda carry, batch: step(carry, batch, weights))
        return finish(changing, carry)

    return train


def build_client_work(
    model: PureModel, client_optimizer_fn: OptimizerLike, weighting: Weighting, *, proximal_strength: float = 0.0
) -> ClientWork:
    """Local training whose hyperparameters stand in the state and are sent with the weights."""
    optimizer = as_optimizer(client_optimizer_fn, model.trainable_names, scales_loss=True, clips_examples=True)
    weights_type = weights_type_of(model)

    @tf_computation
    def initialize() -> dict[str, tf.Tensor]:
        return {name: tf.constant(value, tf.float32) for name, value in optimizer.hyperparameters.items()}

    return constant_work(
        initialize,
        lambda hparams: build_training(model, optimizer, weighting, weights_type, hparams, proximal_strength),
        tuple(optimizer.hyperparameters),
    )


def constant_work(initialize: Computation, build_train: Callable, hyperparameters: tuple[str, ...] = ()) -> ClientWork:
    """Client work whose state no round changes and which is sent whole.

    Args:
        build_train: type of the state -> `train`.
    """
    state_type = initialize.type_signature.result

    @federated_computation(state_type)
    def same(state: Value) -> Value:
        return state

    return ClientWork(initialize, same, build_train(state_type), same, hyperparameters)


def build_evaluation(model: PureModel, weights_type: Type) -> Computation:
    """The computation `(<W,B*> -> M)`: what a client reports of a model's metrics over its batches."""

    @tf_computation
    def begin() -> dict:
        return model.initial_metrics()

    @tf_computation
    def step(metrics: dict, batch: TensorStructure, weights: ModelWeights) -> dict:
        return model.step(weights, metrics, batch, training=False)[2]

    @tf_computation
    def report(metrics: dict) -> dict:
        return model.report_metrics(metrics)

    @federated_computation(weights_type, SequenceType(model.batch_type))
    def evaluate(weights: Value, batches: Value) -> Value:
        return report(sequence_reduce(batches, begin(), lambda metrics, batch: step(metrics, batch, weights)))

    return evaluate

"""Federated stochastic gradient descent."""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import AggregationFactory
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.ir import Value
from fedcore.learning.algorithms.client_work import ClientWork, client_steps
from fedcore.learning.algorithms.fed_avg import federated_averaging
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.gradients import dense_gradients_of
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers import build_sgdm
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningProcess
from fedcore.learning.templates.training_result import TrainingResult, finite_or_nothing
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.templates import MeasuredProcess
from fedcore.tff_names import drops_tff_arguments
from fedcore.types import SequenceType


@attrs.frozen
class _Carry:
    """The values that one batch hands to the next, and that `build_gradient` returns.

    Args:
        gradients: of each trainable weight, the sum over the examples so far; in the result, the mean.
        assigned: the weights that training steps assign, as the last step left them.
        metrics: the states of the model's metrics.
    """

    gradients: Any
    assigned: Any
    metrics: Any


def build_gradient(model: PureModel) -> Computation:
    """The computation `(<W,B*> -> _Carry)`: the mean gradient of a client's examples.

    The trainable weights stay what they are; those that a step assigns move from batch to batch. No examples give
    zeros.
    """
    roles = model.weight_roles

    def begin(weights: ModelWeights) -> _Carry:
        zeros = tuple(tf.zeros_like(w) for w in weights.trainable)
        return _Carry(zeros, roles.changing(weights).non_trainable, model.initial_metrics())

    def step(carry: _Carry, batch: TensorStructure, weights: ModelWeights) -> _Carry:
        current = roles.replace(weights, ModelWeights(weights.trainable, carry.assigned))
        gradients, output, non_trainable, metrics = dense_gradients_of(model, current, carry.metrics, batch)
        moved = roles.changing(ModelWeights(weights.trainable, non_trainable)).non_trainable
        pairs = zip(carry.gradients, gradients, strict=True)
        summed = tuple(total + g * tf.cast(output.num_examples, g.dtype) for total, g in pairs)
        return _Carry(summed, moved, metrics)

    def finish(carry: _Carry) -> _Carry:
        count = carry.metrics["num_examples"][0]
        means = tuple(tf.math.divide_no_nan(g, tf.cast(count, g.dtype)) for g in carry.gradients)
        return _Carry(means, carry.assigned, carry.metrics)

    return client_steps(model, begin, step, finish)


def gradient_work(model: PureModel, weighting: Weighting = ClientWeighting.NUM_EXAMPLES) -> ClientWork:
    """Clients' work whose change is the negative mean gradient of a client's examples."""
    gradient, roles = build_gradient(model), model.weight_roles

    @tf_computation
    def result(weights: ModelWeights, outputs: _Carry) -> TrainingResult:
        update = ModelWeights(
            tuple(-g for g in outputs.gradients),
            tuple(new - old for new, old in zip(outputs.assigned, weights.non_trainable, strict=True)),
        )
        return finite_or_nothing(update, *weight_and_report(model, weighting, outputs.metrics))

    @federated_computation(model.weights_type, SequenceType(model.batch_type))
    def train(weights: Value, batches: Value) -> Value:
        return result(roles.changing(weights), gradient(weights, batches))

    return ClientWork(train)


@drops_tff_arguments("loop_implementation")
def build_fed_sgd(
    model_fn: ModelFn,
    server_optimizer_fn: OptimizerLike | None = None,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds federated gradient descent: clients send the gradient of their examples, the server takes one step.

    Types and other arguments: those of `build_weighted_fed_avg`; `state.client_work` is <>.

    Args:
        server_optimizer_fn: takes the mean gradient over all examples. Default: SGD with rate 0.1.
        model_aggregator: joins negative gradients of type U, weighted by examples. Default: a weighted mean.
    Returns:
        A `LearningProcess`. With a plain mean a round equals one step on the union of the clients' examples. A round
        without examples leaves the weights as they were.
    Raises:
        FedcoreError: as for `build_weighted_fed_avg`.
    Source:
        McMahan et al. 2017, arXiv:1602.05629, section 2 (FedSGD); with a server optimizer in place of the plain step.
    Example:
        >>> process = fc.learning.algorithms.build_fed_sgd(model_fn, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    model = trace_model(model_fn)
    return federated_averaging(
        model,
        gradient_work(model),
        build_sgdm(0.1) if server_optimizer_fn is None else server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )

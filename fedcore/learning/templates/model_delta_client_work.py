"""The client work of federated averaging: local steps of an optimizer, then the change of the weights."""

from typing import Any

import tensorflow as tf

from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.intrinsics import federated_broadcast, federated_map, federated_value, federated_zip
from fedcore.learning.algorithms.client_result import CountingModel
from fedcore.learning.algorithms.client_work import build_training, weights_type_of
from fedcore.learning.metrics import sum_then_finalize
from fedcore.learning.models import PureModel, trace_model
from fedcore.learning.optimizers import Optimizer, as_optimizer
from fedcore.learning.templates.client_work_process import ClientResult, ClientWorkProcess
from fedcore.learning.weighting import Weighting
from fedcore.templates import MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType


def build_model_delta_client_work(
    model_fn,
    optimizer,
    client_weighting: Weighting,
    metrics_aggregator=None,
    *,
    proximal_strength: float = 0.0,
) -> ClientWorkProcess:
    """The client work of `build_weighted_fed_avg`: a step of the optimizer for each batch.

    Types, for weights W, batches B, hyperparameters H of the optimizer and metrics M:
        initialize  (-> H@SERVER)
        next        (<H@SERVER,{W}@CLIENTS,{B*}@CLIENTS> -> <state=H@SERVER,
                    result={<update=W.trainable,update_weight=float32>}@CLIENTS,measurements=<train=M>@SERVER>)

    The update is the trainable weights before the work minus those after it. One that is not finite is zeros of
    weight 0, and is counted in the metric num_non_finite_clients. As in TFF, changes of non-trainable weights stay at
    the clients; `build_weighted_fed_avg` averages them too.

    Args:
        model_fn: makes the model, as for `build_weighted_fed_avg`.
        optimizer: one of `fc.learning.optimizers`, or what `as_optimizer` takes.
        client_weighting: a `ClientWeighting`, or a function of a client's metric states.
        metrics_aggregator: joins the clients' metrics. Default: `fc.learning.metrics.sum_then_finalize`.
        proximal_strength: adds its half times the squared distance from the first weights to each loss (FedProx).
    Raises:
        TracingError: `model_fn` makes no model of `fc.learning`.
        TypeMismatch: `client_weighting` is no weighting.
        FedcoreError: `optimizer` is no optimizer.
    Source: McMahan et al. 2017, arXiv:1602.05629, Algorithm 1, ClientUpdate.
    Example:
        >>> work = fc.learning.templates.build_model_delta_client_work(
        ...     model_fn, fc.learning.optimizers.build_sgdm(0.1), fc.learning.ClientWeighting.NUM_EXAMPLES)
    """
    model, chosen = trace_model(model_fn), as_optimizer(optimizer)
    weights_type = weights_type_of(model)
    names = tuple(chosen.hyperparameters)

    @tf_computation
    def first_hparams():
        return {name: tf.constant(value, tf.float32) for name, value in chosen.hyperparameters.items()}

    hparams_type = first_hparams.type_signature.result
    train = build_training(model, chosen, client_weighting, weights_type, hparams_type, proximal_strength)

    @tf_computation(train.type_signature.result)
    def as_result(done):
        return ClientResult(tuple(-u for u in done.update.trainable), done.weight), done.metrics

    @federated_computation(weights_type, hparams_type, SequenceType(model.batch_type))
    def work(weights, hparams, batches):
        return as_result(train(weights, hparams, batches))

    @federated_computation
    def initialize():
        values = {name: federated_value(float(chosen.hyperparameters[name]), SERVER) for name in names}
        return federated_zip(values) if values else federated_value((), SERVER)

    @federated_computation(
        initialize.type_signature.result,
        FederatedType(weights_type, CLIENTS),
        FederatedType(SequenceType(model.batch_type), CLIENTS),
    )
    def next_fn(state, weights, data):
        done = federated_map(work, (weights, federated_broadcast(state), data))
        _, metrics = (metrics_aggregator or sum_then_finalize)(CountingModel(model))(done[1])
        return MeasuredProcessOutput(state, done[0], federated_zip({"train": metrics}))

    state_type: Any = hparams_type
    get_hparams = tf_computation(state_type)(lambda state: state)
    set_hparams = tf_computation(state_type, state_type)(lambda state, hparams: hparams)
    return ClientWorkProcess(initialize, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams)


def build_functional_model_delta_client_work(
    *, model: PureModel, optimizer: Optimizer, client_weighting: Weighting, metrics_aggregator=None
) -> ClientWorkProcess:
    """`build_model_delta_client_work` for a model that is given as functions.

    Types and other arguments: those of `build_model_delta_client_work`.

    Args:
        model: a `FunctionalModel`, or what `from_keras_model` gives.
        optimizer: one of `fc.learning.optimizers`; no function.
    Raises:
        TypeMismatch: the model or the optimizer is of another kind.
    Example:
        >>> work = fc.learning.templates.build_functional_model_delta_client_work(
        ...     model=model_fn(), optimizer=fc.learning.optimizers.build_sgdm(0.1),
        ...     client_weighting=fc.learning.ClientWeighting.NUM_EXAMPLES)
    """
    if not isinstance(model, PureModel):
        raise TypeMismatch(f"model is a fc.learning.models.FunctionalModel, not {brief(model)}")
    if not isinstance(optimizer, Optimizer):
        raise TypeMismatch(f"optimizer is a fc.learning.optimizers.Optimizer, not {brief(optimizer)}")
    return build_model_delta_client_work(model, optimizer, client_weighting, metrics_aggregator)

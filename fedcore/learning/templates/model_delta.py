"""Client work that trains a model and gives its change."""

from collections.abc import Callable
from typing import Any

from fedcore.computation import tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.learning.loop_implementation import LoopImplementation, check_loop_implementation
from fedcore.learning.models import FunctionalModel, PureModel, trace_model
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.templates.client_work import ClientResult, ClientWorkProcess
from fedcore.learning.templates.training import ClientWork, build_client_work
from fedcore.learning.templates.training_result import TrainingResult, aggregation_of_metrics
from fedcore.learning.templates.work_process import work_process
from fedcore.learning.weighting import Weighting


def build_model_delta_client_work(
    model_fn: ModelFn,
    optimizer: OptimizerLike,
    client_weighting: Weighting,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
    *,
    loop_implementation: LoopImplementation = LoopImplementation.DATASET_REDUCE,
) -> ClientWorkProcess:
    """Builds the client work of federated averaging: steps of an optimizer, then first weights minus trained weights.

    Types, for weights W, batches B, hyperparameters H of the optimizer and metrics M of the model:
        next  (<H@SERVER,{W}@CLIENTS,{B*}@CLIENTS> -> <state=H@SERVER,
               result={<update=W.trainable,update_weight=float32>}@CLIENTS,measurements=<train=M>@SERVER>)

    The update is the negative change of the trainable weights, so that an optimizer at the server takes its mean as a
    gradient. What a client's training does to non-trainable weights stays with it; the builders of
    `fc.learning.algorithms` average them.

    Args:
        model_fn: makes the model; called once, and its initialisers are traced.
        optimizer: for the local steps; a Keras one is accepted.
        client_weighting: by examples, all alike, or a function of a client's metric states in a graph.
        metrics_aggregator: joins the clients' metrics. Default: they are added, then computed.
        loop_implementation: both values give the same process.
    Returns:
        A `ClientWorkProcess`. A client whose change is not finite has weight 0 and an update of zeros, and is counted
        in the metric num_non_finite_clients.
    Raises:
        TracingError: `model_fn` makes no model of `fc.learning`.
        TypeMismatch: the weighting is neither a `ClientWeighting` nor a function.
    Source: McMahan et al. 2017, arXiv:1602.05629, Algorithm 1, ClientUpdate.
    Example:
        >>> work = fc.learning.templates.build_model_delta_client_work(
        ...     model_fn, fc.learning.optimizers.build_sgdm(0.1), fc.learning.ClientWeighting.NUM_EXAMPLES)
        >>> {name: float(value) for name, value in work.get_hparams(work.initialize()).items()}
        {'learning_rate': 0.10000000149011612}
    """
    check_loop_implementation(loop_implementation)
    model = trace_model(model_fn)
    return _delta_work(model, build_client_work(model, optimizer, client_weighting), metrics_aggregator)


def build_functional_model_delta_client_work(
    *,
    model: FunctionalModel | PureModel,
    optimizer: OptimizerLike,
    client_weighting: Weighting,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
    loop_implementation: LoopImplementation = LoopImplementation.DATASET_REDUCE,
) -> ClientWorkProcess:
    """Builds the client work of federated averaging with a `FunctionalModel`.

    Types, arguments and result: those of `build_model_delta_client_work`.

    Raises:
        TypeMismatch: `model` is no `FunctionalModel`.
    Example:
        >>> model = fc.learning.models.functional_model_from_keras(
        ...     keras_model(), keras.losses.MeanSquaredError(), spec)
        >>> work = fc.learning.templates.build_functional_model_delta_client_work(
        ...     model=model, optimizer=fc.learning.optimizers.build_sgdm(0.1),
        ...     client_weighting=fc.learning.ClientWeighting.UNIFORM)
    """
    if not isinstance(model, FunctionalModel | PureModel):
        raise TypeMismatch(f"model is a fc.learning.models.FunctionalModel, not {brief(model)}")
    return build_model_delta_client_work(
        model if isinstance(model, PureModel) else lambda: model,
        optimizer,
        client_weighting,
        metrics_aggregator,
        loop_implementation=loop_implementation,
    )


def _delta_work(
    model: PureModel, work: ClientWork, metrics_aggregator: Callable[[Any], Callable] | None
) -> ClientWorkProcess:
    @tf_computation(work.train.type_signature.result)
    def as_gradient(trained: TrainingResult) -> ClientResult:
        return ClientResult(tuple(-u for u in trained.update.trainable), trained.weight)

    aggregate_metrics = aggregation_of_metrics(metrics_aggregator, model)
    return work_process(work, model.batch_type, aggregate_metrics, as_gradient)

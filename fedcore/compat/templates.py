"""The templates of TFF that make a learning process of parts, and the client work of federated averaging as a part.

Decision 0150.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fedcore.computation import Computation, tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.learning.algorithms.fed_avg import build_round, local_training
from fedcore.learning.models import FunctionalModel, PureModel, trace_model
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningAlgorithmState, LearningProcess
from fedcore.learning.templates.client_work import ClientResult, ClientWorkProcess
from fedcore.learning.templates.distribution import DistributionProcess
from fedcore.learning.templates.finalizer import FinalizerProcess
from fedcore.learning.templates.training_result import TrainingResult, aggregation_of_metrics
from fedcore.learning.weighting import Weighting
from fedcore.templates import AggregationProcess, MeasuredProcess
from fedcore.templates.iterative import check_computation
from fedcore.tff_names import drops_tff_arguments
from fedcore.types import CLIENTS, SERVER, FederatedType, Type, contains, explain, fits, member_of


@drops_tff_arguments("measure_timing")
def compose_learning_process(
    initial_model_weights_fn: Computation,
    model_weights_distributor: DistributionProcess,
    client_work: ClientWorkProcess,
    model_update_aggregator: AggregationProcess,
    model_finalizer: FinalizerProcess,
) -> LearningProcess:
    """Composes a learning process: send the weights, work at the clients, aggregate the updates, change the weights.

    Types, for weights W and data D:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{D}@CLIENTS> -> <state=State@SERVER,metrics=<distributor=…,client_work=…,
                     aggregator=…,finalizer=…>@SERVER>)
        State       `LearningAlgorithmState`, with the state of each part

    Args:
        initial_model_weights_fn: (-> W), not placed.
        model_weights_distributor: takes W at the server.
        client_work: takes what the distributor gives, and D.
        model_update_aggregator: a weighted one; takes the updates and weights that the clients' work gives.
        model_finalizer: takes W and what the aggregator gives, and gives the next W.
    Returns:
        A `LearningProcess`, whose `get_hparams` and `set_hparams` are those of the client work and the finalizer.
    Raises:
        TypeMismatch: one part does not take what another gives, or the aggregator takes no weights.
    Example:
        >>> templates, sgd = fc.learning.templates, fc.learning.optimizers.build_sgdm
        >>> weights = fc.learning.models.weights_type_from_model(model_fn)
        >>> process = templates.compose_learning_process(
        ...     fc.learning.models.initial_weights_of(model_fn),
        ...     templates.build_broadcast_process(weights),
        ...     templates.build_model_delta_client_work(
        ...         model_fn, sgd(0.1), fc.learning.ClientWeighting.NUM_EXAMPLES),
        ...     fc.aggregators.MeanFactory().create(weights['trainable'], fc.to_type('float32')),
        ...     templates.build_apply_optimizer_finalizer(sgd(1.0), weights))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['client_work']['train']['num_examples']
        np.int64(5)
    """
    parts = (model_weights_distributor, client_work, model_update_aggregator, model_finalizer)
    _check_parts(initial_model_weights_fn, *parts)
    initialize, next_round = build_round(initial_model_weights_fn, *parts)

    def get_hparams(state: LearningAlgorithmState) -> dict[str, Any]:
        return {
            "client_work": client_work.get_hparams(state.client_work) or {},
            "finalizer": model_finalizer.get_hparams(state.finalizer) or {},
        }

    def set_hparams(state: LearningAlgorithmState, hparams: Mapping[str, Any]) -> LearningAlgorithmState:
        return state.replace(
            client_work=client_work.set_hparams(state.client_work, hparams["client_work"]),
            finalizer=model_finalizer.set_hparams(state.finalizer, hparams["finalizer"]),
        )

    return LearningProcess(initialize, next_round, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams)


def _check_parts(
    initial_weights: Computation,
    distributor: DistributionProcess,
    client_work: ClientWorkProcess,
    aggregator: AggregationProcess,
    finalizer: FinalizerProcess,
) -> None:
    """Checks that the arguments of `compose_learning_process` are of their kinds, and that each takes what it gets.

    Raises:
        TypeMismatch: as for `compose_learning_process`.
    """
    check_computation("compose_learning_process", "initial_model_weights_fn", initial_weights)
    signature = initial_weights.type_signature
    if signature.parameter is not None or contains(signature.result, lambda t: isinstance(t, FederatedType)):
        raise TypeMismatch(
            "compose_learning_process: initial_model_weights_fn takes nothing and gives weights that are not placed, "
            f"but has the type {signature}"
        )
    expected = {
        "model_weights_distributor": (distributor, DistributionProcess),
        "client_work": (client_work, ClientWorkProcess),
        "model_update_aggregator": (aggregator, AggregationProcess),
        "model_finalizer": (finalizer, FinalizerProcess),
    }
    for role, (part, kind) in expected.items():
        if not isinstance(part, kind):
            raise TypeMismatch(f"compose_learning_process: {role} is a {kind.__name__}, not {brief(part)}")
    if not aggregator.is_weighted:
        raise TypeMismatch(
            "compose_learning_process: model_update_aggregator takes no weights; "
            "fc.aggregators.as_weighted_aggregator makes a factory that ignores them"
        )
    start, parts = "initial_model_weights_fn", {name: part for name, (part, _) in expected.items()}
    weights, update, weight = FederatedType(signature.result, SERVER), *_update_and_weight(client_work)
    for giver, have, taker, index in (  # parameter 0 of a part is its state
        (start, weights, "model_weights_distributor", 1),
        ("model_weights_distributor", _result(distributor), "client_work", 1),
        ("client_work", update, "model_update_aggregator", 1),
        ("client_work", weight, "model_update_aggregator", 2),
        (start, weights, "model_finalizer", 1),
        ("model_update_aggregator", _result(aggregator), "model_finalizer", 2),
    ):
        want = parts[taker].next.module.main.parameters[index].type
        if not fits(have, want):
            title = f"compose_learning_process: `{taker}` does not take what `{giver}` gives"
            raise TypeMismatch(explain(title, have, want, have_label=giver, want_label=taker))


def _update_and_weight(client_work: ClientWorkProcess) -> tuple[Type, Type]:
    """The types of the clients' updates and of their weights, at the clients."""
    result: Any = member_of(_result(client_work))
    return FederatedType(result["update"], CLIENTS), FederatedType(result["update_weight"], CLIENTS)


def _result(part: MeasuredProcess) -> Type:
    """The type of what a part gives to the next one: its `result`, without state and measurements."""
    output: Any = part.next.type_signature.result
    return output["result"]


@drops_tff_arguments("loop_implementation")
def build_model_delta_client_work(
    model_fn: ModelFn,
    optimizer: OptimizerLike,
    client_weighting: Weighting,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
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
    model = trace_model(model_fn)
    work = local_training(model, optimizer, client_weighting)

    @tf_computation(work.train.type_signature.result)
    def as_gradient(trained: TrainingResult) -> ClientResult:
        return ClientResult(tuple(-u for u in trained.update.trainable), trained.weight)

    return work.process(aggregation_of_metrics(metrics_aggregator, model), as_gradient)


@drops_tff_arguments("loop_implementation")
def build_functional_model_delta_client_work(
    *,
    model: FunctionalModel | PureModel,
    optimizer: OptimizerLike,
    client_weighting: Weighting,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
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
    )

"""Composes a learning process of its parts."""

from collections.abc import Mapping
from typing import Any

from fedcore.computation import Computation, federated_computation
from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.intrinsics import federated_eval
from fedcore.ir import Value
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.templates.client_work import ClientWorkProcess
from fedcore.learning.templates.distribution import DistributionProcess
from fedcore.learning.templates.finalizer import FinalizerProcess
from fedcore.learning.templates.state import first_state, next_state, round_metrics
from fedcore.templates import AggregationProcess, MeasuredProcess
from fedcore.templates.iterative import check_computation
from fedcore.types import CLIENTS, SERVER, FederatedType, Type, contains, explain, fits, member_of


def compose_learning_process(
    initial_model_weights_fn: Computation,
    model_weights_distributor: DistributionProcess,
    client_work: ClientWorkProcess,
    model_update_aggregator: AggregationProcess,
    model_finalizer: FinalizerProcess,
    measure_timing: bool = False,
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
        measure_timing: False. Clients are run many at a time, so that none has a time of its own.
    Returns:
        A `LearningProcess`, whose `get_hparams` and `set_hparams` are those of the client work and the finalizer.
    Raises:
        TypeMismatch: one part does not take what another gives, or the aggregator takes no weights.
        FedcoreError: `measure_timing` is asked for.
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
    if measure_timing:
        raise FedcoreError(
            "measure_timing: clients are run many at a time, so that none has a time of its own; "
            "fc.context.last_report().seconds is the time of a round"
        )
    parts = (model_weights_distributor, client_work, model_update_aggregator, model_finalizer)
    _check_parts(initial_model_weights_fn, *parts)
    initialize, next_round = compose(initial_model_weights_fn, *parts)

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


def compose(
    initial_weights: Computation,
    distributor: Any,
    client_work: ClientWorkProcess,
    aggregator: AggregationProcess,
    finalizer: FinalizerProcess,
) -> tuple[Computation, Computation]:
    """`initialize` and `next` of the process, of parts that fit each other.

    Args:
        distributor: a measured process, or an object whose `next` is used while a round is traced.
    """

    @federated_computation
    def initialize() -> Value:
        return first_state(
            federated_eval(initial_weights, SERVER),
            finalizer.initialize(),
            distributor=distributor.initialize(),
            client_work=client_work.initialize(),
            aggregator=aggregator.initialize(),
        )

    @federated_computation(initialize.type_signature.result, client_work.data_type)
    def next_round(state: Value, data: Value) -> LearningProcessOutput:
        sent = distributor.next(state.distributor, state.global_model_weights)
        worked = client_work.next(state.client_work, sent.result, data)
        aggregated = aggregator.next(state.aggregator, worked.result.update, worked.result.update_weight)
        moved = finalizer.next(state.finalizer, state.global_model_weights, aggregated.result)
        new_state = next_state(
            state,
            global_model_weights=moved.result,
            distributor=sent.state,
            client_work=worked.state,
            aggregator=aggregated.state,
            finalizer=moved.state,
        )
        metrics = round_metrics(
            distributor=sent.measurements,
            client_work=worked.measurements,
            aggregator=aggregated.measurements,
            finalizer=moved.measurements,
        )
        return LearningProcessOutput(new_state, metrics)

    return initialize, next_round


def _check_parts(
    initial_weights: Computation,
    distributor: DistributionProcess,
    client_work: ClientWorkProcess,
    aggregator: AggregationProcess,
    finalizer: FinalizerProcess,
) -> None:
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
    for giver, have, taker, index in (
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
    result: Any = member_of(_result(client_work))
    return FederatedType(result["update"], CLIENTS), FederatedType(result["update_weight"], CLIENTS)


def _result(part: MeasuredProcess) -> Type:
    output: Any = part.next.type_signature.result
    return output["result"]

"""Learning processes composed of a distributor, client work, an aggregator and a finalizer."""

from collections import OrderedDict
from typing import Any

from fedcore.computation import Computation, federated_computation
from fedcore.errors import TypeMismatch
from fedcore.intrinsics import federated_eval
from fedcore.learning.algorithms.composition import first_state, next_state, round_metrics
from fedcore.learning.process import LearningProcess, LearningProcessOutput
from fedcore.learning.templates.client_work_process import ClientWorkProcess
from fedcore.learning.templates.distribution_process import DistributionProcess
from fedcore.learning.templates.finalizer_process import FinalizerProcess
from fedcore.learning.templates.placed_process import check_process
from fedcore.templates import AggregationProcess
from fedcore.templates.iterative import check_computation
from fedcore.types import SERVER, FederatedType, Type, explain, fits


def compose_learning_process(
    initial_model_weights_fn: Computation,
    model_weights_distributor: DistributionProcess,
    client_work: ClientWorkProcess,
    model_update_aggregator: AggregationProcess,
    model_finalizer: FinalizerProcess,
) -> LearningProcess:
    """The process whose round is: distribute the weights, work at the clients, aggregate the updates, finalize.

    Types, for weights W, data D and the measurements of the four parts:
        initialize  (-> <global_model_weights=W,distributor=…,client_work=…,aggregator=…,finalizer=…,…>@SERVER)
        next        (<State@SERVER,{D*}@CLIENTS> -> <state=State@SERVER,
                    metrics=<distributor=…,client_work=…,aggregator=…,finalizer=…>@SERVER>)

    `get_hparams` and `set_hparams` are those of the client work and of the finalizer, by these names.

    Args:
        initial_model_weights_fn: (-> W), without placements.
        model_update_aggregator: a weighted one: `factory.create(update_type, weight_type)`.
    Raises:
        TypeMismatch: a part is of another kind, or its types do not fit its neighbour's; the message shows both.
    Example:
        >>> model = fc.learning.models.trace_model(model_fn)
        >>> start = fc.tf_computation(lambda: model.initial_weights())
        >>> weights = start.type_signature.result
        >>> composed = fc.learning.templates.compose_learning_process(
        ...     start,
        ...     fc.learning.templates.build_broadcast_process(weights),
        ...     fc.learning.templates.build_model_delta_client_work(
        ...         model_fn, fc.learning.optimizers.build_sgdm(0.1), fc.learning.ClientWeighting.NUM_EXAMPLES),
        ...     fc.aggregators.MeanFactory().create(weights['trainable'], fc.to_type('float32')),
        ...     fc.learning.templates.build_apply_optimizer_finalizer(
        ...         fc.learning.optimizers.build_sgdm(1.0), weights))
        >>> after, metrics = composed.next(composed.initialize(), [client_a, client_b])
        >>> metrics['client_work']['train']['num_examples'], metrics['finalizer']['update_non_finite']
        (np.int64(5), np.int32(0))
    """
    check_process("model_weights_distributor", model_weights_distributor, DistributionProcess)
    check_process("client_work", client_work, ClientWorkProcess)
    check_process("model_update_aggregator", model_update_aggregator, AggregationProcess)
    check_process("model_finalizer", model_finalizer, FinalizerProcess)
    _check_types(
        initial_model_weights_fn, model_weights_distributor, client_work, model_update_aggregator, model_finalizer
    )

    @federated_computation
    def initialize():
        return first_state(
            federated_eval(initial_model_weights_fn, SERVER),
            model_finalizer.initialize(),
            distributor=model_weights_distributor.initialize(),
            client_work=client_work.initialize(),
            aggregator=model_update_aggregator.initialize(),
        )

    @federated_computation(initialize.type_signature.result, client_work.next.module.main.parameters[2].type)
    def next_round(state, data):
        sent = model_weights_distributor.next(state.distributor, state.global_model_weights)
        work = client_work.next(state.client_work, sent.result, data)
        aggregated = model_update_aggregator.next(state.aggregator, work.result.update, work.result.update_weight)
        finalized = model_finalizer.next(state.finalizer, state.global_model_weights, aggregated.result)
        after = next_state(
            state,
            global_model_weights=finalized.result,
            distributor=sent.state,
            client_work=work.state,
            aggregator=aggregated.state,
            finalizer=finalized.state,
        )
        metrics = round_metrics(
            distributor=sent.measurements,
            client_work=work.measurements,
            aggregator=aggregated.measurements,
            finalizer=finalized.measurements,
        )
        return LearningProcessOutput(after, metrics)

    tuned = {"client_work": client_work, "finalizer": model_finalizer}

    def get_hparams(state):
        return OrderedDict((name, part.get_hparams(getattr(state, name))) for name, part in tuned.items())

    def set_hparams(state, hparams):
        return state.replace(
            **{name: part.set_hparams(getattr(state, name), hparams[name]) for name, part in tuned.items()}
        )

    return LearningProcess(initialize, next_round, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams)


def _check_types(start, distributor, work, aggregator, finalizer) -> None:
    """Refuses parts of which one does not take what its neighbour gives."""
    check_computation("compose_learning_process", "initial_model_weights_fn", start)
    weights = start.type_signature.result
    if start.type_signature.parameter is not None or isinstance(weights, FederatedType):
        raise TypeMismatch(
            "compose_learning_process: initial_model_weights_fn takes nothing and gives weights without a placement, "
            f"but has the type {start.type_signature}"
        )
    if not aggregator.is_weighted:
        raise TypeMismatch(
            "compose_learning_process: model_update_aggregator is a weighted one, of factory.create(update, weight)"
        )
    at_server = FederatedType(weights, SERVER)
    client_result: Any = _result_of(work)
    taken, given = _taken_by(work)[1], _result_of(distributor)
    _check("model_weights_distributor does not take the weights", at_server, _taken_by(distributor)[1])
    _check("client_work does not take what model_weights_distributor gives", given, taken)
    for name, want in zip(client_result.member.names, _taken_by(aggregator)[1:], strict=True):
        have = FederatedType(client_result.member[name], client_result.placement)
        _check(f"model_update_aggregator does not take the {name} of client_work", have, want)
    _check("model_finalizer does not take the weights", at_server, _taken_by(finalizer)[1])
    _check("model_finalizer does not take what the aggregator gives", _result_of(aggregator), _taken_by(finalizer)[2])
    _check("model_finalizer does not give the weights", _result_of(finalizer), at_server)


def _taken_by(process) -> list[Type]:
    return [parameter.type for parameter in process.next.module.main.parameters]


def _result_of(process) -> Type:
    return process.next.type_signature.result["result"]


def _check(title: str, have: Type, want: Type) -> None:
    if not fits(have, want):
        shown = explain(f"compose_learning_process: {title}", have, want, have_label="given", want_label="wanted")
        raise TypeMismatch(shown)

"""The client work of an algorithm, as a process."""

from collections.abc import Callable
from typing import Any

from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.intrinsics import federated_broadcast, federated_eval, federated_map, federated_zip
from fedcore.ir import Value
from fedcore.learning.templates.client_work import ClientResult, ClientWorkProcess
from fedcore.learning.templates.training import ClientWork
from fedcore.templates import MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, Type


def work_process(
    work: ClientWork, batch_type: Type, aggregate_metrics: Callable, result: Computation | None = None
) -> ClientWorkProcess:
    """The process whose round is: send the message of the state, train, aggregate the metrics.

    Args:
        aggregate_metrics: traced in a round; {M}@CLIENTS -> (the added metric states, the metrics), both at the server.
        result: (what `work.train` gives -> `ClientResult`). Default: its update and weight.
    """
    state_type: Any = work.initialize.type_signature.result
    weights_type = work.train.module.main.parameters[0].type

    @federated_computation
    def initialize() -> Value:
        return federated_eval(work.initialize, SERVER)

    @federated_computation(
        FederatedType(state_type, SERVER),
        FederatedType(weights_type, CLIENTS),
        FederatedType(SequenceType(batch_type), CLIENTS),
    )
    def next_fn(state: Value, weights: Value, data: Value) -> MeasuredProcessOutput:
        sent = federated_map(work.send, state)
        trained = federated_map(work.train, (weights, federated_broadcast(sent), data))
        if result is None:
            client_result = federated_zip(ClientResult(trained.update, trained.weight))
        else:
            client_result = federated_map(result, trained)
        _, metrics = aggregate_metrics(trained.metrics)
        measured = federated_zip({"train": metrics, **work.measure(sent)})
        return MeasuredProcessOutput(federated_map(work.advance, state), client_result, measured)

    names = work.hyperparameters
    get_hparams = tf_computation(lambda state: {name: state[name] for name in names}, state_type) if names else None
    set_hparams = (
        tf_computation(lambda state, hparams: {**state, **hparams}, state_type, {n: state_type[n] for n in names})
        if names
        else None
    )
    return ClientWorkProcess(initialize, next_fn, get_hparams_fn=get_hparams, set_hparams_fn=set_hparams)

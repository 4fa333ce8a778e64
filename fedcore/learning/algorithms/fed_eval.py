"""Federated evaluation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np
import tensorflow as tf

from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_eval, federated_map, federated_value, federated_zip, generic_plus
from fedcore.ir import Value
from fedcore.learning.algorithms.client_work import client_steps
from fedcore.learning.algorithms.given_parts import check_distributor, distribute
from fedcore.learning.metrics import add_client_quantiles, sum_then_finalize
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.frozen_weights import weights_functions, whole_weights
from fedcore.learning.models.pure_model import with_weight_names
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.process import LearningProcess, LearningProcessOutput
from fedcore.learning.templates.state import first_state, next_state, round_metrics
from fedcore.templates import AggregationProcess, MeasuredProcess
from fedcore.tff_names import drops_tff_arguments
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, StructType, Type, member_of


@drops_tff_arguments("loop_implementation")
def build_fed_eval(
    model_fn: ModelFn,
    model_distributor: MeasuredProcess | None = None,
    metrics_aggregation_process: AggregationProcess | None = None,
    *,
    per_client: Sequence[float] | None = None,
    metrics_aggregator: Callable | None = None,
) -> LearningProcess:
    """Builds federated evaluation: every client computes the metrics of the model on its data.

    Types, for weights W, batches B and metrics M of the model:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{B*}@CLIENTS> -> <state=State@SERVER,metrics=<client_work=<eval=E>,…>@SERVER>)
        E           <current_round_metrics=M,total_rounds_metrics=M>: of this round, and of all so far
        State       <global_model_weights=W,client_work=…,…>: the total of the clients' reports in `client_work`.
    With `per_client`, `next` also returns client_metrics={M}@CLIENTS, and with quantiles current_round_metrics has
    per_client=<NAME=float32[number of quantiles],…> too, for the scalar metrics NAME of M.

    Args:
        model_fn: makes the model, or a `PureModel`; the state starts from its initial weights.
        model_distributor: a measured process that sends the weights. Default: a broadcast.
        metrics_aggregation_process: an aggregation process from the clients' reports to <M of this round, M of all so
            far>, with its state in `client_work`. Default: reports are added, then M is computed.
        per_client: quantiles between 0 and 1 of each metric over the clients, such as [0.1, 0.5], see
            `fc.learning.metrics.add_client_quantiles`. The clients' own metrics stay at the clients: whoever calls
            `next`, and so knows the clients, gets them in the order of the data, see
            `fc.learning.programs.evaluate_clients`. The server gathers a number of each client for the quantiles; []
            asks for none. Default: metrics of all clients together only.
        metrics_aggregator: joins the clients' reports of a round, as in `build_weighted_fed_avg`; with
            `fc.learning.metrics.secure_sum_then_finalize` they cross in secure sums only. Default: they are added.
    Returns:
        A `LearningProcess`; put a model into its state with `set_model_weights`. No clients: counts and a loss
        of 0.
    Raises:
        TracingError: `model_fn` makes no model of `fc.learning`.
        TypeMismatch: the distributor does not give W, or the process does not take the clients' reports.
        FedcoreError: a quantile is outside [0, 1], or there are two of `per_client`, `metrics_aggregator` and an
            aggregation process.
    Example:
        >>> evaluation = fc.learning.algorithms.build_fed_eval(model_fn)
        >>> weights = fc.learning.ModelWeights((np.ones([2, 1], np.float32), np.zeros([1], np.float32)), ())
        >>> evaluated = evaluation.set_model_weights(evaluation.initialize(), weights)
        >>> evaluated, metrics = evaluation.next(evaluated, [client_a, client_b])
        >>> metrics['client_work']['eval']['current_round_metrics']['loss']
        np.float32(0.0)
    """
    model = trace_model(model_fn)
    evaluate = build_evaluation(model)
    if per_client is not None and metrics_aggregation_process is not None:
        raise InvalidValue("per_client computes quantiles by an aggregation of its own: leave one of the two out")
    if metrics_aggregator is not None and (per_client is not None or metrics_aggregation_process is not None):
        raise InvalidValue(
            "metrics_aggregator joins the clients' reports, as per_client and metrics_aggregation_process do: leave "
            "the others out"
        )
    work = evaluation_work(model, evaluate, metrics_aggregation_process, per_client, metrics_aggregator)
    initial_weights = tf_computation(lambda: model.initial_changing_weights())
    return build_evaluation_process(
        initial_weights, model.batch_type, work, model_distributor, weights_functions(model)
    )


def build_evaluation(model: PureModel) -> Computation:
    """The computation `(<W,B*> -> M)`: what a client reports of a model's metrics over its batches."""

    def report(carry: dict) -> dict:
        return model.report_metrics(carry)

    return _metrics_steps(model, report)


def build_loss(model: PureModel) -> Computation:
    """The computation `(<W,B*> -> float32)`: the mean loss of a client's examples, as an evaluation has it.

    The loss of no examples is 0.
    """

    def mean(carry: dict) -> tf.Tensor:
        return tf.math.divide_no_nan(*carry["loss"])  # (sum of the losses, number of examples)

    return _metrics_steps(model, mean)


def _metrics_steps(model: PureModel, finish: Callable[[dict], Any]) -> Computation:
    """The computation `(<W,B*> -> R)`: runs a model on a client's batches as in an evaluation.

    Args:
        finish: in a graph, from the metric states after the last batch to R.
    """

    def begin() -> dict:
        return model.initial_metrics()

    def step(carry: dict, batch: TensorStructure, weights: ModelWeights) -> dict:
        return model.step(weights, carry, batch, training=False)[2]

    return client_steps(model, begin, step, finish)


class ClientMetricsOutput(NamedTuple):
    """The result of `next` of an evaluation with `per_client`."""

    state: object
    metrics: object
    client_metrics: object


@attrs.frozen
class EvaluationWork:
    """The clients' part of an evaluation; both functions are used while a computation is traced.

    Args:
        start: () -> the state of no rounds, at the server.
        run: (state, changing weights at the clients, data) -> (state, metrics at the server, metrics of each client or
            None).
        model: the model whose weights are evaluated, which names them in the round; None for several models.
    """

    start: Callable
    run: Callable
    model: PureModel | None = None


def evaluation_work(
    model: PureModel,
    evaluate: Computation,
    metrics_aggregation_process: AggregationProcess | None = None,
    per_client: Sequence[float] | None = None,
    metrics_aggregator: Callable | None = None,
    whole: Callable = whole_weights,
) -> EvaluationWork:
    """Builds the clients' part of an evaluation, whose reports are aggregated as `build_fed_eval` says.

    Args:
        evaluate: a client's work, `(<W,B*> -> reported metrics)`.
        metrics_aggregation_process, per_client, metrics_aggregator: as for `build_fed_eval`.
        whole: (model, changing weights at the clients) -> W at the clients; called while a round is traced.
    Raises:
        TypeMismatch: `metrics_aggregation_process` is no aggregation process.
    """
    process: Any = metrics_aggregation_process or _TotalOfRounds(model, per_client, metrics_aggregator)
    if metrics_aggregation_process is not None and not isinstance(metrics_aggregation_process, AggregationProcess):
        raise TypeMismatch(
            "metrics_aggregation_process is a fc.templates.AggregationProcess, not "
            f"{brief(metrics_aggregation_process)}"
        )

    def run(state: Value, weights: Value, data: Value) -> tuple[Value, Value, Value | None]:
        reports = federated_map(evaluate, (whole(model, weights), data))
        output = process.next(state, _wanted_reports(process, reports))
        current, total = output.result[0], output.result[1]
        metrics = federated_zip({"eval": {"current_round_metrics": current, "total_rounds_metrics": total}})
        finalize = tf_computation(lambda report: model.finalize_metrics(report))
        return output.state, metrics, None if per_client is None else federated_map(finalize, reports)

    return EvaluationWork(process.initialize, run, model)


def _wanted_reports(process: Any, reports: Value) -> Value:
    """The clients' reports without the metrics that a user's aggregation process does not take."""
    if not isinstance(process, AggregationProcess):
        return reports
    wanted, reported = (member_of(t) for t in (process.next.module.main.parameters[1].type, reports.type))
    if not isinstance(wanted, StructType) or not isinstance(reported, StructType):
        return reports
    if not set(wanted.names) < set(reported.names):
        return reports
    return federated_map(lambda report: {name: report[name] for name in wanted.names}, reports)


@attrs.frozen
class _Output:
    """The fields of an aggregation's output that `evaluation_work` reads: result is (M of this round, M of all)."""

    state: Any
    result: Any


class _TotalOfRounds:
    """Adds the clients' reports of a round and of all rounds, and computes the metrics of both.

    It stands in for an `AggregationProcess` while a computation is traced; its state is the total of all rounds.
    """

    def __init__(
        self, model: PureModel, per_client: Sequence[float] | None, metrics_aggregator: Callable | None
    ) -> None:
        self._model = model
        if per_client is not None and np.size(per_client):
            metrics_aggregator = add_client_quantiles(quantiles=per_client)
        self._aggregate_metrics = (metrics_aggregator or sum_then_finalize)(model)

    def initialize(self) -> Value:
        model = self._model
        # Reports are added, so zeros are the total of no clients; a client without data need not report zeros.
        no_metrics = tf_computation(
            lambda: tf.nest.map_structure(tf.zeros_like, model.report_metrics(model.initial_metrics()))
        )
        return federated_eval(no_metrics, SERVER)

    def next(self, state: Value, reports: Value) -> _Output:
        finalize = tf_computation(lambda total: self._model.finalize_metrics(total))
        summed, current = self._aggregate_metrics(reports)
        total = federated_map(lambda a, b: generic_plus(a, b), (state, summed))
        return _Output(total, (current, federated_map(finalize, total)))


def build_evaluation_process(
    initial_weights: Computation,
    batch_type: Type,
    work: EvaluationWork,
    model_distributor: MeasuredProcess | None = None,
    functions: Mapping[str, Any] | None = None,
) -> LearningProcess:
    """The process whose round is: send the weights, do `work`; the weights stay.

    Args:
        work: its state and metrics are those of the process.
        functions: `get_model_weights` and `set_model_weights` of `LearningProcess`, by name. Default: its own.
    """
    check_distributor(model_distributor, initial_weights.type_signature.result)

    @federated_computation
    def initialize() -> Value:
        return first_state(
            federated_eval(initial_weights, SERVER),
            federated_value((), SERVER),
            distributor=model_distributor.initialize() if model_distributor else None,
            client_work=work.start(),
        )

    @federated_computation(initialize.type_signature.result, FederatedType(SequenceType(batch_type), CLIENTS))
    def evaluation_round(state: Value, data: Value) -> LearningProcessOutput | ClientMetricsOutput:
        weights, distributor_state, distributor_metrics = distribute(model_distributor, state)
        work_state, metrics, client_metrics = work.run(state.client_work, weights, data)
        output = LearningProcessOutput(
            next_state(state, distributor=distributor_state, client_work=work_state),
            round_metrics(client_work=metrics, distributor=distributor_metrics),
        )
        return output if client_metrics is None else ClientMetricsOutput(*output, client_metrics)

    named = evaluation_round if work.model is None else with_weight_names(evaluation_round, work.model)
    return LearningProcess(initialize, named, **(functions or {}))

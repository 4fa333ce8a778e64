"""Mime Lite: clients step with the statistics of one optimizer that the server keeps."""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators import AggregationFactory
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_map, federated_mean, federated_zip
from fedcore.ir import Value
from fedcore.learning.algorithms.client_work import Steps, begin_without_optimizer, client_steps
from fedcore.learning.algorithms.fed_avg import build_server_work
from fedcore.learning.algorithms.fed_avg_with_schedule import check_has_rate
from fedcore.learning.algorithms.fed_sgd import build_gradient
from fedcore.learning.algorithms.given_parts import adapt_unweighted, build_aggregation, check_distributor, distribute
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.frozen_weights import changing_type, whole_weights
from fedcore.learning.models.gradients import gradients_of
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.models.weight_roles import WeightRoles
from fedcore.learning.optimizers import Optimizer, as_optimizer
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.optimizers.scheduled_optimizer import scheduled_rate
from fedcore.learning.process import LearningProcess, LearningProcessOutput
from fedcore.learning.templates.state import next_state, round_metrics
from fedcore.learning.templates.training_result import all_finite, finite_or_nothing, zeros_unless
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.templates import MeasuredProcess
from fedcore.tff_names import drops_tff_arguments
from fedcore.types import CLIENTS, FederatedType, SequenceType, Type


@attrs.frozen
class _Result:
    """The result of a client's work.

    Args:
        client: a `TrainingResult`.
        gradients: of the trainable weights, the mean over the client's examples at the weights that were sent.
        examples: how many examples that is, as float32; 0, with gradients of zeros, where they are not finite.
    """

    client: Any
    gradients: Any
    examples: Any


def _build_training(model: PureModel, optimizer: Optimizer, weighting: Weighting, state_type: Type) -> Computation:
    """The computation `(<W,S,B*> -> _Result)`: local steps of the optimizer, each from the state S that was sent.

    Args:
        state_type: S, the optimizer's state, which holds its statistics.
    """
    roles = model.weight_roles

    def step(carry: Steps, batch: TensorStructure, weights: ModelWeights, state: TensorStructure) -> Steps:
        current = roles.replace(weights, carry.weights)
        gradients, _, non_trainable, metrics = gradients_of(model, current, carry.metrics, batch)
        _, trainable = optimizer.next(state, carry.weights.trainable, gradients)  # the new statistics are dropped
        return Steps(roles.changing(ModelWeights(model.constrain(trainable), non_trainable)), metrics)

    def finish(initial: ModelWeights, carry: Steps, second: TensorStructure) -> _Result:
        finite = all_finite(second.gradients)
        examples = tf.cast(second.metrics["num_examples"][0], tf.float32)
        weight, report = weight_and_report(model, weighting, carry.metrics)
        update = roles.difference(carry.weights, initial)
        change = finite_or_nothing(update, weight, report, second.gradients)
        return _Result(change, *zeros_unless(finite, (second.gradients, examples)))

    begin, second_pass = begin_without_optimizer(model), build_gradient(model)
    return client_steps(model, begin, step, finish, second_pass=second_pass, state=state_type)


def _build_learning(optimizer: Optimizer) -> Computation:
    """`(<S,U,mean gradient> -> S)`: the state of the base optimizer after a round, with its new statistics.

    A gradient that is not finite leaves the state as it is.
    """

    @tf_computation
    def learn(state: TensorStructure, weights: ModelWeights, gradients: tuple[tf.Tensor, ...]) -> TensorStructure:
        new_state, _ = optimizer.next(state, weights.trainable, gradients)
        finite = all_finite(gradients)
        return tf.nest.map_structure(lambda new, old: tf.where(finite, new, old), new_state, state)

    return learn


@drops_tff_arguments("loop_implementation")
def build_weighted_mime_lite(
    model_fn: ModelFn,
    base_optimizer: OptimizerLike,
    server_optimizer: OptimizerLike | None = None,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    full_gradient_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds Mime Lite: local steps of `base_optimizer` with its statistics frozen for the round.

    Types and other arguments: those of `build_weighted_fed_avg`; `state.client_work` is the state of the base
    optimizer, which is sent with the weights. A client sends the mean gradient of its examples too.

    Args:
        base_optimizer: its statistics move once a round, by the mean gradient over all examples at the weights that
            the round started from.
        server_optimizer: takes the mean change as a negative gradient. Default: SGD with rate 1, which adds it.
        full_gradient_aggregator: joins the clients' mean gradients, weighted by examples. With it `state.aggregator`
            and the metrics of the aggregator are <model=…,full_gradient=…>. Default: a weighted mean.
    Returns:
        A `LearningProcess`. A round without examples leaves the weights and the statistics as they were.
    Raises:
        FedcoreError: as for `build_weighted_fed_avg`.
    Source:
        Karimireddy et al. 2020, "Mime: mimicking centralized stochastic algorithms in federated learning",
        arXiv:2008.03606, Algorithm 1 (MimeLite). Changes and gradients are averaged over examples, where the paper
        averages over clients, and a server optimizer takes the mean change, which the paper adds.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_mime_lite(model_fn, keras.optimizers.SGD(0.1, momentum=0.9))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    return build_mime_lite_with_optimizer_schedule(
        model_fn,
        None,
        base_optimizer,
        server_optimizer,
        client_weighting=client_weighting,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        full_gradient_aggregator=full_gradient_aggregator,
        metrics_aggregator=metrics_aggregator,
    )


@drops_tff_arguments("loop_implementation")
def build_unweighted_mime_lite(
    model_fn: ModelFn,
    base_optimizer: OptimizerLike,
    server_optimizer: OptimizerLike | None = None,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    full_gradient_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds Mime Lite in which every client's change counts the same.

    Types and other arguments: those of `build_weighted_mime_lite`.

    Args:
        model_aggregator: as for `build_unweighted_fed_avg`.
        full_gradient_aggregator: joins the clients' mean gradients. Default: a mean weighted by examples.
    Returns:
        A `LearningProcess`. A round without examples leaves the weights and the statistics as they were.
    Raises:
        FedcoreError: as for `build_unweighted_fed_avg`.
    Source:
        Karimireddy et al. 2020, arXiv:2008.03606, Algorithm 1 (MimeLite). Gradients are averaged over examples, where
        the paper averages over clients, and a server optimizer takes the mean change, which the paper adds.
    Example:
        >>> process = fc.learning.algorithms.build_unweighted_mime_lite(
        ...     model_fn, keras.optimizers.SGD(0.1, momentum=0.9))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    return build_weighted_mime_lite(
        model_fn,
        base_optimizer,
        server_optimizer,
        client_weighting=ClientWeighting.UNIFORM,
        model_distributor=model_distributor,
        model_aggregator=adapt_unweighted(model_aggregator),
        full_gradient_aggregator=adapt_unweighted(full_gradient_aggregator, "full_gradient_aggregator"),
        metrics_aggregator=metrics_aggregator,
    )


@drops_tff_arguments("loop_implementation")
def build_mime_lite_with_optimizer_schedule(
    model_fn: ModelFn,
    learning_rate_fn: Callable | None,
    base_optimizer: OptimizerLike,
    server_optimizer: OptimizerLike | None = None,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    full_gradient_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds Mime Lite with a learning rate of the clients' steps that depends on the round.

    Types and other arguments: those of `build_weighted_mime_lite`; a round's `metrics.client_work` has
    client_learning_rate=float32 beside `train`.

    Args:
        learning_rate_fn: round number (int64 tensor, from 0: `state.round`) -> learning rate, in a graph at the server.
            A Keras schedule is one. None: the rate of the base optimizer, which is `build_weighted_mime_lite`.
        base_optimizer: one with a learning rate, which is replaced; its other numbers stay.
    Returns:
        A `LearningProcess`. A round without clients counts for the schedule.
    Raises:
        FedcoreError: the base optimizer has no learning rate in its state; or as for `build_weighted_mime_lite`.
    Source: that of `build_weighted_mime_lite`.
    Example:
        >>> process = fc.learning.algorithms.build_mime_lite_with_optimizer_schedule(
        ...     model_fn, lambda round_number: 0.5 ** tf.cast(round_number, tf.float32), keras.optimizers.SGD())
        >>> state, _ = process.next(process.initialize(), [client_a, client_b])
        >>> state, metrics = process.next(state, [client_a, client_b])
        >>> metrics['client_work']['client_learning_rate']
        np.float32(0.5)
    """
    model = trace_model(model_fn)
    base = as_optimizer(base_optimizer, model.trainable_names, averages_weights=False)
    set_rate = None if learning_rate_fn is None else _build_rate_setter(base, learning_rate_fn)
    server = build_server_work(model, server_optimizer, metrics_aggregator)
    check_distributor(model_distributor, changing_type(model))
    base_start = tf_computation(lambda: base.initialize(model.initial_changing_weights().trainable))
    train = _build_training(model, base, client_weighting, base_start.type_signature.result)
    aggregation = _Aggregation(
        train.type_signature.result, model.weight_roles, model_aggregator, full_gradient_aggregator
    )
    learn = _build_learning(base)

    initialize = server.initialize(distributor=model_distributor, client_work=base_start, aggregator=aggregation)

    @federated_computation(initialize.type_signature.result, FederatedType(SequenceType(model.batch_type), CLIENTS))
    def next_round(state: Value, data: Value) -> LearningProcessOutput:
        base_state, rate_metrics = state.client_work, {}
        if set_rate is not None:
            base_state = federated_map(set_rate, (state.client_work, state.round))
            rate_metrics = {"client_learning_rate": federated_map(lambda base: base["learning_rate"], base_state)}
        weights, distributor_state, distributor_metrics = distribute(model_distributor, state)
        results = federated_map(train, (whole_weights(model, weights), federated_broadcast(base_state), data))
        mean_change, gradients, aggregator, measurements = aggregation.next(state.aggregator, results)
        updated = federated_map(server.update, (state.finalizer, state.global_model_weights, mean_change))  # <O,U>
        _, train_metrics = server.aggregate_metrics(results.client.metrics)
        new_state = next_state(
            state,
            global_model_weights=updated[1],
            distributor=distributor_state,
            client_work=federated_map(learn, (base_state, state.global_model_weights, gradients)),
            aggregator=aggregator,
            finalizer=updated[0],
        )
        metrics = round_metrics(
            distributor=distributor_metrics,
            client_work=federated_zip({"train": train_metrics, **rate_metrics}),
            aggregator=measurements,
        )
        return LearningProcessOutput(new_state, metrics)

    settable = tuple(name for name in base.hyperparameters if not (set_rate is not None and name == "learning_rate"))
    return server.process(initialize, next_round, client_work=settable)


def _build_rate_setter(base: Optimizer, learning_rate_fn: Callable) -> Callable:
    """`(<S,round=int64> -> S)`: the base optimizer's state with the learning rate of the round."""
    check_has_rate("base_optimizer", base)

    @tf_computation
    def set_rate(state: TensorStructure, round_number: tf.Tensor) -> TensorStructure:
        rate = scheduled_rate("learning_rate_fn", learning_rate_fn, round_number)
        return base.set_hparams(state, {"learning_rate": rate})

    return set_rate


class _Aggregation:
    """The aggregation of the clients' changes and of their mean gradients; used while a process is traced.

    Its state and measurements are those for the changes; with an aggregator for the gradients,
    <model=…,full_gradient=…>.

    Args:
        result_type: the type of a `_Result`.
    """

    def __init__(
        self,
        result_type: Any,
        roles: WeightRoles,
        model_aggregator: AggregationFactory | None,
        full_gradient_aggregator: AggregationFactory | None,
    ) -> None:
        client = result_type["client"]
        self._changes = build_aggregation(model_aggregator, client["update"], client["weight"], roles=roles)
        self._gradients = None
        if full_gradient_aggregator is not None:
            self._gradients = build_aggregation(
                full_gradient_aggregator, result_type["gradients"], result_type["examples"], "full_gradient_aggregator"
            )

    def initialize(self) -> Value:
        if self._gradients is None:
            return self._changes.initialize()
        return federated_zip({"model": self._changes.initialize(), "full_gradient": self._gradients.initialize()})

    def next(self, state: Value, results: Value) -> tuple:
        """(The mean change, the mean gradient, the next state, the measurements), of a `_Result` of each client."""
        change = results.client.update, results.client.weight
        if self._gradients is None:
            output = self._changes.next(state, *change)
            mean_gradient = federated_mean(results.gradients, results.examples)
            return output.result, mean_gradient, output.state, output.measurements
        output = self._changes.next(federated_map(lambda both: both["model"], state), *change)
        gradients = self._gradients.next(
            federated_map(lambda both: both["full_gradient"], state), results.gradients, results.examples
        )
        new_state, measurements = (
            federated_zip({"model": getattr(output, part), "full_gradient": getattr(gradients, part)})
            for part in ("state", "measurements")
        )
        return output.result, gradients.result, new_state, measurements

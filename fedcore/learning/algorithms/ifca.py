"""IFCA: several models, of which each client trains the one that has the lowest loss on its data."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import tensorflow as tf

from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import InvalidValue
from fedcore.intrinsics import (
    federated_broadcast,
    federated_eval,
    federated_map,
    federated_mean,
    federated_sum,
    federated_zip,
    message,
)
from fedcore.ir import Value
from fedcore.ir.locations import warn_user
from fedcore.learning.algorithms.client_work import ClientWork
from fedcore.learning.algorithms.fed_avg import build_server_work, local_training
from fedcore.learning.algorithms.fed_eval import (
    build_evaluation,
    build_evaluation_process,
    build_loss,
    evaluation_work,
)
from fedcore.learning.algorithms.fed_sgd import gradient_work
from fedcore.learning.algorithms.server_work import ServerWork
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.frozen_weights import join_weights, split_weights, whole_weights
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers import build_sgdm
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.templates.state import first_state, next_state, round_metrics
from fedcore.learning.weighting import ClientWeighting, Weighting
from fedcore.scalars import whole_number
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType


@attrs.frozen
class _Choice:
    """The model that a client chose: its number, an int32 from 0, and its W."""

    cluster: Any
    weights: Any


def build_ifca(
    model_fn: ModelFn,
    num_clusters: int,
    client_optimizer_fn: OptimizerLike,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    client_weighting: Weighting = ClientWeighting.UNIFORM,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds IFCA with model averaging: each client trains the model with the lowest loss on its data.

    Types, for k models with weights W, changing weights U, batches B and metrics M of the model:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{B*}@CLIENTS> ->
                     <state=State@SERVER,metrics=<client_work=<train=M,clients_by_cluster=int64[k]>,…>@SERVER>)
        State       <global_model_weights=<U,…,U>,client_work=C,finalizer=<O,…,O>,…>: C and O as for
                    `build_weighted_fed_avg`. All k models are sent to every client; a client sends one change.

    Args:
        model_fn, client_optimizer_fn, metrics_aggregator: as for `build_weighted_fed_avg`.
        num_clusters: k, 1 or more. A client computes k losses over its data before it trains.
        server_optimizer_fn: takes the mean change of a cluster's clients as a negative gradient; each model has a state
            of its own. Default: SGD with rate 1, which adds it.
        client_weighting: inside a cluster. Default: all alike, as IFCA has it; `ClientWeighting.NUM_EXAMPLES` is
            HypCluster's.
    Returns:
        A `LearningProcess` without client states. `clients_by_cluster` has the number of clients that trained each
        model. `get_model_weights` gives the k W; `set_model_weights` takes them. A model that no client chose stays. Of
        equal losses the first wins, so models that begin alike stay alike: initialisers have to draw. `build_ifca_eval`
        evaluates the models.
    Raises:
        FedcoreError: `num_clusters` is less than 1; or as for `build_weighted_fed_avg`.
    Source:
        Ghosh et al. 2020, "An efficient framework for clustered federated learning", arXiv:2006.04088, Algorithm 1,
        option II. Weighted by examples: HypCluster of Mansour et al. 2020, "Three approaches for personalization with
        applications to federated learning", arXiv:2002.10619. The loss of the choice is that of an evaluation.
    Example:
        >>> def draw():
        ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), spec)
        >>> process = fc.learning.algorithms.build_ifca(draw, 2, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['client_work']['clients_by_cluster'].sum(), len(process.get_model_weights(state))
        (np.int64(2), 2)
    """

    def mean(update: Value, weight: Value, chosen: Value) -> Value:
        """The mean over the clients that chose the model."""
        return federated_mean(update, federated_map(lambda w, c: w * c, (weight, chosen)))

    model = trace_model(model_fn)
    work = local_training(model, client_optimizer_fn, client_weighting)
    server = build_server_work(model, server_optimizer_fn, metrics_aggregator)
    return _build_process(model, num_clusters, work, server, mean)


def build_ifca_with_gradients(
    model_fn: ModelFn,
    num_clusters: int,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    client_weighting: Weighting = ClientWeighting.UNIFORM,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds IFCA with gradient averaging: each client sends its gradient of the model with the lowest loss.

    Types and other arguments: those of `build_ifca`; `state.client_work` is <>.

    Args:
        server_optimizer_fn: takes a step with the sum of the gradients of a model's clients, over the weights of all
            clients of the round. Default: SGD with rate 0.1.
        client_weighting: of the gradients, each the mean of a client's examples. Default: all alike.
    Returns:
        A `LearningProcess`, as for `build_ifca`. A model that no client chose gets a gradient of zeros.
    Raises:
        FedcoreError: as for `build_ifca`.
    Source:
        Ghosh et al. 2020, arXiv:2006.04088, Algorithm 1, option I, with a server optimizer in place of the plain step;
        the sum is divided by the clients of the round, where the paper divides by all m clients.
    Example:
        >>> def draw():
        ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), spec)
        >>> process = fc.learning.algorithms.build_ifca_with_gradients(draw, 2, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """

    def mean(update: Value, weight: Value, chosen: Value) -> Value:
        """The mean over all clients, with zeros from those that chose another model."""
        return federated_mean(federated_map(zeros_unless_chosen, (update, chosen)), weight)

    @tf_computation
    def zeros_unless_chosen(update: ModelWeights, chosen: tf.Tensor) -> ModelWeights:
        return tf.nest.map_structure(lambda u: u * tf.cast(chosen, u.dtype), update)

    model = trace_model(model_fn)
    optimizer_fn = build_sgdm(0.1) if server_optimizer_fn is None else server_optimizer_fn
    server = build_server_work(model, optimizer_fn, metrics_aggregator)
    return _build_process(model, num_clusters, gradient_work(model, client_weighting), server, mean)


def build_ifca_eval(
    model_fn: ModelFn,
    num_clusters: int,
    *,
    per_client: Sequence[float] | None = None,
    metrics_aggregator: Callable | None = None,
) -> LearningProcess:
    """Builds the evaluation of IFCA's models: each client computes the metrics of the one with its lowest loss.

    Types: those of `build_fed_eval`, with k weights in the state as for `build_ifca`.

    Args:
        model_fn, num_clusters: those of `build_ifca`.
        per_client, metrics_aggregator: as for `build_fed_eval`.
    Returns:
        A `LearningProcess`, for `evaluation=` of `fc.learning.programs.train`; `set_model_weights` takes k W. A client
        chooses by the loss on the data that it is evaluated on.
    Raises:
        FedcoreError: as for `build_fed_eval` and `build_ifca`.
    Source: Ghosh et al. 2020, arXiv:2006.04088, section 6.
    Example:
        >>> evaluation = fc.learning.algorithms.build_ifca_eval(model_fn, 2)
        >>> ones = fc.learning.ModelWeights((np.ones([2, 1], np.float32), np.zeros([1], np.float32)), ())
        >>> zeros = fc.learning.ModelWeights((np.zeros([2, 1], np.float32), np.zeros([1], np.float32)), ())
        >>> evaluated = evaluation.set_model_weights(evaluation.initialize(), [zeros, ones])
        >>> _, metrics = evaluation.next(evaluated, [client_a, client_b])
        >>> metrics['client_work']['eval']['current_round_metrics']['loss']
        np.float32(0.0)
    """
    num_clusters = whole_number("num_clusters", num_clusters, at_least=1)
    model = trace_model(model_fn)
    choose, report = _build_choice(model, num_clusters), build_evaluation(model)
    models, batches = (p.type for p in choose.module.main.parameters)

    @federated_computation(models, batches)
    def evaluate(models: Value, batches: Value) -> Value:
        return report(choose(models, batches).weights, batches)

    whole = functools.partial(_join_frozen_weights, num_clusters=num_clusters)
    work = evaluation_work(model, evaluate, None, per_client, metrics_aggregator, whole)
    initial = tf_computation(lambda: tuple(model.initial_changing_weights() for _ in range(num_clusters)))
    return build_evaluation_process(
        initial, model.batch_type, attrs.evolve(work, model=None), None, _weights_functions(model, num_clusters)
    )


# At a client.


def _build_choice(model: PureModel, num_clusters: int) -> Computation:
    """`(<<W,…,W>,B*> -> _Choice)`: the model with the lowest loss, where losses that are not finite are infinite."""
    loss = build_loss(model)

    @tf_computation
    def choose(losses: tuple[tf.Tensor, ...], models: tuple[ModelWeights, ...]) -> _Choice:
        stacked = tf.stack(losses)
        cluster = tf.argmin(tf.where(tf.math.is_finite(stacked), stacked, float("inf")), output_type=tf.int32)
        return _Choice(cluster, tf.nest.map_structure(lambda *leaves: tf.gather(tf.stack(leaves), cluster), *models))

    @federated_computation((model.weights_type,) * num_clusters, SequenceType(model.batch_type))
    def choose_model(models: Value, batches: Value) -> Value:
        return choose(tuple(loss(models[i], batches) for i in range(num_clusters)), models)

    return choose_model


# A round.


def _build_process(
    model: PureModel, num_clusters: int, work: ClientWork, server: ServerWork, mean: Callable
) -> LearningProcess:
    """The process of k models that differ in their weights.

    Args:
        work: the training of one model, the chosen one.
        server: steps with the mean change of one model, on a state of its own for each.
        mean: traced in a round for each model, of values at the clients: (changes, their weights, 1.0 for the clients
            that chose the model and 0.0 for the others) -> the mean change of the model, at the server.
    """
    num_clusters = whole_number("num_clusters", num_clusters, at_least=1)
    choose = _build_choice(model, num_clusters)
    has_message = len(work.train.module.main.parameters) == 3  # <W,H,B*>, not <W,B*>
    clusters = range(num_clusters)
    if num_clusters > 1 and not any(graph.attributes.get("seeded") for graph in server.start.module.graphs):
        warn_user(
            "the model's initial weights draw no random numbers, so all models begin alike; of equal losses the first "
            "wins, so they stay alike\n"
            "  fix: process.set_model_weights(process.initialize(), [...]) gives each model weights of its own"
        )

    @federated_computation
    def initialize() -> Value:
        starts: list[Any] = [federated_eval(server.start, SERVER) for _ in clusters]  # for each model <U,O>
        return first_state(
            federated_zip(tuple(start[0] for start in starts)),
            federated_zip(tuple(start[1] for start in starts)),
            client_work=federated_eval(work.initialize, SERVER),
        )

    def train_at_clients(state: Value, data: Value) -> tuple[tuple[Value, Value, Value], Value]:
        """Each client trains the model that it chooses.

        Returns:
            ((the changes of U, their weights, the numbers of the chosen models), the reports of metrics): at the
            clients, of which only the first three are used for the models.
        """
        hparams = federated_map(work.send, state.client_work)
        sent = federated_broadcast(federated_zip((state.global_model_weights, hparams)))
        choice: Any = federated_map(choose, (_join_frozen_weights(model, sent[0], num_clusters), data))
        trained: Any = federated_map(work.train, (choice.weights, *((sent[1],) if has_message else ()), data))
        # A client sends one message; the k weighted changes are computed from it at the server. Without `message` a
        # client would send each of them.
        crossing: Any = federated_map(
            lambda update, weight, cluster: message((update, weight, cluster)),
            (trained.update, trained.weight, choice.cluster),
        )
        return (crossing[0], crossing[1], crossing[2]), trained.metrics

    @federated_computation(initialize.type_signature.result, FederatedType(SequenceType(model.batch_type), CLIENTS))
    def next_round(state: Value, data: Value) -> LearningProcessOutput:
        (update, weight, cluster), trained_metrics = train_at_clients(state, data)
        chosen = [federated_map(_build_indicator(i), cluster) for i in clusters]
        changes = [mean(update, weight, chooses) for chooses in chosen]
        moved: list[Any] = [  # for each model <O,U>
            federated_map(server.update, (state.finalizer[i], state.global_model_weights[i], changes[i]))
            for i in clusters
        ]
        counts = federated_sum(federated_map(_count_choice, (weight, federated_zip(tuple(chosen)))))
        _, metrics = server.aggregate_metrics(trained_metrics)
        new_state = next_state(
            state,
            global_model_weights=federated_zip(tuple(m[1] for m in moved)),
            client_work=federated_map(work.advance, state.client_work),
            finalizer=federated_zip(tuple(m[0] for m in moved)),
        )
        work_metrics = federated_zip({"train": metrics, "clients_by_cluster": counts})
        return LearningProcessOutput(new_state, round_metrics(client_work=work_metrics))

    return LearningProcess(
        initialize,
        next_round,
        hyperparameters={"client_work": work.hyperparameters},
        **_weights_functions(model, num_clusters),
    )


def _build_indicator(number: int) -> Computation:
    """`(int32 -> float32)`: 1 where a client chose the model with this number, else 0."""
    return tf_computation(lambda cluster: tf.cast(tf.equal(cluster, number), tf.float32), "int32")


@tf_computation
def _count_choice(weight: tf.Tensor, chosen: tuple[tf.Tensor, ...]) -> tf.Tensor:
    """int64[k]: 1 at the model that a client chose, else 0; all 0 for a client of weight 0."""
    return tf.cast(tf.where(weight > 0, tf.stack(chosen), 0.0), tf.int64)


def _join_frozen_weights(model: PureModel, sent: Value, num_clusters: int) -> Value:
    """The k W at the clients, of the k U that were sent and the frozen weights; called while a round is traced."""
    return federated_zip(tuple(whole_weights(model, sent[i]) for i in range(num_clusters)))


def _weights_functions(model: PureModel, num_clusters: int) -> dict[str, Callable]:
    """The arguments `get_model_weights` and `set_model_weights` of a process whose state holds k U, by name."""

    def get_model_weights(state: LearningAlgorithmState) -> tuple[ModelWeights, ...]:
        models: Any = state.global_model_weights
        return tuple(join_weights(model, weights) for weights in models)

    def set_model_weights(state: LearningAlgorithmState, models: Sequence[ModelWeights]) -> LearningAlgorithmState:
        if isinstance(models, ModelWeights) or len(models) != num_clusters:
            count = "one" if isinstance(models, ModelWeights) else len(models)
            raise InvalidValue(f"there are {num_clusters} models; the weights are those of {count}")
        return state.replace(global_model_weights=tuple(split_weights(model, weights) for weights in models))

    return {"get_model_weights": get_model_weights, "set_model_weights": set_model_weights}

"""Federated reconstruction: part of the weights is trained anew at every client and never leaves it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fedcore.aggregators import UnweightedAggregationFactory, WeightedAggregationFactory, as_weighted_aggregator
from fedcore.aggregators.factory import check_factory
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.graphs.sequences.symbolic_dataset import SymbolicDataset
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import sequence_reduce
from fedcore.ir import Value
from fedcore.ir.locations import describe
from fedcore.learning.algorithms.client_work import ClientWork, Steps, client_steps, initial_hyperparameters
from fedcore.learning.algorithms.fed_avg import federated_averaging
from fedcore.learning.algorithms.fed_eval import build_evaluation_process, evaluation_work
from fedcore.learning.models import ModelWeights, ReconstructionModel
from fedcore.learning.models.frozen_weights import weights_functions
from fedcore.learning.models.gradients import gradients_of
from fedcore.learning.models.partly_local_model import PartlyLocalModel, trace_reconstruction_model
from fedcore.learning.models.pure_model import constrained
from fedcore.learning.optimizers import Optimizer, as_optimizer, build_sgdm
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningProcess
from fedcore.learning.templates.training_result import TrainingResult, finite_or_nothing
from fedcore.learning.weighting import ClientWeighting, Weighting, weight_and_report
from fedcore.templates import AggregationProcess, MeasuredProcess
from fedcore.types import SequenceType, Type

_RECONSTRUCTION_PREFIX = "reconstruction_"  # before the names of the reconstruction's hyperparameters in the state


def build_fed_recon(
    model_fn: Callable[[], ReconstructionModel],
    *,
    loss_fn: Callable,
    metrics_fn: Callable | None = None,
    server_optimizer_fn: OptimizerLike | None = None,
    client_optimizer_fn: OptimizerLike | None = None,
    reconstruction_optimizer_fn: OptimizerLike | None = None,
    dataset_split_fn: Callable | None = None,
    client_weighting: Weighting | None = None,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator_factory: WeightedAggregationFactory | UnweightedAggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds federated reconstruction: clients train their local weights, then the global ones, and send these.

    Types, for global weights W, those U of them that change, batches B and metrics M: those of
    `build_weighted_fed_avg`; `state.client_work` is <learning_rate=float32,…,reconstruction_learning_rate=float32,…>,
    the hyperparameters of the two optimizers.

    Args:
        model_fn: makes a `ReconstructionModel`. Without local trainable weights there is no reconstruction.
        loss_fn: () -> a loss of labels and predictions, such as `keras.losses.MeanSquaredError`.
        metrics_fn: () -> Keras metrics. They, the loss and num_examples are of the batches after the reconstruction.
            Default: none.
        server_optimizer_fn: as for `build_weighted_fed_avg`. Default: SGD with rate 1.
        client_optimizer_fn: of the global weights, with the local ones frozen. Default: SGD with rate 0.1.
        reconstruction_optimizer_fn: of the local weights, from their initial values, with the global ones frozen.
            Default: SGD with rate 0.1.
        dataset_split_fn: a client's `tf.data.Dataset` -> (that of the reconstruction, that of after it). Default:
            `ReconstructionModel.build_dataset_split_fn(split_dataset=True)`, every second batch.
        client_weighting: as for `build_weighted_fed_avg`. Default: by the examples after the reconstruction.
        model_aggregator_factory: joins changes of type U; one without weights takes the weighting UNIFORM only.
            Default: a weighted mean.
        model_distributor, metrics_aggregator: as for `build_weighted_fed_avg`.
    Returns:
        A `LearningProcess`. A client without a batch after the reconstruction (with the default split, one with less
        than two) has weight 0. A round of such clients leaves W as it was.
    Raises:
        TracingError: `model_fn` makes no `ReconstructionModel`.
        FedcoreError: an aggregator without weights and another weighting than UNIFORM; or as for
            `build_weighted_fed_avg`.
    Source:
        Singhal et al. 2021, "Federated reconstruction: partially local federated learning", arXiv:2102.03448,
        Algorithm 1. Global weights that steps assign move by their mean change, as in `build_weighted_fed_avg`.
    Example:
        >>> def make():
        ...     shared, own = keras.layers.Dense(4), keras.layers.Dense(1)
        ...     return fc.learning.models.ReconstructionModel.from_keras_model_and_layers(
        ...         keras.Sequential([keras.Input((2,)), shared, own]),
        ...         global_layers=[shared], local_layers=[own], input_spec=spec)
        >>> training = fc.learning.algorithms.build_fed_recon(make, loss_fn=keras.losses.MeanSquaredError)
        >>> after, metrics = training.next(training.initialize(), [client_a, client_b])
        >>> len(after.global_model_weights.trainable), metrics['client_work']['train']['num_examples']
        (2, np.int64(1))
    """
    weighting: Weighting = ClientWeighting.NUM_EXAMPLES if client_weighting is None else client_weighting
    aggregator = _as_weighted(model_aggregator_factory, weighting)
    model: Any = trace_reconstruction_model(model_fn, loss_fn, metrics_fn)
    optimizer = _client_optimizer(client_optimizer_fn, model.trainable_names)
    recon_optimizer = _client_optimizer(reconstruction_optimizer_fn, model.local_trainable_names)
    hyperparameters = {
        **optimizer.hyperparameters,
        **{_RECONSTRUCTION_PREFIX + name: value for name, value in recon_optimizer.hyperparameters.items()},
    }

    initialize = initial_hyperparameters(hyperparameters)

    hparams_type = initialize.type_signature.result
    reconstruct = _build_reconstruction(model, recon_optimizer, hparams_type)
    train_global = _build_training(model, optimizer, weighting, hparams_type)
    split = _build_split(model, dataset_split_fn)

    @federated_computation(model.weights_type, hparams_type, SequenceType(model.batch_type))
    def train(weights: Value, hparams: Value, batches: Value) -> Value:
        parts = split(batches)
        return train_global(weights, reconstruct(weights, hparams, parts[0]), hparams, parts[1])

    return federated_averaging(
        model,
        ClientWork(train, initialize, hyperparameters=tuple(hyperparameters)),
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=aggregator,
        metrics_aggregator=metrics_aggregator,
    )


def build_fed_recon_eval(
    model_fn: Callable[[], ReconstructionModel],
    *,
    loss_fn: Callable,
    metrics_fn: Callable | None = None,
    reconstruction_optimizer_fn: OptimizerLike | None = None,
    dataset_split_fn: Callable | None = None,
    model_distributor: MeasuredProcess | None = None,
    metrics_aggregation_process: AggregationProcess | None = None,
) -> LearningProcess:
    """Builds the evaluation of a model with local weights: clients train these, then compute the metrics.

    Types, for global weights W: those of `build_fed_eval`.

    Args:
        model_fn, loss_fn, metrics_fn, reconstruction_optimizer_fn, dataset_split_fn: as for `build_fed_recon`; the
            metrics are of the second part of the split.
        model_distributor, metrics_aggregation_process: as for `build_fed_eval`.
    Returns:
        A `LearningProcess`; put the global weights into its state with `set_model_weights`. No clients: counts
        and a loss of 0.
    Raises:
        TracingError: `model_fn` makes no `ReconstructionModel`.
        FedcoreError: as for `build_fed_eval`.
    Source:
        Singhal et al. 2021, arXiv:2102.03448, section 4: local weights of a support set, metrics of a query set.
    Example:
        >>> def make():
        ...     own = keras.layers.Dense(1)
        ...     return fc.learning.models.ReconstructionModel.from_keras_model_and_layers(
        ...         keras.Sequential([keras.Input((2,)), own]), global_layers=[], local_layers=[own], input_spec=spec)
        >>> evaluation = fc.learning.algorithms.build_fed_recon_eval(make, loss_fn=keras.losses.MeanSquaredError)
        >>> evaluated, metrics = evaluation.next(evaluation.initialize(), [client_a, client_b])
        >>> metrics['client_work']['eval']['current_round_metrics']['num_examples']
        np.int64(1)
    """
    model: Any = trace_reconstruction_model(model_fn, loss_fn, metrics_fn)
    optimizer = _client_optimizer(reconstruction_optimizer_fn, model.local_trainable_names)
    initial_weights = tf_computation(lambda: model.initial_changing_weights())
    nothing = tf_computation(lambda: ())
    reconstruct = _build_reconstruction(model, optimizer, nothing.type_signature.result)
    split = _build_split(model, dataset_split_fn)
    begin = tf_computation(lambda: model.initial_metrics())
    report = tf_computation(lambda metrics: model.report_metrics(metrics))

    @tf_computation
    def step(metrics: dict, batch: TensorStructure, weights: ModelWeights, local: ModelWeights) -> dict:
        return model.whole.step(model.joined(weights, local), metrics, batch, training=False)[2]

    @federated_computation(model.weights_type, SequenceType(model.batch_type))
    def evaluate(weights: Value, batches: Value) -> Value:
        parts = split(batches)
        local = reconstruct(weights, nothing(), parts[0])
        return report(sequence_reduce(parts[1], begin(), lambda metrics, batch: step(metrics, batch, weights, local)))

    work = evaluation_work(model, evaluate, metrics_aggregation_process)
    return build_evaluation_process(
        initial_weights, model.batch_type, work, model_distributor, weights_functions(model)
    )


def _client_optimizer(optimizer_fn: OptimizerLike | None, names: Sequence[str]) -> Optimizer:
    """The optimizer of a client's steps on the weights of these names; SGD with rate 0.1 where none is given."""
    return as_optimizer(build_sgdm(0.1) if optimizer_fn is None else optimizer_fn, names, averages_weights=False)


def _as_weighted(
    factory: WeightedAggregationFactory | UnweightedAggregationFactory | None, weighting: Weighting
) -> WeightedAggregationFactory | None:
    """The user's aggregator as a weighted one, which `federated_averaging` takes; None for its default.

    Raises:
        InvalidValue: the aggregator takes no weights, but the weighting is another than UNIFORM.
    """
    if factory is None or isinstance(factory, WeightedAggregationFactory):
        return factory
    check_factory("model_aggregator_factory", factory)
    if weighting is not ClientWeighting.UNIFORM:
        raise InvalidValue(
            f"model_aggregator_factory takes no weights ({type(factory).__name__}): use "
            "client_weighting=fc.learning.ClientWeighting.UNIFORM with it"
        )
    return as_weighted_aggregator(factory)


def _build_split(model: PartlyLocalModel, dataset_split_fn: Callable | None) -> Computation:
    """`(B* -> <B*,B*>)`: a client's batches for the reconstruction, and those for what comes after it."""
    split_fn = dataset_split_fn or ReconstructionModel.build_dataset_split_fn(split_dataset=True)

    @tf_computation(SequenceType(model.batch_type))
    def split(batches: SymbolicDataset) -> tuple:
        parts = convert_function(split_fn)(batches)
        if not isinstance(parts, tuple | list) or len(parts) != 2:
            raise TypeMismatch(
                f"{describe(split_fn)} returns {brief(parts)}; a dataset_split_fn returns two datasets: that of the "
                "reconstruction, and that of after it"
            )
        return tuple(parts)

    return split


def _build_reconstruction(model: PartlyLocalModel, optimizer: Optimizer, hparams_type: Type) -> Computation:
    """`(<W,H,B*> -> L)`: the local weights L, trained from their initial values while the global ones W stay.

    Args:
        hparams_type: H; its fields `reconstruction_…` are the optimizer's hyperparameters. <>: those it was built with.
    """

    def begin(hparams: dict[str, tf.Tensor] | tuple[()]) -> Steps:
        local = model.initial_local_weights()
        values = {name: hparams[_RECONSTRUCTION_PREFIX + name] for name in optimizer.hyperparameters if hparams}
        state = optimizer.set_hparams(optimizer.initialize(local.trainable), values)
        return Steps(local, _layer_states(model.initial_metrics()), state)

    def step(carry: Steps, batch: TensorStructure, weights: ModelWeights) -> Steps:
        whole = model.joined(weights, carry.weights)
        gradients, _, moved, metrics = gradients_of(
            model.whole, whole, model.initial_metrics() | dict(carry.metrics or {}), batch
        )
        # The trainable part are gradients, the other part the weights as the layers of L have assigned them.
        _, local = model.divided(ModelWeights(gradients, moved))
        state, trainable = optimizer.next(carry.optimizer, carry.weights.trainable, local.trainable)
        trained = ModelWeights(model.constrain_local(trainable), local.non_trainable)
        return Steps(trained, _layer_states(metrics), state)

    def finish(carry: Steps) -> ModelWeights:
        return carry.weights

    @federated_computation(model.weights_type, hparams_type, SequenceType(model.batch_type))
    def initialize_local(_weights: Value, _hparams: Value, _batches: Value) -> Value:
        return tf_computation(lambda: model.initial_local_weights())()

    if not model.places["local_trainable_variables"]:
        return initialize_local
    return client_steps(model, begin, step, finish, hparams=hparams_type)


def _layer_states(metrics: dict) -> dict:
    """The metric states, by name, that the gradients of the next batch depend on."""
    return {name: states for name, states in metrics.items() if name in ("layer_states", "unlisted")}


def _build_training(
    model: PartlyLocalModel, optimizer: Optimizer, weighting: Weighting, hparams_type: Type
) -> Computation:
    """`(<W,L,H,B*> -> TrainingResult)`: a client's steps on the global weights W, while the local ones L stay.

    `initial` and the weights in the carry are the changing weights U of W, see `WeightRoles`. `weights` are all of W:
    `roles.replace` puts the trained U in the place of the received one, beside the frozen weights.

    Args:
        hparams_type: H, of which this takes the optimizer's hyperparameters by their names.
    """
    local_type = tf_computation(lambda: model.initial_local_weights()).type_signature.result
    roles = model.weight_roles

    def begin(initial: ModelWeights, hparams: dict[str, tf.Tensor] | tuple[()]) -> Steps:
        values = {name: hparams[name] for name in optimizer.hyperparameters if hparams}
        state = optimizer.set_hparams(optimizer.initialize(initial.trainable), values)
        return Steps(initial, model.initial_metrics(), state)

    def step(carry: Steps, batch: TensorStructure, weights: ModelWeights, local: ModelWeights) -> Steps:
        whole = model.joined(roles.replace(weights, carry.weights), local)
        gradients, _, moved, metrics = gradients_of(model.whole, whole, carry.metrics, batch)
        # The trainable part are gradients, the other part the weights as the layers of W have assigned them.
        shared, _ = model.divided(ModelWeights(gradients, moved))
        state, trainable = optimizer.next(carry.optimizer, carry.weights.trainable, shared.trainable)
        trained = ModelWeights(constrained(trainable, model.trainable_constraints), shared.non_trainable)
        return Steps(roles.changing(trained), metrics, state)

    def finish(initial: ModelWeights, carry: Steps) -> TrainingResult:
        weight, report = weight_and_report(model.whole, weighting, carry.metrics)
        return finite_or_nothing(roles.difference(carry.weights, initial), weight, report)

    return client_steps(model, begin, step, finish, local=local_type, hparams=hparams_type)

"""FedDF: the server distils the clients' models, as an ensemble, into one on data without labels."""

from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators.gathering import gather_rows, rows_type
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_map, federated_value, federated_zip
from fedcore.ir import Value
from fedcore.learning.algorithms.fed_avg import build_server_work, local_training
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.frozen_weights import changing_type, whole_weights
from fedcore.learning.models.functional_model import inputs_type
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers import Optimizer, as_optimizer, build_adam
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningProcess, LearningProcessOutput
from fedcore.learning.templates.state import next_state, round_metrics
from fedcore.learning.templates.training_result import all_finite, at_least_float32
from fedcore.learning.weighting import ClientWeighting, Weighting
from fedcore.scalars import whole_number
from fedcore.types import (
    CLIENTS,
    SERVER,
    FederatedType,
    SequenceType,
    TensorType,
    Type,
    explain,
    fits,
    map_tensors,
    tensor_leaves,
)
from fedcore.types import to_type as type_of

_LEAST_PROBABILITY = 1e-7  # as in the cross-entropies of Keras


@attrs.frozen
class _Change:
    """A client's change of U and its weight, which the server gathers from each client."""

    update: Any
    weight: Any


@attrs.frozen
class _Distillation:
    """The server's steps, from the mean of the clients' models (the student), towards their ensemble (the teacher).

    Args:
        optimizer: takes the steps; begun anew in each round.
        logits: predictions -> logits, see `_build_logits`.
        examples: how many examples without labels there are.
        steps: how many steps a round has.
        batch_size: how many examples a step draws.
    """

    model: PureModel
    optimizer: Optimizer
    logits: Callable
    examples: int
    steps: int
    batch_size: int

    def __call__(
        self, mean: ModelWeights, start: ModelWeights, changes: _Change, data: TensorStructure, frozen: tuple
    ) -> tuple[ModelWeights, tf.Tensor]:
        """(The student's U, the mean loss of the steps as float32); `mean` and 0 where no client has a weight.

        Args:
            mean: the U that the steps begin with.
            start: the U that the clients began with.
            changes: of all clients, one in each row of each tensor.
            data: the examples without labels, one in each row.
            frozen: the frozen weights of the model.
        """
        counted = changes.weight > 0
        updates = tf.nest.map_structure(lambda rows: tf.boolean_mask(rows, counted), changes.update)
        clients = tf.range(tf.reduce_sum(tf.cast(counted, tf.int32)))
        roles, predict = self.model.weight_roles, self.model.predict_on_batch
        draws = tf.random.uniform([self.steps, self.batch_size], maxval=self.examples, dtype=tf.int32)  # rows of data

        def client_logits(k: tf.Tensor, x: TensorStructure) -> tf.Tensor:
            """The logits of the k-th client's model, after its training."""
            weights = tf.nest.map_structure(lambda w, rows: w + rows[k], start, updates)
            return self.logits(predict(roles.join(weights, frozen), x))

        def step(number: tf.Tensor, state: Any, trainable: tuple, total: tf.Tensor) -> tuple:
            """One turn of the loop, over (step number, optimizer state, student's trainable weights, sum of losses)."""
            x = tf.nest.map_structure(lambda rows: tf.gather(rows, draws[number]), data)
            with tf.GradientTape() as tape:
                tape.watch(trainable)
                weights = roles.join(ModelWeights(trainable, mean.non_trainable), frozen)
                student = tf.nn.log_softmax(self.logits(predict(weights, x)))  # first: errors break `tf.map_fn`'s scope
                with tape.stop_recording():
                    ensemble = tf.map_fn(lambda k: client_logits(k, x), clients, fn_output_signature=tf.float32)
                    teacher = tf.nn.log_softmax(tf.reduce_mean(ensemble, 0))
                loss = tf.reduce_mean(tf.reduce_sum(tf.exp(teacher) * (teacher - student), -1))
            gradients = (None if g is None else tf.convert_to_tensor(g) for g in tape.gradient(loss, trainable))
            state, trainable = self.optimizer.next(state, trainable, tuple(gradients))
            return number + 1, state, self.model.constrain(trainable), total + loss

        def distil() -> tuple[ModelWeights, tf.Tensor]:
            first = (tf.constant(0), self.optimizer.initialize(mean.trainable), mean.trainable, tf.constant(0.0))
            _, state, trainable, total = tf.while_loop(lambda number, *_: number < self.steps, step, first)
            trainable, loss = self.optimizer.final_weights(state, trainable), total / self.steps
            finite = all_finite((trainable, loss))
            moved = tf.nest.map_structure(lambda new, old: tf.where(finite, new, old), trainable, mean.trainable)
            return ModelWeights(moved, mean.non_trainable), loss

        return tf.cond(tf.size(clients) > 0, distil, lambda: (mean, tf.constant(0.0)))


def build_fed_df(
    model_fn: ModelFn,
    client_optimizer_fn: OptimizerLike,
    server_data: TensorStructure,
    distillation_optimizer_fn: OptimizerLike | None = None,
    *,
    distillation_steps: int,
    distillation_batch_size: int = 128,
    from_logits: bool = False,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds FedDF: the mean of the clients' models is trained, at the server, to predict as all of them together.

    Types: those of `build_weighted_fed_avg`; a round's `metrics.finalizer` is <distillation_loss=float32>.

    Clients train as in federated averaging. The server then takes steps from the mean of their models, each on a batch
    that is drawn, uniformly and with replacement, of its own data: with the Kullback-Leibler divergence from the
    softmax of the mean of the clients' logits, as loss. The server holds the changes of all clients of a round: no
    secure sum can hide them.

    Args:
        model_fn, client_optimizer_fn, client_weighting, metrics_aggregator: as for `build_weighted_fed_avg`; the model
            predicts one tensor whose last axis are the classes.
        server_data: inputs without labels, as the model takes them: arrays with an example in each row.
        distillation_optimizer_fn: of the server's steps, begun anew in each round. Default: Adam with rate 0.001.
        distillation_steps: of a round, 1 or more.
        distillation_batch_size: examples of a step.
        from_logits: whether the model predicts logits; else it predicts probabilities.
    Returns:
        A `LearningProcess`. A round without clients, or whose weights are all 0, leaves the weights as they were; one
        whose distillation is not finite has the mean of the clients' models.
    Raises:
        TypeMismatch: `server_data` are not the model's inputs, or the model predicts no tensor of classes.
        FedcoreError: a number is outside its range, or an optimizer has no functional counterpart.
    Source:
        Lin et al. 2020, "Ensemble distillation for robust model fusion in federated learning", arXiv:2006.07242,
        Algorithm 1, for one kind of model. The distillation's layers predict as in evaluation (no dropout, averages of
        BatchNormalization as they are), and its number of steps is fixed.
    Example:
        >>> def classifier_fn():
        ...     net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation='softmax')])
        ...     labels = tf.TensorSpec([None], tf.int32)
        ...     return fc.learning.from_keras_model(net, 'sparse_categorical_crossentropy', (spec[0], labels))
        >>> process = fc.learning.algorithms.build_fed_df(
        ...     classifier_fn, lambda: keras.optimizers.SGD(0.1), np.ones([10, 2], np.float32),
        ...     distillation_steps=2, distillation_batch_size=4)
        >>> examples = np.ones([4, 2], np.float32), np.int32([0, 1, 2, 0])
        >>> labelled = fc.data.ClientDataset.from_columns(examples).batch(2)
        >>> state, metrics = process.next(process.initialize(), [labelled])
        >>> abs(float(metrics['finalizer']['distillation_loss'])) < 1e-6  # the ensemble is one model, the mean itself
        True
    """
    steps = whole_number("distillation_steps", distillation_steps, at_least=1)
    batch_size = whole_number("distillation_batch_size", distillation_batch_size, at_least=1)
    model = trace_model(model_fn)
    data_type = _type_of_inputs(model, server_data)
    examples = int(tensor_leaves(data_type)[0].sizes[0] or 0)  # `or 0`: known here, but not to the type checker
    work = local_training(model, client_optimizer_fn, client_weighting)
    server = build_server_work(model, metrics_aggregator=metrics_aggregator)
    optimizer_fn = build_adam(0.001) if distillation_optimizer_fn is None else distillation_optimizer_fn
    optimizer = as_optimizer(optimizer_fn, model.trainable_names)
    distillation = _Distillation(model, optimizer, _build_logits(from_logits), examples, steps, batch_size)

    trained: Any = work.train.type_signature.result
    weights_type, change_type = changing_type(model), type_of(_Change(trained["update"], trained["weight"]))
    changes_type, frozen = rows_type(change_type), model.frozen_weights.constants
    join_rows = federated_computation(changes_type)(lambda changes: changes)
    average = tf_computation(changes_type)(_mean_change)
    distil = tf_computation(distillation.__call__, weights_type, weights_type, changes_type, data_type, type_of(frozen))
    initialize = server.initialize(client_work=work.initialize)
    batches = FederatedType(SequenceType(model.batch_type), CLIENTS)

    @federated_computation(initialize.type_signature.result, batches)
    def next_round(state: Value, data: Value) -> LearningProcessOutput:
        start = state.global_model_weights
        sent = federated_broadcast(federated_zip((start, federated_map(work.send, state.client_work))))
        results: Any = federated_map(work.train, (whole_weights(model, sent[0]), sent[1], data))
        changes = gather_rows(federated_zip(_Change(results.update, results.weight)), change_type, join_rows)
        averaged = federated_map(server.update, (state.finalizer, start, federated_map(average, changes)))
        constants = federated_value(server_data, SERVER), federated_value(frozen, SERVER)
        # `averaged` is <O,U>: the mean of the clients' models, by a server optimizer that adds it.
        distilled = federated_map(distil, (averaged[1], start, changes, *constants))  # <U,mean loss>
        _, metrics = server.aggregate_metrics(results.metrics)
        new_state = next_state(state, global_model_weights=distilled[0], finalizer=averaged[0])
        measured = round_metrics(
            client_work=federated_zip({"train": metrics}),
            finalizer=federated_zip({"distillation_loss": distilled[1]}),
        )
        return LearningProcessOutput(new_state, measured)

    return server.process(initialize, next_round, client_work=work.hyperparameters)


def _mean_change(changes: _Change) -> ModelWeights:
    """The weighted mean of the changes, one of which is in each row; NaN where the weights add to 0."""
    total = tf.reduce_sum(changes.weight)

    def mean(rows: tf.Tensor) -> tf.Tensor:
        wide = at_least_float32(rows)
        weighted = tf.tensordot(tf.cast(changes.weight, wide.dtype), wide, 1)
        return tf.cast(weighted / tf.cast(total, wide.dtype), rows.dtype)

    return tf.nest.map_structure(mean, changes.update)


def _type_of_inputs(model: PureModel, server_data: TensorStructure) -> Type:
    """The type of the server's data, with the number of rows as the first size of each tensor.

    Raises:
        TypeMismatch: they are no inputs of the model, their arrays have no or different numbers of rows.
    """
    if not all(getattr(leaf, "shape", ()) for leaf in tf.nest.flatten(server_data)):
        raise TypeMismatch(f"server_data are arrays with an example in each row, not {brief(server_data)}")
    have, want = type_of(server_data), inputs_type(model.batch_type)
    if not fits(map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes[1:])), have), want):
        title = "server_data are not the inputs of the model"
        raise TypeMismatch(explain(title, have, want, have_label="server_data", want_label="the model"))
    rows = {t.sizes[0] for t in tensor_leaves(have)}
    if len(rows) != 1 or 0 in rows:
        raise TypeMismatch(f"server_data have as many rows in each array, at least one, not {have}")
    return have


def _build_logits(from_logits: bool) -> Callable:
    """A function from a model's predictions to logits, float32 of shape [examples, …, classes].

    Raises:
        TypeMismatch: when it is traced, the predictions are no tensor of floats with an axis of classes.
    """

    def logits(predictions: TensorStructure) -> tf.Tensor:
        if not tf.is_tensor(predictions) or not predictions.dtype.is_floating or (predictions.shape.rank or 0) < 2:
            raise TypeMismatch(
                "build_fed_df distils predictions that are one tensor of floats, of shape [examples, classes], but the "
                f"model predicts {type_of(predictions)}"
            )
        wide = tf.cast(predictions, tf.float32)
        return wide if from_logits else tf.math.log(tf.clip_by_value(wide, _LEAST_PROBABILITY, 1.0))

    return logits

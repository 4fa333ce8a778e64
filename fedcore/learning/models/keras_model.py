"""Keras 3 models as pure ones, by steps in a `StatelessScope`.

Counters and states of layers go from batch to batch of a client and end with the round: their mean means nothing.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import tensorflow as tf

from fedcore.collection_pause import without_collection
from fedcore.errors import TracingError, brief
from fedcore.graphs import private_api, private_api_keras
from fedcore.graphs.capture.keras_seeds import draw_seed_state
from fedcore.graphs.tensors.returned import returned
from fedcore.graphs.tensors.specs import element_spec
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.graphs.tensors.values import elements_of
from fedcore.learning.models.frozen_weights import FrozenWeights, first_frozen_weights, frozen_weights
from fedcore.learning.models.functional_model import FunctionalModel, batch_parts, checked_batch_type, type_of_batch
from fedcore.learning.models.held_variables import HoldsVariables, variables_of
from fedcore.learning.models.keras_batches import (
    fit_labels,
    fit_to_inputs,
    fixed_batch_size,
    input_spec_of,
    label_specs,
    sized_inputs,
)
from fedcore.learning.models.keras_checks import (
    check_arguments,
    check_class_weight,
    check_flags,
    check_steps,
    open_shape,
    open_sizes_hint,
    trainable_flags,
    words_of,
)
from fedcore.learning.models.keras_compiled import compile_model
from fedcore.learning.models.keras_constraints import constraint_of
from fedcore.learning.models.keras_lengths import check_lengths
from fedcore.learning.models.keras_outputs import LossLike, index_labels, labels_type, structure_of
from fedcore.learning.models.keras_purity import check_pure, layer_states
from fedcore.learning.models.keras_scope import StepScope
from fedcore.learning.models.model_weights import (
    ModelWeights,
    averaged_weights,
    has_value,
    value_now,
    weights_and_values,
)
from fedcore.learning.models.pure_model import (
    BatchOutput,
    PureModel,
    count_batch,
    finalized_metrics,
    initial_counts,
    reported_metrics,
)
from fedcore.learning.models.traced import active_initialisers
from fedcore.learning.models.weight_roles import WeightRoles, trace_roles
from fedcore.types import StructType, TensorType, Type, to_type


def from_keras_model(
    keras_model: keras.Model,
    loss: LossLike | None = None,
    input_spec: TensorStructure | Type | None = None,
    metrics: Sequence | Mapping | None = None,
    loss_weights: float | Sequence[float] | Mapping[str, float] | None = None,
    *,
    weighted_metrics: Sequence | Mapping | None = None,
    class_weight: Mapping[int, float] | None = None,
) -> PureModel:
    """A Keras 3 model with a loss and metrics, as pure functions of its weights.

    Of a model that is compiled, and where `loss` is left out, the loss and what else is left out of loss_weights,
    metrics and weighted_metrics are those that `compile` was given. The optimizer of `compile` is that of the clients'
    steps for algorithms whose `client_optimizer_fn` is left out.

    Make the Keras model inside `model_fn`, so that its initialisers are traced; one that was made outside starts from
    the values that it has. Weights are the trainable variables and the floating-point ones of the others. Of these the
    server averages what a training step assigns (BatchNormalization); frozen ones, which no step assigns, stay as they
    are and no client sends them: set `trainable` before. Variables of other dtypes (integers, booleans, complex
    numbers, strings) are no weights. Those that a layer assigns, such as a counter that anneals a loss, go from batch
    to batch and epoch to epoch of a client, in training and in evaluation, and start in each of both and in every round
    from the value that the model has here; none is sent. So do the states of stateful recurrent layers, from zeros;
    their batches have the model's fixed number of examples. Floats that a layer assigns in evaluation go from batch to
    batch there, from the weights that are evaluated. A trainable weight that a layer assigns while it trains
    (SpectralNormalization) has the assigned value in the step of the optimizer, as in `fit`; algorithms that do not
    carry it refuse the model.

    A `SeedGenerator`, of a layer, a loss or a metric, and a draw of `keras.random` without a seed give other numbers in
    each batch, client and round, in training and in evaluation, the same for the same seed of the call. A seed that is
    a number gives the same numbers in each batch, as in Keras.

    Types: those of `PureModel`; B is the type that `input_spec` says, W.trainable and W.non_trainable those of the
    Keras model's variables, in their order.

    What losses, loss weights, metrics and sample weights mean is what they mean for Keras' `compile` and `fit`: masks,
    casts, reductions, names and all. Constraints of weights are applied after each step of an optimizer, at the clients
    and at the server. A `compute_loss` or `compute_metrics` of the model's own is called in each step;
    metrics of its layers are reported too. A model with a `train_step` or `test_step` of its own is refused.

    Args:
        loss: as for `compile`: a Keras loss, its name, or a function (y_true, y_pred) -> losses; for several outputs
            one for all, or a list or a dict of them, where None leaves an output out. Default: that of `compile`, with
            the losses that layers add, or the model's own `compute_loss`; there has to be one of them.
        input_spec: the type of a batch: (x, y), (x, y, sample_weight) or a dict with these keys, of TensorSpecs, or a
            sample batch of arrays; for a model whose losses read no labels also x or (x,), the inputs alone. Sample
            weights weigh the loss and the weighted metrics; for several outputs they are one for all or one for each.
            Default: the model's inputs, with labels like its outputs (integers for a sparse loss).
        metrics: as for `compile`: Keras metrics, their names or functions of labels and predictions; also functions ()
            that make one, and for one output a dict of them by name. The metrics of Keras' `fit` have these names
            here: several outputs have a loss each. A loss, weighted by examples, num_examples and num_batches are
            always there, unless a metric of this name takes their place. Default: no others, or those of `compile`.
        loss_weights: of the outputs' losses. Default: 1 each, or those of `compile`.
        weighted_metrics: as `metrics`, which ignore sample weights; these take them. Default: none, or those of
            `compile`.
        class_weight: as for `fit`: the sample weight of each class of integer or one-hot labels, in training only; a
            class that is left out has 1. Default: no weights.
    Raises:
        InvalidValue: the batch is no such batch, or a list of losses or of loss weights has not one for each output.
        TypeMismatch: `class_weight` is no dict from whole numbers to numbers.
        TracingError: there is no loss, the model, the loss or a metric does not take it, batches have sample weights
            beside `class_weight`, a constraint cannot be traced, a weight is overwritten by its gradient, a metric has
            states that cannot be added, or `train_step` or `test_step` are the model's own.
    Example:
        >>> def make():
        ...     error = keras.metrics.MeanAbsoluteError()
        ...     return fc.learning.from_keras_model(keras_model(), 'mse', client_a.element_spec, metrics=[error])
        >>> evaluation = fc.learning.algorithms.build_fed_eval(make)
        >>> state, metrics = evaluation.next(evaluation.initialize(), [client_a])
        >>> round(float(metrics['client_work']['eval']['current_round_metrics']['mean_absolute_error']), 3)
        0.5
    """
    arguments = {
        "loss": loss,
        "loss_weights": loss_weights,
        "metrics": metrics,
        "weighted_metrics": weighted_metrics,
    }
    return _KerasModel(keras_model, input_spec, arguments, check_class_weight(class_weight))


def functional_model_from_keras(
    keras_model: keras.Model | Callable[[], keras.Model],
    loss_fn: LossLike,
    input_spec: TensorStructure | Type | None = None,
    metrics_constructor: Callable | Sequence | Mapping | None = None,
    loss_weights: float | Sequence[float] | Mapping[str, float] | None = None,
) -> PureModel:
    """`from_keras_model` with the argument names that functional models have elsewhere.

    Types: those of `from_keras_model`.

    Args:
        keras_model: a Keras model, or () -> one.
        loss_fn: `loss` of `from_keras_model`.
        metrics_constructor: () -> `metrics` of `from_keras_model`, or the metrics. Default: none.
    Raises:
        TracingError: as for `from_keras_model`.
    Example:
        >>> def make():
        ...     return fc.learning.models.functional_model_from_keras(
        ...         keras_model(), keras.losses.MeanSquaredError(), spec, lambda: [keras.metrics.MeanAbsoluteError()])
        >>> process = fc.learning.algorithms.build_fed_sgd(make)
    """
    if callable(keras_model) and not isinstance(keras_model, keras.Model):
        keras_model = keras_model()
    metrics = metrics_constructor() if callable(metrics_constructor) else metrics_constructor
    return from_keras_model(keras_model, loss_fn, input_spec, metrics, loss_weights)


class _KerasModel(HoldsVariables):
    """The `PureModel` that `from_keras_model` makes."""

    @without_collection()
    def __init__(
        self,
        model: keras.Model,
        input_spec: TensorStructure | Type | None,
        arguments: dict,
        class_weight: dict[int, float] | None,
    ) -> None:
        if not isinstance(model, keras.Model):
            raise TracingError(f"from_keras_model takes a Keras 3 model, not {brief(model)}")
        compiled = private_api_keras.compile_arguments(model)
        self.optimizer = model.optimizer if compiled else None
        if arguments["loss"] is None:
            arguments = {name: compiled.get(name) if given is None else given for name, given in arguments.items()}
        self._class_weight = class_weight
        check_arguments(arguments["loss"], input_spec)
        check_steps(model)
        self.keras_model = model
        self.batch_type = _batch_type(model, arguments["loss"], input_spec)
        self.batch_size = fixed_batch_size(model)
        predictions = self._build_model()
        # (specs of the predictions, for each of them whether its labels are indices): what `fit_labels` takes.
        self._labeled_outputs = predictions, index_labels(model, predictions, arguments["loss"])
        labels_and_weights: list[TensorStructure] = []
        sample_labels: TensorStructure | None = None
        if len(self._part_types) > 1:
            labels_and_weights = [label_specs(self._part_types[1], *self._labeled_outputs), *self._specs()[2:]]
            sample_labels = None if input_spec is None else batch_parts(input_spec)[1]
        self._labels = labels_and_weights[:1]
        self.compiled = compile_model(model, labels_and_weights, self.batch_type, predictions, arguments, sample_labels)
        self.metrics = self.compiled.metrics
        self._assigned = self._check_step(training=True)
        self.assigned_trainable = [v.path for v in model.trainable_variables if id(v) in self._assigned]
        self._assigned_in_evaluation: set[int] = set()
        if private_api.variables_of_own_layers(model):
            self._assigned_in_evaluation = self._check_step(training=False)
        x = self._specs()[0]
        check_lengths(model, lambda x: self._call(*self._fit_sizes([x]), training=False), x, sized_inputs(model, x))
        self._sort_variables()

    def _build_model(self) -> TensorStructure:
        """Builds the model where it is not built, as `fit` does; returns the specs of its predictions.

        Raises:
            TracingError: the model does not take the inputs of a batch.
        """
        x, type_ = self._specs()[0], self._part_types[0]
        try:
            return private_api_keras.outputs_of(lambda x: self._call(*self._fit_sizes([x]), training=False), x)
        except Exception as error:
            raise TracingError(
                f"the Keras model {self.keras_model.name} does not take inputs of type {type_}"
                f"{_wanted_inputs(self.keras_model)}: {words_of(error)}{open_sizes_hint(type_)}"
            ) from error

    def _call(self, x: TensorStructure, *, training: bool) -> TensorStructure:
        return self.keras_model(x, **self._training_argument(training))

    def _fit_sizes(self, batch: Sequence[TensorStructure]) -> list:
        """The parts of a batch, or its inputs alone, with the sizes that the model takes.

        See `fit_to_inputs`, and `fit_labels` for the labels.
        """
        x, *labels_and_weights = fit_to_inputs(self.keras_model, batch, self.batch_size)
        if labels_and_weights:
            labels_and_weights[0] = fit_labels(labels_and_weights[0], *self._labeled_outputs)
        return [x, *labels_and_weights]

    @property
    def _part_types(self) -> tuple[Type, ...]:
        """The types of a batch's parts: inputs, labels and sample weights; of one without labels the inputs."""
        return self.batch_type.types if isinstance(self.batch_type, StructType) else (self.batch_type,)

    def _specs(self) -> list:
        """The specs of a batch's parts, see `_part_types`."""
        return [element_spec(part) for part in self._part_types]

    def _training_argument(self, training: bool) -> dict:
        return {"training": training} if private_api.takes_training(self.keras_model) else {}  # a call may not take it

    def _check_step(self, *, training: bool) -> set[int]:
        """Traces a step, with the user's own `compute_loss` and `compute_metrics`, to see whether it can be pure.

        Returns:
            The identities of the variables that the step may assign.
        Raises:
            TracingError: the step cannot be traced, or is not pure; see `check_pure` and `check_reports`.
        """
        reported_names: list[str] = []

        def step(*batch: TensorStructure) -> tf.Tensor:
            x, *labels_and_weights = self._fit_sizes(batch)
            predictions = self._call(x, training=training)
            loss, reports = self._score(x, labels_and_weights, predictions, training)
            reported_names.extend(reports)
            return loss

        try:
            assigned = check_pure(self.keras_model, step, self._specs(), self.compiled.variables)
        except TracingError:
            raise
        except Exception as error:
            raise TracingError(
                f"a step of the Keras model {self.keras_model.name} cannot be traced for a batch of type "
                f"{self.batch_type}: {words_of(error)}{open_sizes_hint(self.batch_type)}"
            ) from error
        self.compiled.check_reports(reported_names)
        return assigned

    def build_compiled_metrics(self) -> None:
        """Builds the metrics of the user's `compile`, whose names and directions Keras' callbacks read."""
        for labels in self._labels:
            private_api_keras.build_compiled_metrics(self.keras_model, labels, self._labeled_outputs[0])

    def _sort_variables(self) -> None:
        """Sorts the model's variables by what a step does with them.

        Sets:
            trainable, non_trainable: the weights with and without gradients. `first_trainable` and
                `first_non_trainable` hold for each a function () -> its initial value.
            layer_states: the states of recurrent layers, then counters: the other variables that a step assigns. They
                go from batch to batch of a client; a counter begins with its value of `counter_starts`.
            seed_states, fixed: the variables of seed generators, and those that no step assigns, with their values now.
            moving_in_evaluation: the weights that a step of an evaluation assigns, with their positions in
                `non_trainable`.
            flags: the model's `trainable_flags`, by which `check_flags` sees a later change.

        Raises:
            TracingError: a weight is overwritten by its gradient.
        """
        model, initialisers = self.keras_model, active_initialisers()
        overwritten = [v.path for v in model.trainable_variables if getattr(v, "overwrite_with_gradient", False)]
        if overwritten:
            raise TracingError(
                f"the weight {overwritten[0]} is overwritten by its gradient (float8 training), which Keras' own "
                "optimizers do only; train without quantize, and quantize the trained model"
            )
        self.flags = trainable_flags(model)
        self.trainable = list(model.trainable_variables)
        self.trainable_constraints = [constraint_of(v) for v in self.trainable]
        self.trainable_names = [v.path for v in self.trainable]
        self.trainable_paths = [v.path.removeprefix(f"{model.name}/") for v in self.trainable]
        self.non_trainable = averaged_weights(model)
        moving = {id(v) for v in (*self.non_trainable, *layer_states(model))}
        others = [v for v in model.non_trainable_variables if id(v) not in moving]
        self.seed_states = [(v, value_now(v)) for v in others if private_api_keras.is_seed_state(v)]
        assigned = self._assigned | self._assigned_in_evaluation
        counters = [v for v in others if id(v) in assigned and not private_api_keras.is_seed_state(v)]
        varying = {id(v) for v in counters} | {id(v) for v, _ in self.seed_states}
        self.fixed = [(v, value_now(v)) for v in others if id(v) not in varying]
        self.layer_states = [*layer_states(model), *counters]
        self.counter_starts = [value_now(v) for v in counters]
        self.moving_in_evaluation = [
            (i, v) for i, v in enumerate(self.non_trainable) if id(v) in self._assigned_in_evaluation
        ]
        self.first_trainable = [initialisers.first_value(v.value) for v in self.trainable]
        self.first_non_trainable = [initialisers.first_value(v.value) for v in self.non_trainable]

    @functools.cached_property
    def weight_roles(self) -> WeightRoles:
        """Which weights training changes: a training step is traced once to find out."""
        return trace_roles(self, [v.path for v in self.non_trainable])

    @functools.cached_property
    def weights_type(self) -> Type:
        groups = (self.trainable, self.non_trainable)
        return to_type(ModelWeights(*(tuple(TensorType(v.dtype, v.shape) for v in group) for group in groups)))

    @functools.cached_property
    def frozen_weights(self) -> FrozenWeights:
        """The values that the frozen variables have now."""
        variables = [self.non_trainable[i].value for i in self.weight_roles.frozen]
        if not all(map(has_value, variables)):
            return first_frozen_weights(self)
        with tf.init_scope():
            return frozen_weights([returned.show(tf.convert_to_tensor(v)) for v in variables])

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        return variables_of(self.trainable)

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        return variables_of(self.non_trainable)

    @weights_and_values
    def initial_weights(self) -> ModelWeights:
        return ModelWeights(
            tuple(first() for first in self.first_trainable), tuple(first() for first in self.first_non_trainable)
        )

    def initial_changing_weights(self) -> ModelWeights:
        starts = [self.first_non_trainable[i] for i in self.weight_roles.assigned]
        return ModelWeights(tuple(first() for first in self.first_trainable), tuple(first() for first in starts))

    def initial_metrics(self) -> dict:
        moving = (tf.zeros(v.shape, v.dtype) for _, v in self.moving_in_evaluation)
        return {
            "own": self.metrics.initial(),
            "layer_states": (*self._first_states(), *moving),
            **initial_counts(),
        }

    def _first_states(self) -> list[tf.Tensor]:
        """The values of `layer_states` before a client's first batch: zeros of recurrent layers, those of counters."""
        recurrent = self.layer_states[: len(self.layer_states) - len(self.counter_starts)]
        return [*(tf.zeros(v.shape, v.dtype) for v in recurrent), *map(tf.convert_to_tensor, self.counter_starts)]

    def parts(self, batch: TensorStructure) -> list:
        """A batch's inputs and, where there are any, labels and sample weights."""
        if not isinstance(self.batch_type, StructType):
            return [batch]
        return batch_parts(batch) if isinstance(batch, Mapping) else list(elements_of(batch, self.batch_type))

    def step(
        self, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool
    ) -> tuple[BatchOutput, tuple, dict]:
        if training and self.assigned_trainable:
            raise TracingError(
                f"a layer of {self.keras_model.name} assigns the weight {self.assigned_trainable[0]} while it trains; "
                "federated averaging and its kin and FedGAN carry that from step to step, but not what is built here. "
                "Give the weight a constraint instead, which is applied after each step: "
                "kernel_constraint=lambda w: w / keras.ops.norm(w, ord=2) in place of SpectralNormalization"
            )
        output, moved, new_metrics = self.forward(weights, metrics, batch, training)
        return output, moved.non_trainable, new_metrics

    def forward(
        self, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool
    ) -> tuple[BatchOutput, ModelWeights, dict]:
        x, *labels_and_weights = self._fit_sizes(self.parts(batch))
        own = metrics["own"] or {}
        states = self._states_before(weights, metrics, training)
        values = self._values(weights.non_trainable, states, training)
        with self._scope(weights.trainable, values, self.compiled.values(own)) as scope:
            predictions = self._call(x, training=training)
            loss, _ = self._score(x, labels_and_weights, predictions, training)
        examples = tf.shape(tf.nest.flatten(x)[0], out_type=tf.int64)[0]
        groups = (self.trainable, self.non_trainable)
        moved = ModelWeights(*(tuple(map(scope.get_current_value, group)) for group in groups))
        new_states = tuple(scope.get_current_value(v) for v, _ in states)
        others = metrics["layer_states"][len(new_states) :]  # in training those of evaluation, which stay
        new_metrics = {
            "own": self.metrics.after(own, scope, examples),
            "layer_states": (*new_states, *others),
            # Keras reports the mean of a loss that is not reduced, and moves weights by the gradient of its sum.
            **count_batch(metrics, BatchOutput(tf.reduce_mean(loss), None, examples)),
        }
        return BatchOutput(tf.reduce_sum(loss), predictions, examples), moved, new_metrics

    def _score(
        self,
        x: TensorStructure,
        labels_and_weights: Sequence[TensorStructure],
        predictions: TensorStructure,
        training: bool,
    ) -> tuple:
        """Counts a batch in the metrics' variables.

        Returns:
            (the loss, the names that the user's own `compute_metrics` reports)
        """
        if training and self._class_weight is not None:
            labels_and_weights = private_api_keras.class_weights(self._class_weight, x, *labels_and_weights)
        y, sample_weight = (*labels_and_weights, None, None)[:2]
        loss = self.compiled.loss(x, y, predictions, sample_weight, training)
        return loss, self.compiled.update_metrics(x, y, predictions, sample_weight)

    def loss(
        self, output: TensorStructure, label: TensorStructure, sample_weight: TensorStructure | None = None
    ) -> tf.Tensor:
        """The mean loss of predictions, without losses that layers add."""
        return self.compiled.loss_of_outputs(label, output, sample_weight)

    def _predictions(self, weights: ModelWeights, x: TensorStructure, training: bool) -> TensorStructure:
        states = zip(self.layer_states, self._first_states(), strict=True)
        with self._scope(weights.trainable, self._values(weights.non_trainable, states, training)):
            return self._call(*self._fit_sizes([x]), training=training)

    def _states_before(self, weights: ModelWeights, metrics: dict, training: bool) -> list[tuple]:
        """(variable, its value before a batch) for each variable that goes from batch to batch of a client.

        In evaluation these are also the weights that a layer assigns there. They start from the evaluated weights, and
        what they become goes into no result.
        """
        states = list(zip(self.layer_states, metrics["layer_states"], strict=False))
        if training:
            return states
        is_first = metrics["num_batches"][0] == 0
        carried = metrics["layer_states"][len(states) :]
        for (position, variable), value in zip(self.moving_in_evaluation, carried, strict=True):
            states.append((variable, tf.where(is_first, weights.non_trainable[position], value)))
        return states

    def _values(self, non_trainable: Sequence[tf.Tensor], states: Iterable[tuple], training: bool) -> list[tuple]:
        """(variable, value) for the model's variables that are not trained; a later pair replaces an earlier one.

        Evaluation draws the states of seed generators where they are read, see `StepScope`.
        """
        seeds = [(v, draw_seed_state(start)) for v, start in self.seed_states] if training else []
        return [*zip(self.non_trainable, non_trainable, strict=True), *self.fixed, *seeds, *states]

    def _scope(
        self, trainable: Sequence[tf.Tensor], others: Sequence[tuple], metrics: Sequence[tuple] = ()
    ) -> StepScope:
        """A scope in which all variables have these values; `others` and `metrics` are pairs (variable, value).

        Raises:
            TracingError: layers were frozen, unfrozen or changed since the model was made.
        """
        check_flags(self.keras_model, self.flags)
        return StepScope([*zip(self.trainable, trainable, strict=True), *others, *metrics], collect_losses=True)

    def initialize_metrics_state(self) -> OrderedDict:
        """The state of the model's own metrics before the first batch, by their names."""
        return OrderedDict(self.metrics.initial())

    def update_metrics_state(
        self,
        state: Mapping,
        labels: TensorStructure,
        batch_output: BatchOutput,
        sample_weight: TensorStructure | None = None,
    ) -> OrderedDict:
        """The state of the model's own metrics after one more batch."""
        predictions = batch_output.predictions
        examples = tf.shape(tf.nest.flatten(predictions)[0], out_type=tf.int64)[0]
        own = self.metrics.own(dict(state))
        with StepScope(self.compiled.values(own)) as scope:
            self.compiled.update_metrics(None, labels, predictions, sample_weight)
        return OrderedDict(self.metrics.after(own, scope, examples))

    def report_metrics(self, metrics: dict) -> dict:
        return reported_metrics(metrics, dict(metrics["own"] or {}))

    def finalize_metrics(self, reported: dict) -> dict:
        own = self.metrics.own(reported)
        without = {name: state for name, state in reported.items() if name not in own}
        return finalized_metrics(without, self.metrics.finalize(own))

    def finalize_metric(self, reported: dict, name: str) -> TensorStructure:
        own = self.metrics.own(reported)
        return self.metrics.finalize_metric(own, name) if name in own else super().finalize_metric(reported, name)


FunctionalModel.register(_KerasModel)


def _wanted_inputs(model: keras.Model) -> str:
    """The end of a message about wrong inputs: those that the model tells it takes; else nothing."""
    inputs = getattr(model, "inputs", None) or []
    return f"; it takes {' and '.join(f'{i.dtype}{open_shape(i)}' for i in inputs)}" if inputs else ""


def _batch_type(model: keras.Model, loss: LossLike | None, input_spec: TensorStructure | Type | None) -> Type:
    """The type of a batch: that of `input_spec`, else the model's inputs with labels like its outputs.

    Without a loss it may also be one of inputs alone, x or (x,).

    Raises:
        InvalidValue: `input_spec` is no type of batches.
        TracingError: there is no `input_spec`, and the model does not tell its inputs.
    """
    if input_spec is not None:
        type_ = type_of_batch(input_spec)
        is_inputs = isinstance(type_, TensorType) or (isinstance(type_, StructType) and type_.names == (None,))
        return type_ if loss is None and is_inputs else checked_batch_type(type_)
    if not getattr(model, "inputs", None):
        raise TracingError(
            f"from_keras_model: {model.name} does not tell its inputs; give input_spec, such as dataset.element_spec"
        )
    x = tf.nest.map_structure(input_spec_of, structure_of(model, "inputs"))
    return checked_batch_type(to_type((x, labels_type(model, loss))))

"""Keras 3 models as pure ones, by `stateless_call`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from fedcore.errors import TracingError, TypeMismatch, brief
from fedcore.graphs import private_api
from fedcore.graphs.tensors.values import elements_of
from fedcore.learning.models.functional_model import BATCH_PARTS, FunctionalModel, batch_type, checked_batch_type
from fedcore.learning.models.held_variables import HoldsVariables, variables_of
from fedcore.learning.models.keras_checks import (
    check_arguments,
    check_elementwise,
    check_flags,
    check_labels_of_sample,
    open_shape,
    trainable_flags,
    words_of,
)
from fedcore.learning.models.keras_metrics import KerasMetrics
from fedcore.learning.models.keras_outputs import by_output, labels_type, output_names, structure_of
from fedcore.learning.models.keras_purity import check_pure, traced_once
from fedcore.learning.models.model_weights import (
    ModelWeights,
    averaged_weights,
    layer_states,
    moving_variances,
    value_now,
    weights_and_values,
)
from fedcore.learning.models.pure_model import (
    BatchOutput,
    PureModel,
    counted,
    finalized_metrics,
    initial_counts,
    reported_metrics,
)
from fedcore.learning.models.traced import active_initialisers
from fedcore.learning.models.weight_roles import WeightRoles, trace_roles
from fedcore.scalars import real_number
from fedcore.types import StructType, TensorType, Type, to_type

_GUESSED_SIZE = 8  # of dimensions that a batch's type leaves open, where an unbuilt model has to be called once


def from_keras_model(
    keras_model: keras.Model,
    loss=None,
    input_spec=None,
    metrics: Sequence | Mapping | None = None,
    loss_weights: Sequence[float] | Mapping[str, float] | None = None,
) -> PureModel:
    """A Keras 3 model with a loss and metrics, as pure functions of its weights.

    Make the Keras model inside `model_fn`, so that its initialisers are traced; one that was made outside starts from
    the values that it has. Weights are the trainable variables and the floating-point ones of the others. Of these the
    server averages what a training step assigns (BatchNormalization); frozen ones, which no step assigns, stay as they
    are and no client sends them: set `trainable` before. Integer ones keep their value; seed generators start anew with
    every client. So do the states of stateful recurrent layers: they go from batch to batch of a client, and
    are zeros again in the next round; their batches have the model's fixed number of examples.

    Types: those of `PureModel`; B is the type that `input_spec` says, W.trainable and W.non_trainable those of the
    Keras model's variables, in their order.

    Args:
        loss: a Keras loss, its name, or a function (y_true, y_pred) -> loss; for several outputs a list in their order
            or a dict by their names, where None leaves an output out. There has to be one.
        input_spec: the type of a batch: (x, y), (x, y, sample_weight) or a dict with these keys, of TensorSpecs, or a
            sample batch of arrays. Sample weights weigh the loss, as in `fit`, and no metrics; for several outputs they
            are one for all or one for each. Default: the model's inputs, with labels like its outputs (integers for a
            sparse loss).
        metrics: Keras metrics, or functions that make one, in a list or a dict by name; for several outputs such lists
            or dicts in the outputs' order or by their names. A loss, weighted by examples, num_examples and num_batches
            are always there, unless a metric of this name takes their place.
        loss_weights: of the outputs' losses. Default: 1 each.
    Raises:
        TracingError: there is no loss, the batch is no such batch, the model, the loss or a metric does not take it, a
            weight has a constraint, a metric has states that cannot be added, or names are taken twice.
    Example:
        >>> def make():
        ...     error = keras.metrics.MeanAbsoluteError()
        ...     return fc.learning.from_keras_model(keras_model(), 'mse', client_a.element_spec, metrics=[error])
        >>> evaluation = fc.learning.algorithms.build_fed_eval(make)
        >>> state, metrics = evaluation.next(evaluation.initialize(), [client_a])
        >>> round(float(metrics['client_work']['eval']['current_round_metrics']['mean_absolute_error']), 3)
        0.5
    """
    return _KerasModel(keras_model, loss, input_spec, metrics, loss_weights)


def functional_model_from_keras(
    keras_model: keras.Model | Callable[[], keras.Model],
    loss_fn,
    input_spec=None,
    metrics_constructor=None,
    loss_weights=None,
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
    batch_type: StructType

    def __init__(self, model: keras.Model, loss, input_spec, metrics, loss_weights):
        if not isinstance(model, keras.Model):
            raise TracingError(f"from_keras_model takes a Keras 3 model, not {brief(model)}")
        check_arguments(loss, input_spec)
        self.keras_model = model
        self.batch_type = checked_batch_type(_batch_type(model, loss, input_spec))
        self.batch_size = _fixed_batch_size(model)
        x, *labels_and_weights = (_zeros(t, self.batch_size or 1) for t in self.batch_type.types)
        predictions = self._called(x)
        check_pure(model, lambda given: model(given, **self._training(True)), x)
        self.outputs = output_names(model, predictions)
        self.losses = [_loss(given) for given in by_output(loss, self.outputs, "loss", model)]
        given_weights = by_output(loss_weights, self.outputs, "loss_weights", model)
        self.loss_weights = [1.0 if w is None else _loss_weight(w) for w in given_weights]
        self._check_loss(predictions, *labels_and_weights)
        if input_spec is not None:
            labels = self._by_output(dict(zip(BATCH_PARTS, _parts_of(input_spec), strict=False))["y"])
            check_labels_of_sample(labels, self.losses, self._by_output(predictions))
        given_metrics = by_output(metrics, self.outputs, "metrics", model, nested=True)
        self.metrics = KerasMetrics(
            given_metrics, self.outputs, self._by_output(labels_and_weights[0]), self._by_output(predictions)
        )
        self._read_weights()

    def _called(self, x):
        """What the model gives for a batch of zeros; builds it where it is not."""
        try:
            return self.keras_model(x, **self._training(False))
        except Exception as error:
            raise TracingError(
                f"the Keras model {self.keras_model.name} does not take inputs of type {self.batch_type.types[0]}"
                f"{_wanted_inputs(self.keras_model)}: {words_of(error)}"
            ) from error

    def _training(self, training: bool) -> dict:
        return {"training": training} if private_api.takes_training(self.keras_model) else {}  # a call may not take it

    def _check_loss(self, predictions, y, sample_weight=None) -> None:
        who = f"the loss of {self.keras_model.name}"
        if all(loss is None for loss in self.losses):
            raise TracingError(
                f"{who} is None for each of its outputs; give one, such as loss={{'{self.outputs[0]}': …}}"
            )
        for loss, *parts in zip(self.losses, self._by_output(y), self._by_output(predictions), strict=True):
            if loss is not None:
                check_elementwise(who, loss, *parts)
        try:
            traced_once(lambda: self._loss_of(predictions, y, sample_weight))
        except Exception as error:
            shapes = " and ".join(open_shape(p) for p in self._by_output(predictions))
            raise TracingError(
                f"{who} does not take labels of type {self.batch_type.types[1]} for predictions of shape {shapes}: "
                f"{words_of(error)}"
            ) from error

    def _read_weights(self) -> None:
        model, initialisers = self.keras_model, active_initialisers()
        bound = [v.path for v in model.trainable_variables if getattr(v, "constraint", None) is not None]
        if bound:
            raise TracingError(
                f"the weight {bound[0]} has a constraint, which Keras applies in its own optimizers only; normalise "
                "the weight inside its layer's call instead"
            )
        self.flags = trainable_flags(model)
        self.trainable = list(model.trainable_variables)
        self.non_trainable = averaged_weights(model)
        self.layer_states = layer_states(model)
        moving = {id(v) for v in (*self.non_trainable, *self.layer_states)}
        # Seed generators' states and integers: no weights, so they start anew with every forward pass.
        self.fixed = [v for v in model.non_trainable_variables if id(v) not in moving]
        self.fixed_starts = [value_now(v) for v in self.fixed]
        self.seed_states = {
            id(g.state) for layer in private_api.layers_within(model) for g in private_api.seed_generators(layer)
        }
        self.first_trainable = [initialisers.first_value(v.value) for v in self.trainable]
        self.first_non_trainable = [initialisers.first_value(v.value) for v in self.non_trainable]

    @functools.cached_property
    def weight_roles(self) -> WeightRoles:
        """Which weights training changes: a training step is traced once to find out."""
        variances = {id(v) for v in moving_variances(self.keras_model)}
        non_negative = frozenset(i for i, v in enumerate(self.non_trainable) if id(v) in variances)
        return trace_roles(self, [v.path for v in self.non_trainable], non_negative)

    @property
    def trainable_variables(self):
        return variables_of(self.trainable)

    @property
    def non_trainable_variables(self):
        return variables_of(self.non_trainable)

    @weights_and_values
    def initial_weights(self) -> ModelWeights:
        return ModelWeights(
            tuple(first() for first in self.first_trainable), tuple(first() for first in self.first_non_trainable)
        )

    def initial_metrics(self) -> dict:
        return {"own": self.metrics.initial(), "layer_states": self._first_states(), **initial_counts()}

    def _first_states(self) -> tuple:
        return tuple(tf.zeros(v.shape, v.dtype) for v in self.layer_states)

    def parts(self, batch) -> list:
        """A batch's inputs, labels and, where there are any, sample weights."""
        if isinstance(batch, Mapping):
            return [batch[name] for name in BATCH_PARTS[: len(batch)]]
        return list(elements_of(batch, self.batch_type))

    def _by_output(self, parts) -> list:
        """Labels, predictions or sample weights in the outputs' order; what is one for all stands for each."""
        if isinstance(parts, Mapping):
            return [parts[name] for name in self.outputs]
        if isinstance(parts, tuple | list):
            return list(parts)
        return [parts] * len(self.outputs)

    def _loss_of(self, predictions, y, sample_weight=None):
        """The weighted sum of the outputs' losses, a scalar."""
        labels, predicted, weights = (self._by_output(part) for part in (y, predictions, sample_weight))
        found = [
            factor * _mean_loss(loss, *parts)
            for loss, factor, *parts in zip(self.losses, self.loss_weights, labels, predicted, weights, strict=True)
            if loss is not None
        ]
        return found[0] if len(found) == 1 else tf.add_n([tf.cast(v, found[0].dtype) for v in found])

    def step(self, weights, metrics, batch, training):
        x, *labels_and_weights = self.parts(batch)
        values = self._values(weights.non_trainable, metrics["layer_states"], training)
        predictions, after, losses = self._applied(weights.trainable, values, x, training)
        loss = self._loss_of(predictions, *labels_and_weights)
        if losses:
            loss += tf.add_n([tf.cast(v, loss.dtype) for v in losses])
        y = labels_and_weights[0]
        output = BatchOutput(loss, predictions, tf.shape(tf.nest.flatten(y)[0], out_type=tf.int64)[0])
        own = self.metrics.update(metrics["own"] or {}, self._by_output(y), self._by_output(predictions))
        non_trainable, states = (
            tuple(after[id(v)] for v in group) for group in (self.non_trainable, self.layer_states)
        )
        return output, non_trainable, {"own": own, "layer_states": states, **counted(metrics, output)}

    def loss(self, output, label, sample_weight=None):
        """The mean loss of predictions, without losses that layers add."""
        return self._loss_of(output, label, sample_weight)

    def _predictions(self, weights, x, training):
        values = self._values(weights.non_trainable, self._first_states(), training)
        return self._applied(weights.trainable, values, x, training)[0]

    def _values(self, non_trainable, states, training: bool) -> dict:
        """The values of all variables that are not trained, by their identities."""
        values = dict(zip(map(id, (*self.non_trainable, *self.layer_states)), (*non_trainable, *states), strict=True))
        for variable, start in zip(self.fixed, self.fixed_starts, strict=True):
            draws = training and id(variable) in self.seed_states
            values[id(variable)] = _drawn_state(start) if draws else tf.convert_to_tensor(start)
        return values

    def _applied(self, trainable, values: dict, x, training: bool) -> tuple:
        """(predictions, the values of the other variables by identity, the layers' own losses)."""
        check_flags(self.keras_model, self.flags)
        if self.batch_size is not None:
            x = tf.nest.map_structure(lambda t: tf.ensure_shape(t, [self.batch_size, *t.shape[1:]]), x)
        model, training_argument = self.keras_model, self._training(training)
        if self.layer_states:
            trained = zip(model.trainable_variables, trainable, strict=True)
            others = [*model.non_trainable_variables, *self.layer_states]  # the states are no variables of the model
            mapping = [*trained, *((v, values[id(v)]) for v in others)]
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                predictions = model(x, **training_argument)
                losses = model.losses
            return predictions, {id(v): scope.get_current_value(v) for v in others}, losses
        given = [values[id(v)] for v in model.non_trainable_variables]
        predictions, after, losses = model.stateless_call(
            list(trainable), given, x, return_losses=True, **training_argument
        )
        return predictions, dict(zip(map(id, model.non_trainable_variables), after, strict=True)), losses

    def report_metrics(self, metrics):
        return reported_metrics(metrics, dict(metrics["own"] or {}))

    def finalize_metrics(self, reported):
        own = self.metrics.own(reported)
        without = {name: state for name, state in reported.items() if name not in own}
        return finalized_metrics(without, self.metrics.finalize(own))


FunctionalModel.register(_KerasModel)


def _parts_of(batch) -> list:
    return list(batch.values() if isinstance(batch, Mapping) else batch)


def _mean_loss(loss, labels, predictions, sample_weight):
    """The mean of a loss over a batch, each example's times its weight, as Keras computes it."""
    if sample_weight is None:
        return tf.reduce_mean(loss(labels, predictions))
    if isinstance(loss, keras.losses.Loss):
        return tf.reduce_mean(loss(labels, predictions, sample_weight=sample_weight))
    values = loss(labels, predictions)
    by_example = tf.reshape(sample_weight, [-1, *[1] * (values.shape.rank - 1)])
    return tf.reduce_mean(values * tf.cast(by_example, values.dtype))


def _drawn_state(start) -> tf.Tensor:
    """A seed generator's state while training: another in each call, client and step."""
    state = tf.convert_to_tensor(start)
    drawn = tf.random.uniform(state.shape, maxval=tf.int32.max, dtype=tf.int32)
    return tf.bitwise.bitwise_xor(state, tf.cast(drawn, state.dtype))


def _loss(given):
    if not isinstance(given, str):
        return given
    try:
        return keras.losses.get(given)
    except ValueError:
        raise TracingError(f"Keras has no loss named {given!r}") from None


def _loss_weight(given) -> float:
    try:
        return float(real_number("a loss weight", given))
    except TypeMismatch as error:
        raise TracingError(f"{error}; by position, metrics stand before loss_weights") from None


def _wanted_inputs(model: keras.Model) -> str:
    inputs = getattr(model, "inputs", None) or []
    return f"; it takes {' and '.join(f'{i.dtype}{open_shape(i)}' for i in inputs)}" if inputs else ""


def _fixed_batch_size(model: keras.Model) -> int | None:
    """The number of examples in every batch, where the model's inputs say it, as stateful recurrent layers need."""
    inputs = getattr(model, "inputs", None)
    return inputs[0].shape[0] if inputs and inputs[0].shape else None


def _batch_type(model: keras.Model, loss, input_spec) -> Type:
    if input_spec is not None:
        return batch_type(input_spec)
    if not getattr(model, "inputs", None):
        raise TracingError(
            f"from_keras_model: {model.name} does not tell its inputs; give input_spec, such as dataset.element_spec"
        )
    x = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), structure_of(model, "inputs"))
    return to_type((x, labels_type(model, loss)))


def _zeros(type_: Type, examples: int) -> Any:
    """Zeros of a type, in Python's containers; so many examples, where the number is left open."""
    if isinstance(type_, StructType):
        parts = [_zeros(t, examples) for t in type_.types]
        return dict(zip(type_.names, parts, strict=True)) if all(type_.names) else tuple(parts)
    assert isinstance(type_, TensorType)
    sizes = [(_GUESSED_SIZE if i else examples) if size is None else size for i, size in enumerate(type_.sizes)]
    return tf.zeros(sizes, tf.string if type_.dtype.name == "str" else tf.as_dtype(type_.dtype.numpy))

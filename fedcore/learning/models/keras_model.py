"""Keras 3 models as pure ones, by `stateless_call`."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from fedcore.errors import TracingError, brief
from fedcore.graphs.values import elements_of
from fedcore.learning.models.functional_model import batch_type, pair_type
from fedcore.learning.models.keras_metrics import KerasMetrics
from fedcore.learning.models.keras_outputs import by_output, labels_type, output_names, structure_of
from fedcore.learning.models.keras_purity import check_pure
from fedcore.learning.models.model_weights import ModelWeights, averaged_weights
from fedcore.learning.models.pure_model import BatchOutput, PureModel, counted, final_counts, initial_counts
from fedcore.learning.models.traced import active_initialisers
from fedcore.types import StructType, TensorType, Type, to_type

_GUESSED_SIZE = 8  # of dimensions that a batch's type leaves open, where an unbuilt model has to be called once


def from_keras_model(
    keras_model: keras.Model,
    loss,
    input_spec=None,
    metrics: Sequence | Mapping | None = None,
    loss_weights: Sequence[float] | Mapping[str, float] | None = None,
) -> PureModel:
    """A Keras 3 model with a loss and metrics, as pure functions of its weights.

    Make the Keras model inside `model_fn`, so that its initialisers are traced; one that was made outside starts from
    the values that it has. Weights are the trainable variables and the floating-point ones of the others, which
    clients move and the server averages (BatchNormalization). Integer ones keep their value; seed generators start
    anew with every client.

    Args:
        loss: a Keras loss, its name, or a function (y_true, y_pred) -> loss; for several outputs a list in their order
            or a dict by their names, where None leaves an output out.
        input_spec: the type of a batch: a pair (x, y) or a dict with keys x and y, of TensorSpecs, or a sample batch of
            arrays. Default: the model's inputs, with labels like its outputs (integers for a sparse loss).
        metrics: Keras metrics, or functions that make one; for several outputs lists of them in the outputs' order or
            by name. A loss, weighted by examples, and counts are always there.
        loss_weights: of the outputs' losses. Default: 1 each.
    Raises:
        TracingError: the batch is no pair, the model or the loss does not take it, a weight has a constraint, a metric
            has states that cannot be added, or names are taken twice.
    Example:
        >>> model = fc.learning.from_keras_model(keras_model, keras.losses.MeanSquaredError(), input_spec=spec)
    """
    return _KerasModel(keras_model, loss, input_spec, metrics, loss_weights)


def functional_model_from_keras(
    keras_model: keras.Model, loss_fn, input_spec=None, metrics_constructor=None, loss_weights=None
) -> PureModel:
    """`from_keras_model` with the argument names that functional models have elsewhere.

    Args:
        metrics_constructor: () -> metrics.
    Example:
        >>> model = fc.learning.models.functional_model_from_keras(keras_model, keras.losses.MeanSquaredError(), spec)
    """
    metrics = metrics_constructor() if callable(metrics_constructor) else metrics_constructor
    return from_keras_model(keras_model, loss_fn, input_spec, metrics, loss_weights)


class _KerasModel(PureModel):
    def __init__(self, model: keras.Model, loss, input_spec, metrics, loss_weights):
        if not isinstance(model, keras.Model):
            raise TracingError(f"from_keras_model takes a Keras 3 model, not {brief(model)}")
        self.model = model
        self.batch_type = pair_type(_batch_type(model, loss, input_spec))
        x, y = (_zeros(t) for t in self.batch_type.types)
        predictions = self._called(x)
        check_pure(model, lambda given: model(given, **self._training(True)), x)
        self.outputs = output_names(model, predictions)
        self.losses = [_loss(given) for given in by_output(loss, self.outputs, "loss")]
        self.loss_weights = [1.0 if w is None else w for w in by_output(loss_weights, self.outputs, "loss_weights")]
        self._checked_loss(y, predictions)
        self.metrics = KerasMetrics(
            by_output(metrics, self.outputs, "metrics", nested=True), self.outputs, self._labels(y), predictions
        )
        self._read_weights()

    def _called(self, x):
        """What the model gives for a batch of zeros; builds it where it is not."""
        try:
            return self.model(x, **self._training(False))
        except Exception as error:
            raise TracingError(
                f"the Keras model {self.model.name} does not take inputs of type {self.batch_type.types[0]}: {error}"
            ) from error

    def _training(self, training: bool) -> dict:
        return {"training": training} if self.model._call_has_training_arg else {}  # a call may not take it

    def _checked_loss(self, y, predictions) -> None:
        try:
            self._loss_of(y, predictions)
        except Exception as error:
            raise TracingError(
                f"the loss of {self.model.name} does not take labels of type {self.batch_type.types[1]}: {error}"
            ) from error

    def _read_weights(self) -> None:
        model, initialisers = self.model, active_initialisers()
        bound = [v.path for v in model.trainable_variables if getattr(v, "constraint", None) is not None]
        if bound:
            raise TracingError(
                f"the weight {bound[0]} has a constraint, which Keras applies in its own optimizers only; normalise "
                "the weight inside its layer's call instead"
            )
        self.trainable = list(model.trainable_variables)
        self.non_trainable = averaged_weights(model)
        kept = {id(v) for v in self.non_trainable}
        # Seed generators' states and integers: no weights, so they start anew with every forward pass.
        self.fixed = [v for v in model.non_trainable_variables if id(v) not in kept]
        self.fixed_starts = [v.numpy() for v in self.fixed]
        self.seed_states = {id(g.state) for layer in model._flatten_layers() for g in layer._seed_generators}
        self.first_trainable = [initialisers.first_value(v.value) for v in self.trainable]
        self.first_non_trainable = [initialisers.first_value(v.value) for v in self.non_trainable]

    def initial_weights(self) -> ModelWeights:
        return ModelWeights(
            tuple(first() for first in self.first_trainable), tuple(first() for first in self.first_non_trainable)
        )

    def initial_metrics(self) -> dict:
        return {**self.metrics.initial(), **initial_counts()}

    def pair(self, batch) -> tuple:
        if isinstance(batch, Mapping):
            return batch["x"], batch["y"]
        x, y = elements_of(batch, self.batch_type)
        return x, y

    def _labels(self, y) -> list:
        return (
            [y] if len(self.outputs) == 1 and not isinstance(y, Mapping | tuple | list) else _in_order(y, self.outputs)
        )

    def _loss_of(self, y, predictions):
        parts = zip(self.losses, self.loss_weights, self._labels(y), _in_order(predictions, self.outputs), strict=True)
        losses = [weight * tf.reduce_mean(loss(a, b)) for loss, weight, a, b in parts if loss is not None]
        return losses[0] if len(losses) == 1 else tf.add_n([tf.cast(v, losses[0].dtype) for v in losses])

    def step(self, weights, metrics, batch, training):
        x, y = self.pair(batch)
        predictions, after, losses = self._applied(weights, x, training)
        loss = self._loss_of(y, predictions)
        if losses:
            loss += tf.add_n([tf.cast(v, loss.dtype) for v in losses])
        output = BatchOutput(loss, predictions, tf.shape(tf.nest.flatten(y)[0], out_type=tf.int64)[0])
        updated = self.metrics.update(metrics, self._labels(y), _in_order(predictions, self.outputs))
        by_variable = dict(zip(map(id, self.model.non_trainable_variables), after, strict=True))
        non_trainable = tuple(by_variable[id(v)] for v in self.non_trainable)
        return output, non_trainable, {**updated, **counted(metrics, output)}

    def predict_on_batch(self, weights, x, training=False):
        return self._applied(weights, x, training)[0]

    def _applied(self, weights: ModelWeights, x, training: bool) -> tuple:
        """(predictions, the non-trainable variables' values, the layers' own losses)."""
        values = dict(zip(map(id, self.non_trainable), weights.non_trainable, strict=True))
        for variable, start in zip(self.fixed, self.fixed_starts, strict=True):
            draws = training and id(variable) in self.seed_states
            values[id(variable)] = _drawn_state(start) if draws else tf.constant(start)
        return self.model.stateless_call(
            list(weights.trainable),
            [values[id(v)] for v in self.model.non_trainable_variables],
            x,
            return_losses=True,
            **self._training(training),
        )

    def finalize_metrics(self, reported):
        return {**self.metrics.finalize(reported), **final_counts(reported)}


def _drawn_state(start) -> tf.Tensor:
    """A seed generator's state while training: another in each call, client and step."""
    state = tf.constant(start)
    drawn = tf.random.uniform(state.shape, maxval=tf.int32.max, dtype=tf.int32)
    return tf.bitwise.bitwise_xor(state, tf.cast(drawn, state.dtype))


def _in_order(parts, names: list[str]) -> list:
    """The parts of several outputs or labels in the outputs' order."""
    if isinstance(parts, Mapping):
        return [parts[name] for name in names]
    return list(parts) if isinstance(parts, tuple | list) else [parts]


def _loss(given):
    if isinstance(given, str):
        return keras.losses.get(given)
    if given is not None and not callable(given):
        raise TracingError(
            f"a loss is a Keras loss, its name or a function of labels and predictions, not {brief(given)}"
        )
    return given


def _batch_type(model: keras.Model, loss, input_spec) -> Type:
    if input_spec is not None:
        return batch_type(input_spec)
    if not getattr(model, "inputs", None):
        raise TracingError(
            f"from_keras_model: {model.name} does not tell its inputs; give input_spec, such as dataset.element_spec"
        )
    x = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), structure_of(model, "inputs"))
    return to_type((x, labels_type(model, loss)))


def _zeros(type_: Type) -> Any:
    """Zeros of a type, in Python's containers; one example, where the number is left open."""
    if isinstance(type_, StructType):
        parts = [_zeros(t) for t in type_.types]
        return dict(zip(type_.names, parts, strict=True)) if all(type_.names) else tuple(parts)
    assert isinstance(type_, TensorType)
    sizes = [(_GUESSED_SIZE if i else 1) if size is None else size for i, size in enumerate(type_.sizes)]
    return tf.zeros(sizes, tf.string if type_.dtype.name == "str" else tf.as_dtype(type_.dtype.numpy))

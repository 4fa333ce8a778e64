"""Pure models that hold variables, for training loops of one's own.

Decision 0030.
"""

import abc
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from fedcore.graphs.tensors.specs import element_spec
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.model_weights import ModelWeights, as_weights, has_value
from fedcore.learning.models.pure_model import BatchOutput, PureModel


class HoldsVariables(PureModel):
    """A pure model that also has variables: weights that forward passes read, and metrics that they count in.

    The weights' variables are made when they are first asked for, and start from `initial_weights`.

    Types, for batches B with inputs X:
        forward_pass      (<B,training> -> BatchOutput)
        predict_on_batch  (<X,training> -> predictions), beside that of `PureModel`
    """

    @functools.cached_property
    def _weight_variables(self) -> ModelWeights:
        return variables_from(self.initial_weights)

    @property
    def trainable_variables(self) -> Sequence[tf.Variable]:
        """The variables that an optimizer moves."""
        return list(self._weight_variables.trainable)

    @property
    def non_trainable_variables(self) -> Sequence[tf.Variable]:
        """The variables that forward passes in training move."""
        return list(self._weight_variables.non_trainable)

    @abc.abstractmethod
    def _predictions(self, weights: ModelWeights, x: TensorStructure, training: bool) -> TensorStructure:
        """The predictions of given weights."""

    @functools.cached_property
    def _metric_variables(self) -> dict:
        """The metrics' state in variables; they are made outside of graphs, or in the graph that has the weights'."""
        held = (*self.trainable_variables, *self.non_trainable_variables)
        if all(map(has_value, held)):
            with tf.init_scope():
                return variables_from(self.initial_metrics, trainable=False)
        return variables_from(self.initial_metrics, trainable=False)

    @property
    def weights(self) -> ModelWeights:
        """The variables in groups."""
        return ModelWeights(self.trainable_variables, self.non_trainable_variables)

    @property
    def local_variables(self) -> Sequence[tf.Variable]:
        """The variables of the model's own metrics, of its loss and its counts, then of other states of a client."""
        first = [name for name in ("own", "loss", "num_examples", "num_batches") if name in self._metric_variables]
        parts = [
            self._metric_variables[name]
            for name in (*first, *(name for name in self._metric_variables if name not in first))
        ]
        in_order = [list(part.values()) if isinstance(part, dict) else part for part in parts]  # not sorted by name
        return tf.nest.flatten(in_order)

    @property
    def input_spec(self) -> Any:
        """The type of a batch: TensorSpecs in the containers that it was given in."""
        return element_spec(self.batch_type)

    def forward_pass(self, batch_input: TensorStructure, training: bool = True) -> BatchOutput:
        """The loss, predictions and number of examples, an int32, of a batch; counts it in the local variables."""
        metrics = tf.nest.map_structure(tf.convert_to_tensor, self._metric_variables)
        weights = self._weights_now()
        output, moved, new_metrics = self.forward(weights, metrics, batch_input, training)
        if training:
            trainable = zip(self.trainable_variables, weights.trainable, moved.trainable, strict=True)
            for variable, old, new in trainable:
                if new is not old:  # a layer assigns it
                    variable.assign(new)
            _assign(self.non_trainable_variables, moved.non_trainable)
        _assign(self._metric_variables, new_metrics)
        return output.with_narrow_count()

    def predict_on_batch(
        self,
        model_weights: TensorStructure | None = None,
        x: TensorStructure | None = None,
        training: bool | None = None,
    ) -> TensorStructure:
        """The predictions for the inputs of a batch.

        `predict_on_batch(model_weights, x, training=False)` uses these weights, a `ModelWeights` or a pair;
        `predict_on_batch(x, training=True)` those that the variables have.
        """
        if model_weights is not None and x is not None and not isinstance(x, bool):
            return self._predictions(as_weights(model_weights), x, bool(training))
        if isinstance(x, bool):  # of predict_on_batch(x, training)
            x, training = None, x
        inputs = model_weights if x is None else x
        predictions = self._predictions(self._weights_now(), inputs, training is not False)
        return tf.nest.map_structure(tf.convert_to_tensor, predictions)

    def report_local_unfinalized_metrics(self) -> OrderedDict:
        """By a metric's name the list of tensors that clients add."""
        reported = self.report_metrics(tf.nest.map_structure(tf.convert_to_tensor, self._metric_variables))
        return OrderedDict((name, list(v) if isinstance(v, tuple) else v) for name, v in reported.items())

    def reset_metrics(self) -> None:
        """Sets the local variables to what a client starts with."""
        _assign(self._metric_variables, self.initial_metrics())

    def _weights_now(self) -> ModelWeights:
        groups = (self.trainable_variables, self.non_trainable_variables)
        return ModelWeights(*(tuple(map(tf.convert_to_tensor, group)) for group in groups))


def variables_of(group: Iterable[tf.Variable | keras.Variable]) -> list[tf.Variable]:
    """TensorFlow's variables of Keras ones; a list, as Keras gives them."""
    return [v.value if isinstance(v, keras.Variable) else v for v in group]


def variables_from(first: Callable[[], Any], *, trainable: bool = True) -> Any:
    """Variables in the structure of `first()` that start from its values.

    Each is given its start as a function, which TensorFlow runs in the graph of the traced function: a model may be
    used first in the body of a loop, where a start given as a tensor would be assigned again in every step.
    """
    starts = functools.cache(lambda: tf.nest.flatten(first()))
    structure = first()
    variables = [
        tf.Variable(lambda i=i: starts()[i], trainable=trainable) for i in range(len(tf.nest.flatten(structure)))
    ]
    return tf.nest.pack_sequence_as(structure, variables)


def _assign(variables: TensorStructure, values: TensorStructure) -> None:
    for variable, value in zip(tf.nest.flatten(variables), tf.nest.flatten(values), strict=True):
        variable.assign(value)

"""Steps of a Keras optimizer, computed by Keras' own methods."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.graphs import private_api_keras
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.optimizers.optimizer import Optimizer


class KerasSteps(Optimizer):
    """A Keras optimizer whose variables are a state; also of classes that fedcore does not know.

    Types, for weights W: <[learning_rate=float32,]variables=<…>>, Keras' variables of the optimizer in their order.

    Args:
        given: the optimizer; its configuration is read, not its variables.
        names: of the weights, for exclusions from weight decay.
    """

    def __init__(self, keras_optimizer: keras.optimizers.Optimizer, names: Sequence[str] = ()) -> None:
        self._given = keras_optimizer
        self._names = tuple(names)
        rate = keras_optimizer.get_config()["learning_rate"]
        self._rates = {"learning_rate": float(rate)} if isinstance(rate, int | float) else {}
        self._loss_scale = keras_optimizer.get_config().get("loss_scale_factor")
        self.scales_loss = bool(self._loss_scale)
        self.averages_weights = bool(keras_optimizer.get_config().get("use_ema"))
        self._built = functools.lru_cache(maxsize=8)(self._build)

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return self._rates

    def scale_loss(self, state: dict, loss: tf.Tensor) -> tf.Tensor:
        return loss * tf.cast(self._loss_scale, loss.dtype) if self._loss_scale else loss  # Keras' step divides by it

    def _build(self, specs: tuple) -> tuple[Any, list, list]:
        """(The optimizer, variables in place of the weights, its variables without the learning rate)."""
        with tf.init_scope():
            names = self._names if len(self._names) == len(specs) else [f"weight_{i}" for i in range(len(specs))]
            weights = [
                keras.Variable(tf.zeros(shape, dtype), dtype=dtype, name=name)
                for (shape, dtype), name in zip(specs, names, strict=True)
            ]
            optimizer = private_api_keras.pure_optimizer(self._given)
            optimizer.build(weights)
        rate = private_api_keras.learning_rate_variable(optimizer)
        return optimizer, weights, [v for v in optimizer.variables if v is not rate]

    def _of(self, weights: TensorStructure) -> tuple[Any, list, list]:
        return self._built(tuple((tuple(w.shape), w.dtype.name) for w in tf.nest.flatten(weights)))

    def initialize(self, weights: TensorStructure) -> dict:
        _, _, variables = self._of(weights)
        rates = {name: tf.constant(value, tf.float32) for name, value in self._rates.items()}
        return {**rates, "variables": tuple(_constant(v) for v in variables)}

    def next(self, state: dict, weights: TensorStructure, gradients: TensorStructure) -> tuple[dict, Any]:
        optimizer, placeholders, variables = self._of(weights)
        flat_gradients = tf.nest.flatten(gradients)
        if len(flat_gradients) != len(placeholders):
            raise InvalidValue(
                f"the optimizer is given {len(placeholders)} weights and {len(flat_gradients)} gradients"
            )
        values = [*zip(placeholders, tf.nest.flatten(weights), strict=True)]
        values += zip(variables, state["variables"], strict=True)
        if self._rates:
            values.append((private_api_keras.learning_rate_variable(optimizer), state["learning_rate"]))
        with keras.StatelessScope(state_mapping=values) as scope:
            optimizer.apply([None if g is None else tf.convert_to_tensor(g) for g in flat_gradients])
        moved = [scope.get_current_value(v) for v in placeholders]
        new_state = {**state, "variables": tuple(scope.get_current_value(v) for v in variables)}
        return new_state, tf.nest.pack_sequence_as(weights, moved)

    def final_weights(self, state: dict, weights: TensorStructure) -> TensorStructure:
        """The averages of the weights, as Keras' `fit` leaves them in the model; the weights, if there was no step."""
        if not self.averages_weights:
            return weights
        optimizer, _, variables = self._of(weights)
        values = {id(v): value for v, value in zip(variables, state["variables"], strict=True)}
        steps, averages = private_api_keras.weight_averages(optimizer)
        pairs = zip(averages, tf.nest.flatten(weights), strict=True)
        final = [tf.where(values[id(steps)] > 0, values[id(average)], weight) for average, weight in pairs]
        return tf.nest.pack_sequence_as(weights, final)


def _constant(variable: keras.Variable) -> tf.Tensor:
    """The first value of an optimizer's variable, in a graph; large ones are zeros."""
    with tf.init_scope():
        value = variable.value.numpy()
    return tf.constant(value) if value.any() else tf.zeros(value.shape, value.dtype)

"""The scope in which a Keras model takes a step as a function of its variables' values."""

from typing import Any

import keras
import tensorflow as tf

from fedcore.graphs import private_api, private_api_keras
from fedcore.graphs.capture.keras_seeds import draw_seed_state
from fedcore.learning.models.model_weights import value_now


class StepScope(keras.StatelessScope):
    """A stateless scope of one step.

    Guarantees:
      - Assigned values are constants to gradients, as those of a `tf.Variable` are. Decision 0284. The gradient by a
        trainable variable is the sum of those by the values that it has, as by a `tf.Variable`.
      - Tapes of the user watch the trainable variables that are read, and functions of layers are traced anew.
        Decision 0293.
      - A `SeedGenerator` to whose state the scope has no value draws numbers that differ by call, client and step,
        whoever holds it: a layer, a loss, a metric, or Keras, for draws without a seed.
    """

    def __init__(self, state_mapping: list, *, collect_losses: bool = False) -> None:
        super().__init__(state_mapping=state_mapping, collect_losses=collect_losses)
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def __enter__(self) -> "StepScope":
        private_api_keras.use_tensors_as_handles()
        self._traces = private_api.functions_traced_anew()
        self._traces.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._traces.__exit__(*error)

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        variable, value = update
        value = tf.stop_gradient(value)
        if variable.trainable:
            first = tf.convert_to_tensor(super().get_current_value(variable))
            value += first - tf.stop_gradient(first)  # adds zeros, and hands the gradient on
        super().add_update((variable, value))

    def get_current_value(self, variable: keras.Variable) -> Any:
        if variable.trainable:
            private_api_keras.note_read(variable)
        value = super().get_current_value(variable)
        if value is not None or not private_api_keras.is_seed_state(variable):
            return value
        state = self._draw(variable)
        self.state_mapping[id(variable)] = state
        return state

    def _draw(self, variable: keras.Variable) -> tf.Tensor:
        """A state in the graph of the scope, which the graphs of branches and loops capture."""
        if self._graph is None:
            return _state_of(variable)
        with self._graph.as_default():
            return _state_of(variable)


def _state_of(variable: keras.Variable) -> tf.Tensor:
    """The state of a seed generator for this scope: a draw from the value that the variable has."""
    held = private_api_keras.tensorflow_variable(variable)
    # For a draw without a seed, Keras makes a generator inside the scope, whose variable has no value.
    return draw_seed_state(tf.zeros(variable.shape, variable.dtype) if held is None else value_now(held))

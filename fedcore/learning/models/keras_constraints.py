"""Constraints of Keras variables as functions of the weights in their place."""

from collections.abc import Callable

import keras
import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs import private_api_keras
from fedcore.learning.models.keras_checks import words_of
from fedcore.learning.models.keras_scope import StepScope


def constraint_of(variable: keras.Variable) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """The constraint of a variable, as a function of a weight in its place; None if it has none.

    The constraint itself is called, with the variable, as Keras' optimizers do.

    Raises:
        TracingError: the constraint fails in a graph, or gives a weight of another shape.
    """
    constraint = getattr(variable, "constraint", None)
    if constraint is None:
        return None

    def constrain(weight: tf.Tensor) -> tf.Tensor:
        with StepScope([(variable, weight)]):
            return tf.cast(keras.ops.convert_to_tensor(constraint(variable)), weight.dtype)

    try:
        result = private_api_keras.outputs_of(constrain, tf.TensorSpec(variable.shape, variable.dtype))
    except Exception as error:
        raise TracingError(f"the constraint of {variable.path} cannot be traced: {words_of(error)}") from error
    if not result.shape.is_compatible_with(variable.shape):
        raise TracingError(
            f"the constraint of {variable.path} returns a weight of shape {result.shape} for one of shape "
            f"{tuple(variable.shape)}"
        )
    return constrain

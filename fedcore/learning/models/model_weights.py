from typing import Any

import attrs
import numpy as np

from fedcore.errors import InvalidValue


def averaged_weights(keras_model) -> list:
    """The variables of a Keras model that clients move without gradients: the others that are floats."""
    return [v for v in keras_model.non_trainable_weights if "float" in str(v.dtype)]


@attrs.frozen
class ModelWeights:
    """The weights of a model: `<trainable=<…>,non_trainable=<…>>`, each in the order of the Keras model's variables.

    Non-trainable ones are those of `averaged_weights`.
    """

    trainable: Any
    non_trainable: Any

    @classmethod
    def from_model(cls, keras_model) -> "ModelWeights":
        """The weights that a Keras model has now, as numpy arrays.

        Example:
            >>> state = process.set_model_weights(state, fc.learning.ModelWeights.from_model(keras_model))
        """
        groups = (keras_model.trainable_variables, averaged_weights(keras_model))
        return cls(*(tuple(np.asarray(v.numpy()) for v in group) for group in groups))

    def assign_weights_to(self, keras_model) -> None:
        """Writes the weights into a Keras model of the same architecture.

        Raises:
            ValueError: the model has other variables.
        """
        for variables, values in (
            (keras_model.trainable_variables, self.trainable),
            (averaged_weights(keras_model), self.non_trainable),
        ):
            if len(variables) != len(values):
                raise InvalidValue(f"the model has {len(variables)} variables where these weights have {len(values)}")
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

import attrs


@attrs.frozen
class ModelWeights:
    """The weights of a model: `<trainable=<…>,non_trainable=<…>>`, each in the order of the Keras model's variables."""

    trainable: tuple
    non_trainable: tuple

    def assign_weights_to(self, keras_model) -> None:
        """Writes the weights into a Keras model of the same architecture.

        Raises:
            ValueError: the model has other variables.
        """
        for variables, values in (
            (keras_model.trainable_variables, self.trainable),
            (keras_model.non_trainable_weights, self.non_trainable),
        ):
            if len(variables) != len(values):
                raise ValueError(f"the model has {len(variables)} variables where these weights have {len(values)}")
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

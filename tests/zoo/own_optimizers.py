"""Optimizers as users write them: configurations that say too little, states of any dtype, rates by path."""

import keras
import tensorflow as tf


class Halving(keras.optimizers.Optimizer):
    """Each variable's rate is halved every `every` steps: an integer counter, and arguments that no config has."""

    def __init__(self, rate, every):
        super().__init__(learning_rate=rate)
        self.every = every

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.steps = [self.add_variable_from_reference(v, name="steps", initializer="zeros") for v in variables]
            self.counts = [
                self.add_variable(shape=(), dtype="int32", initializer="zeros", name="count") for _ in variables
            ]

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        count = self.counts[index]
        halved = tf.cast(learning_rate, variable.dtype) * 0.5 ** tf.cast(count.value // self.every, variable.dtype)
        self.assign_add(count, keras.ops.ones((), "int32"))
        self.assign(self.steps[index], gradient)
        self.assign_sub(variable, halved * self.steps[index])


class ByPath(keras.optimizers.SGD):
    """Biases train at a tenth of the rate, which the variable's path decides."""

    def update_step(self, gradient, variable, learning_rate):
        factor = 0.1 if "bias" in variable.name else 1.0
        self.assign_sub(variable, gradient * tf.cast(learning_rate * factor, variable.dtype))


class Signs(keras.optimizers.Optimizer):
    """Steps of signs where the sign is that of the step before; the state is of bools."""

    def __init__(self, learning_rate=0.01, name="signs"):
        super().__init__(learning_rate=learning_rate, name=name)

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.positive = [
                self.add_variable(shape=v.shape, dtype="bool", initializer="zeros", name="positive") for v in variables
            ]

    def update_step(self, gradient, variable, learning_rate):
        positive = self.positive[self._get_variable_index(variable)]
        now = gradient > 0
        agree = tf.cast(tf.equal(now, positive.value), variable.dtype)
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * (0.1 + agree) * gradient)
        self.assign(positive, now)


def sgd_with_an_attribute() -> keras.optimizers.Optimizer:
    """SGD whose rate and limit are set behind the constructor."""
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.learning_rate = 0.1
    optimizer.clipvalue = 0.05
    return optimizer

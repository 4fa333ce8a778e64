"""An optimizer that steps leaf by leaf."""

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer


class SignDescent(LeafwiseOptimizer):
    """Moves each weight by the learning rate against the sign of its gradient."""

    def slots(self, weight):
        return {}

    def step(self, hparams, step, slots, weight, gradient):
        return {}, weight - hparams["learning_rate"] * tf.sign(gradient)


optimizer = SignDescent(learning_rate=0.5)
state = optimizer.initialize(tf.zeros(2))
_, weights = optimizer.next(state, tf.zeros(2), tf.constant([3.0, -1.0]))
assert weights.numpy().tolist() == [-0.5, 0.5]

fc.testing.check_optimizer(optimizer, lambda weight, gradients: weight - 0.5 * sum(map(np.sign, gradients)))

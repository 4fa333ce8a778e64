"""Loss scaling: gradients of a loss that is large enough for float16."""

from collections import OrderedDict
from collections.abc import Mapping

import tensorflow as tf

from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.optimizers.optimizer import Optimizer, WrappedOptimizer
from fedcore.scalars import real_number, whole_number


class LossScaled(WrappedOptimizer):
    """Scales the loss, divides its gradients by the scale, and gives them to another optimizer.

    Gradients that are not finite change no weight, and halve the scale; after `growth_steps` steps in a row whose
    gradients are finite it is doubled.

    Types: the state is <loss_scale=float32,finite_steps=int32,inner=S>, for the state S of the other optimizer.

    Args:
        inner: the optimizer that takes the steps.
        initial_scale: above 0.
        growth_steps: at least 1.
    Source:
        Micikevicius et al. 2018, "Mixed precision training", arXiv:1710.03740, section 3.2; the rule of
        `keras.optimizers.LossScaleOptimizer`.
    """

    scales_loss = True

    def __init__(self, inner: Optimizer, initial_scale: float, growth_steps: int) -> None:
        super().__init__(inner)
        self.averages_weights = inner.averages_weights
        self.initial_scale = real_number("initial_scale", initial_scale, above=0)
        self.growth_steps = whole_number("dynamic_growth_steps", growth_steps, at_least=1)

    def get_hparams(self, state: dict) -> OrderedDict:
        return self.inner.get_hparams(state["inner"])

    def set_hparams(self, state: dict, hparams: Mapping) -> dict:
        return {**state, "inner": self.inner.set_hparams(state["inner"], hparams)}

    def initialize(self, specs: TensorStructure) -> dict:
        first = {"loss_scale": tf.constant(self.initial_scale, tf.float32), "finite_steps": tf.constant(0, tf.int32)}
        return {**first, "inner": self.inner.initialize(specs)}

    def scale_loss(self, state: dict, loss: tf.Tensor) -> tf.Tensor:
        return loss * tf.cast(state["loss_scale"], loss.dtype)

    def final_weights(self, state: dict, weights: TensorStructure) -> TensorStructure:
        return self.inner.final_weights(state["inner"], weights)

    def next(self, state: dict, weights: TensorStructure, gradients: TensorStructure) -> tuple[dict, TensorStructure]:
        scale = state["loss_scale"]
        flat = [None if g is None else tf.convert_to_tensor(g) for g in tf.nest.flatten(gradients)]
        is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in flat if g is not None] or [True])
        unscaled = [None if g is None else g / tf.cast(scale, g.dtype) for g in flat]
        stepped = self.inner.next(state["inner"], weights, tf.nest.pack_sequence_as(gradients, unscaled))
        unchanged = (state["inner"], weights)
        inner, moved = tf.nest.map_structure(lambda new, old: tf.where(is_finite, new, old), stepped, unchanged)
        doubles = is_finite & (state["finite_steps"] == self.growth_steps - 1)
        finite_steps = tf.where(is_finite & ~doubles, state["finite_steps"] + 1, 0)
        factor = tf.where(is_finite, tf.where(doubles, 2.0, 1.0), 0.5)
        return {"loss_scale": scale * factor, "finite_steps": finite_steps, "inner": inner}, moved

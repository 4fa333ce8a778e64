import tensorflow as tf

from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer, Optimizer, optional_momentum, share_up_to_one
from fedcore.scalars import real_number


class _Rmsprop(LeafwiseOptimizer):
    def __init__(
        self, learning_rate: float, decay: float, epsilon: float, momentum: float | None, centered: bool
    ) -> None:
        super().__init__(learning_rate=learning_rate, **optional_momentum(momentum))
        self.decay, self.epsilon = share_up_to_one("decay", decay), real_number("epsilon", epsilon, at_least=0)
        self.has_momentum = "momentum" in self.hyperparameters
        self.centered = centered

    def slots(self, weight: tf.Tensor) -> dict[str, tf.Tensor]:
        names = ["preconditioner"]
        names += ["velocity"] if self.has_momentum else []
        names += ["average"] if self.centered else []
        return {name: tf.zeros_like(weight) for name in names}

    def step(
        self, hparams: dict, step: tf.Tensor | None, slots: dict, weight: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[dict, tf.Tensor]:
        decay = self.decay
        square = slots["preconditioner"] + (tf.square(gradient) - slots["preconditioner"]) * (1 - decay)
        new_slots = {"preconditioner": square}
        variance = square + self.epsilon
        if self.centered:
            new_slots["average"] = average = slots["average"] + (gradient - slots["average"]) * (1 - decay)
            # Equal gradients have the variance 0, which rounding may make negative.
            variance = tf.maximum(square - tf.square(average), 0) + self.epsilon
        change = hparams["learning_rate"] * gradient / tf.sqrt(variance)
        if self.has_momentum:
            new_slots["velocity"] = change = hparams["momentum"] * slots["velocity"] + change
        return new_slots, weight - change


def build_rmsprop(
    learning_rate: float = 0.001,
    decay: float = 0.9,
    epsilon: float = 1e-7,
    momentum: float | None = None,
    centered: bool = False,
) -> Optimizer:
    """RMSprop; as `keras.optimizers.RMSprop`, whose `rho` is `decay` here.

    Types, for weights W:
        state  <learning_rate=float32[,momentum=float32],preconditioner=W[,velocity=W][,average=W]>

    Args:
        learning_rate: of every step; may be changed between rounds.
        decay: how much the average of squared gradients keeps in a step, at most 1.
        epsilon: added to it, under the root.
        momentum: the share of the last change that is kept, at most 1. Default: none.
        centered: divides by the deviation instead of the root of the mean square (Graves 2013, arXiv:1308.0850).
    Raises:
        FedcoreError: a hyperparameter that is negative or not finite, or a decay or momentum above 1.
    Source: Tieleman and Hinton 2012, "Neural networks for machine learning", lecture 6.5.
    Example:
        >>> optimizer = fc.learning.optimizers.build_rmsprop(0.01)
        >>> _, weights = optimizer.next(optimizer.initialize(tf.zeros(2)), tf.zeros(2), tf.constant([1.0, -2.0]))
        >>> weights.numpy().round(3)
        array([-0.032,  0.032], dtype=float32)
    """
    return _Rmsprop(learning_rate, decay, epsilon, momentum, centered)

import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer, Optimizer, optional_momentum


class _Sgdm(LeafwiseOptimizer):
    def __init__(self, learning_rate: float, momentum: float | None, nesterov: bool) -> None:
        super().__init__(learning_rate=learning_rate, **optional_momentum(momentum))
        self.has_momentum = "momentum" in self.hyperparameters
        if nesterov and not self.has_momentum:
            raise InvalidValue("nesterov looks ahead by the momentum, so it needs a momentum above 0")
        self.has_slots = self.has_momentum
        self.nesterov = bool(nesterov)

    def slots(self, weight: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"velocity": tf.zeros_like(weight)} if self.has_momentum else {}

    def step(
        self, hparams: dict, step: tf.Tensor | None, slots: dict, weight: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[dict, tf.Tensor]:
        change = -hparams["learning_rate"] * gradient
        if not self.has_momentum:
            return {}, weight + change
        velocity = hparams["momentum"] * slots["velocity"] + change
        moved = hparams["momentum"] * velocity + change if self.nesterov else velocity
        return {"velocity": velocity}, weight + moved


def build_sgdm(learning_rate: float = 0.01, momentum: float | None = None, nesterov: bool = False) -> Optimizer:
    """Gradient descent, with momentum where it is given; as `keras.optimizers.SGD`.

    Types, for weights W:
        state  <learning_rate=float32[,momentum=float32,velocity=W]>

    Args:
        learning_rate: of every step; may be changed between rounds.
        momentum: the share of the last change that is kept, at most 1. Default: none; 0 is none too.
        nesterov: looks ahead by the momentum.
    Raises:
        FedcoreError: a rate or a momentum that is negative or not finite, a momentum above 1, or nesterov without one.
    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning", equations 1-4.
    Example:
        >>> optimizer = fc.learning.optimizers.build_sgdm(0.1, momentum=0.9)
        >>> _, weights = optimizer.next(optimizer.initialize(tf.zeros(2)), tf.zeros(2), tf.constant([1.0, -2.0]))
        >>> weights.numpy().round(3)
        array([-0.1,  0.2], dtype=float32)
    """
    return _Sgdm(learning_rate, momentum, nesterov)

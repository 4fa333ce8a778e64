import tensorflow as tf

from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer, Optimizer
from fedcore.scalars import real_number


class _Adagrad(LeafwiseOptimizer):
    def __init__(self, learning_rate: float, initial_preconditioner_value: float, epsilon: float) -> None:
        super().__init__(learning_rate=learning_rate)
        self.epsilon = real_number("epsilon", epsilon, at_least=0)
        self.initial = real_number("initial_preconditioner_value", initial_preconditioner_value, at_least=0)

    def slots(self, weight: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"preconditioner": tf.fill(tf.shape(weight), tf.cast(self.initial, weight.dtype))}

    def step(
        self, hparams: dict, step: tf.Tensor | None, slots: dict, weight: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[dict, tf.Tensor]:
        total = slots["preconditioner"] + tf.square(gradient)
        change = hparams["learning_rate"] * gradient / tf.sqrt(total + self.epsilon)
        return {"preconditioner": total}, weight - change


def build_adagrad(
    learning_rate: float = 0.001, initial_preconditioner_value: float = 0.1, epsilon: float = 1e-7
) -> Optimizer:
    """Adagrad; as `keras.optimizers.Adagrad`.

    Types, for weights W:
        state  <learning_rate=float32,preconditioner=W>

    Args:
        learning_rate: of every step; may be changed between rounds.
        initial_preconditioner_value: where the sums of squared gradients start.
        epsilon: added to them, under the root.
    Raises:
        FedcoreError: a hyperparameter that is negative or not finite.
    Source: Duchi, Hazan, Singer 2011, "Adaptive subgradient methods", Figure 1 (diagonal).
    Example:
        >>> optimizer = fc.learning.optimizers.build_adagrad(0.1)
        >>> _, weights = optimizer.next(optimizer.initialize(tf.zeros(2)), tf.zeros(2), tf.constant([1.0, -2.0]))
        >>> weights.numpy().round(3)
        array([-0.095,  0.099], dtype=float32)
    """
    return _Adagrad(learning_rate, initial_preconditioner_value, epsilon)

import tensorflow as tf

from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer, Optimizer, kept_share, without_bias
from fedcore.scalars import real_number


class _Yogi(LeafwiseOptimizer):
    counts_steps = True

    def __init__(self, learning_rate: float, beta_1: float, beta_2: float, epsilon: float, initial: float) -> None:
        super().__init__(learning_rate=learning_rate)
        self.beta_1, self.beta_2 = kept_share("beta_1", beta_1), kept_share("beta_2", beta_2)
        self.epsilon = real_number("epsilon", epsilon, at_least=0)
        self.initial = real_number("initial_preconditioner_value", initial, at_least=0)

    def slots(self, weight: tf.Tensor) -> dict[str, tf.Tensor]:
        start = tf.fill(tf.shape(weight), tf.cast(self.initial, weight.dtype))
        return {"accumulator": tf.zeros_like(weight), "preconditioner": start}

    def step(
        self, hparams: dict, step: tf.Tensor, slots: dict, weight: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[dict, tf.Tensor]:
        beta_1, beta_2 = self.beta_1, self.beta_2
        correction = tf.sqrt(without_bias(beta_2, step)) / without_bias(beta_1, step)
        rate = hparams["learning_rate"] * tf.cast(correction, weight.dtype)
        m = slots["accumulator"] + (gradient - slots["accumulator"]) * (1 - beta_1)
        square, v = tf.square(gradient), slots["preconditioner"]
        v = v + (1 - beta_2) * tf.sign(square - v) * square
        return {"accumulator": m, "preconditioner": v}, weight - rate * m / (tf.sqrt(v) + self.epsilon)


def build_yogi(
    learning_rate: float = 0.01,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-3,
    initial_preconditioner_value: float = 1e-6,
) -> Optimizer:
    """Yogi: Adam whose average of squared gradients moves by steps of bounded size.

    Types, for weights W:
        state  <learning_rate=float32,step=int64,accumulator=W,preconditioner=W>

    Args:
        learning_rate: of every step; may be changed between rounds.
        beta_1, beta_2: as for Adam.
        epsilon: added to the root of the second average.
        initial_preconditioner_value: where the second average starts.
    Raises:
        FedcoreError: a hyperparameter that is negative or not finite, or a beta of 1 or more.
    Source: Zaheer et al. 2018, "Adaptive methods for nonconvex optimization", Algorithm 2; with Adam's correction of
        the bias, which the paper does without. On a server: FedYogi of Reddi et al. 2021, arXiv:2003.00295.
    Example:
        >>> optimizer = fc.learning.optimizers.build_yogi(0.01)
        >>> _, weights = optimizer.next(optimizer.initialize(tf.zeros(2)), tf.zeros(2), tf.constant([1.0, -2.0]))
        >>> weights.numpy().round(3)
        array([-0.01,  0.01], dtype=float32)
    """
    return _Yogi(learning_rate, beta_1, beta_2, epsilon, initial_preconditioner_value)

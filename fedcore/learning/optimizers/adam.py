import tensorflow as tf

from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer, Optimizer, kept_share, without_bias
from fedcore.scalars import real_number


class _Adam(LeafwiseOptimizer):
    counts_steps = True

    def __init__(self, learning_rate: float, beta_1: float, beta_2: float, epsilon: float, amsgrad: bool) -> None:
        super().__init__(learning_rate=learning_rate)
        self.beta_1, self.beta_2 = kept_share("beta_1", beta_1), kept_share("beta_2", beta_2)
        self.epsilon = real_number("epsilon", epsilon, at_least=0)
        self.amsgrad = amsgrad

    def slots(self, weight: tf.Tensor) -> dict[str, tf.Tensor]:
        names = ("accumulator", "preconditioner", *(["largest"] if self.amsgrad else []))
        return {name: tf.zeros_like(weight) for name in names}

    def step(
        self, hparams: dict, step: tf.Tensor, slots: dict, weight: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[dict, tf.Tensor]:
        beta_1, beta_2 = self.beta_1, self.beta_2
        correction = tf.sqrt(without_bias(beta_2, step)) / without_bias(beta_1, step)
        rate = hparams["learning_rate"] * tf.cast(correction, weight.dtype)
        m = slots["accumulator"] + (gradient - slots["accumulator"]) * (1 - beta_1)
        v = slots["preconditioner"] + (tf.square(gradient) - slots["preconditioner"]) * (1 - beta_2)
        new_slots = {"accumulator": m, "preconditioner": v}
        if self.amsgrad:
            new_slots["largest"] = v = tf.maximum(slots["largest"], v)
        return new_slots, weight - m * rate / (tf.sqrt(v) + self.epsilon)


def build_adam(
    learning_rate: float = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    amsgrad: bool = False,
) -> Optimizer:
    """Adam; as `keras.optimizers.Adam`.

    Types, for weights W:
        state  <learning_rate=float32,step=int64,accumulator=W,preconditioner=W[,largest=W]>

    Args:
        learning_rate: of every step; may be changed between rounds.
        beta_1, beta_2: how much the averages of gradients and of their squares keep in a step.
        epsilon: added to the root of the second average ("epsilon hat" of the paper).
        amsgrad: divides by the largest second average so far (Reddi et al. 2018, arXiv:1904.09237).
    Raises:
        FedcoreError: a hyperparameter that is negative or not finite, or a beta of 1 or more.
    Source: Kingma and Ba 2015, "Adam: a method for stochastic optimization", arXiv:1412.6980, the faster form after
        Algorithm 1. On a server: FedAdam of Reddi et al. 2021, arXiv:2003.00295, Algorithm 2, there without
        correction of the bias.
    Example:
        >>> optimizer = fc.learning.optimizers.build_adam(0.01)
        >>> _, weights = optimizer.next(optimizer.initialize(tf.zeros(2)), tf.zeros(2), tf.constant([1.0, -2.0]))
        >>> weights.numpy().round(3)
        array([-0.01,  0.01], dtype=float32)
    """
    return _Adam(learning_rate, beta_1, beta_2, epsilon, amsgrad)

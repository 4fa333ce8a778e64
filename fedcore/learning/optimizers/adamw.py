from fedcore.learning.optimizers.adam import build_adam
from fedcore.learning.optimizers.optimizer import Decayed, Optimizer


def build_adamw(
    learning_rate: float = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    weight_decay: float = 0.004,
    amsgrad: bool = False,
) -> Optimizer:
    """Adam with decoupled weight decay; as `keras.optimizers.AdamW`.

    Types: the state of `build_adam` with weight_decay=float32 in front.

    Args:
        learning_rate, beta_1, beta_2, epsilon, amsgrad: as for `build_adam`.
        weight_decay: times the learning rate, the share of every weight that a step takes away.
    Raises:
        FedcoreError: a hyperparameter that is negative or not finite, or a beta of 1 or more.
    Source: Loshchilov and Hutter 2019, "Decoupled weight decay regularization", arXiv:1711.05101, Algorithm 2.
    Example:
        >>> optimizer = fc.learning.optimizers.build_adamw(0.01, weight_decay=0.01)
        >>> _, weights = optimizer.next(optimizer.initialize(tf.zeros(2)), tf.zeros(2), tf.constant([1.0, -2.0]))
        >>> weights.numpy().round(3)
        array([-0.01,  0.01], dtype=float32)
    """
    return Decayed(build_adam(learning_rate, beta_1, beta_2, epsilon, amsgrad), weight_decay)

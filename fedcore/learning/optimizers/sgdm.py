import tensorflow as tf

from fedcore.learning.optimizers.optimizer import Optimizer


class _Sgdm(Optimizer):
    def __init__(self, learning_rate: float, momentum: float | None, nesterov: bool):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.nesterov = nesterov

    def initialize(self, weights: tuple) -> tuple:
        return tuple(tf.zeros_like(w) for w in weights) if self.momentum else ()

    def next(self, state: tuple, weights: tuple, gradients: tuple) -> tuple[tuple, tuple]:
        if not self.momentum:
            return (), tuple(w - self.learning_rate * g for w, g in zip(weights, gradients, strict=True))
        velocity = tuple(self.momentum * v - self.learning_rate * g for v, g in zip(state, gradients, strict=True))
        change = velocity
        if self.nesterov:
            change = tuple(self.momentum * v - self.learning_rate * g for v, g in zip(velocity, gradients, strict=True))
        return velocity, tuple(w + c for w, c in zip(weights, change, strict=True))


def build_sgdm(learning_rate: float = 0.01, momentum: float | None = None, nesterov: bool = False) -> Optimizer:
    """Gradient descent, with momentum where it is given; as `keras.optimizers.SGD`.

    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
    Example:
        >>> optimizer = fc.learning.optimizers.build_sgdm(0.1, momentum=0.9)
    """
    return _Sgdm(learning_rate, momentum, nesterov)

"""What an optimizer is: a state, and a step over tuples of weights and gradients."""

import abc


class Optimizer(abc.ABC):
    """A functional optimizer: both functions run inside a graph, over tuples of tensors."""

    @abc.abstractmethod
    def initialize(self, weights: tuple) -> tuple:
        """The state before the first step, for weights of these shapes and dtypes."""

    @abc.abstractmethod
    def next(self, state: tuple, weights: tuple, gradients: tuple) -> tuple[tuple, tuple]:
        """The state and the weights after one step."""

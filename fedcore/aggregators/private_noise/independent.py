"""The Gaussian mechanism: independent noise in each round."""

from typing import TYPE_CHECKING

import attrs

from fedcore.aggregators.private_noise.normal import Draw

if TYPE_CHECKING:
    import tensorflow as tf


@attrs.frozen
class IndependentNoise:
    """The noise mechanism without correlation between rounds; its state is <>."""

    def initialize(self, size: int) -> tuple[()]:
        return ()

    def next(self, state: tuple[()], size: int, draw: Draw) -> "tuple[tf.Tensor, tuple[()]]":
        """The noise of a round for a standard deviation of 1, float32 [size], and the next state."""
        return draw(0, size), state

"""The Gaussian mechanism: independent noise in each round."""

import attrs

from fedcore.aggregators.private_noise.normal import Draw


@attrs.frozen
class IndependentNoise:
    """Independent noise; its state is <>."""

    def initialize(self, size: int):
        return ()

    def next(self, state, size: int, draw: Draw):
        """The noise of a round for a standard deviation of 1, float32 [size], and the next state."""
        return draw(0, size), state

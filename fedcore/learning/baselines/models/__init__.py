"""Models of examples. TFF has them at `fc.simulation.models`."""

from fedcore.learning.baselines.models import mnist

__all__ = ["mnist"]

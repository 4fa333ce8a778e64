"""Models of examples. TFF has them at `fc.simulation.models`."""

from fedcore.learning.baselines.models import mnist
from fedcore.tff_names import tff_name

__all__ = ["mnist"]


def __getattr__(name):
    return tff_name("fedcore.simulation.models", name)

"""Models of examples. TFF has them at `fc.simulation.models`."""

from typing import TYPE_CHECKING

from fedcore.learning.baselines.models import mnist
from fedcore.tff_names import tff_names

__all__ = ["mnist"]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.simulation.models")

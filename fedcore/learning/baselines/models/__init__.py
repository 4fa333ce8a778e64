"""Models of examples. TFF has them at `fc.simulation.models`."""

from typing import TYPE_CHECKING

from fedcore.learning.baselines.models import mnist
from fedcore.tff_names import tff_name

__all__ = ["mnist"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return tff_name("fedcore.simulation.models", name)

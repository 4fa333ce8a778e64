"""`fc.simulation.models`: the models of TFF's examples."""

from fedcore.compat.simulation_models import mnist
from fedcore.tff_names import tff_name

__all__ = ["mnist"]


def __getattr__(name):
    return tff_name("fedcore.simulation.models", name)

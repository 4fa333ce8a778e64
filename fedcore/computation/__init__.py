"""Computations: the decorators that trace Python functions, and the objects that they make."""

from fedcore.computation.computation import Computation, PolymorphicComputation
from fedcore.computation.files import load, save
from fedcore.computation.tracing import federated_computation, tf_computation

__all__ = ["Computation", "PolymorphicComputation", "federated_computation", "load", "save", "tf_computation"]

"""Computations: the decorators that trace Python functions, and the objects that they make."""

from fedcore.computation.asynchronous import invoke_async
from fedcore.computation.computation import Computation, PolymorphicComputation
from fedcore.computation.files import load, save
from fedcore.computation.tracing import federated_computation, tf_computation

__all__ = [
    "Computation",
    "PolymorphicComputation",
    "federated_computation",
    "invoke_async",
    "load",
    "save",
    "tf_computation",
]

"""Where in the type of a state the states of certain classes stand."""

from collections.abc import Collection, Iterator

from fedcore.aggregators.differential_privacy import PrivateState, SimulatedPrivateState
from fedcore.aggregators.distributed_privacy import DistributedPrivateState
from fedcore.types import StructType, StructWithPythonType, Type

PRIVATE_STATES = (PrivateState, SimulatedPrivateState, DistributedPrivateState)
"""The states of aggregations with noise."""


def container_paths(type_: Type, classes: Collection[type]) -> list[list[str]]:
    """The names that lead to each struct of one of the classes, in a type without placements."""
    return list(_paths(type_, {f"{c.__module__}.{c.__qualname__}" for c in classes}, ()))


def _paths(type_: Type, containers: set[str], path: tuple[str, ...]) -> Iterator[list[str]]:
    if not isinstance(type_, StructType):
        return
    if isinstance(type_, StructWithPythonType) and type_.container in containers:
        yield list(path)
        return
    for index, (name, part) in enumerate(type_.items()):
        yield from _paths(part, containers, (*path, name or str(index)))

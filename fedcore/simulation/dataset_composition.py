"""Computations whose clients make their own data sets, from ids or other values."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from fedcore.computation import Computation, PolymorphicComputation, federated_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.intrinsics import federated_map
from fedcore.simulation.datasets.reading import ComputationOfIds, ReadingFunction
from fedcore.templates import IterativeProcess
from fedcore.types import CLIENTS, FederatedType, SequenceType, StructType, Type, contains, fits


class SequenceTypeNotAssignableError(TypeMismatch):
    """No data set that a computation takes is of the type that another computation makes."""


class SequenceTypeNotFoundError(TypeMismatch):
    """A computation takes no data set of clients."""


class MultipleMatchingSequenceTypesError(TypeMismatch):
    """A computation takes several data sets of the type that another computation makes."""


def compose_dataset_computation_with_computation(
    dataset_computation: Computation | ReadingFunction, computation_body: Computation
) -> Computation:
    """The computation that takes what makes the data sets in place of the data sets.

    Types: `(T -> U*)` and `({U*}@CLIENTS, V -> W)` give `({T}@CLIENTS, V -> W)`. The data set may stand at any place of
    the parameters, also in a struct; the others stay.

    Args:
        dataset_computation: makes a client's data set, such as `client_data.dataset_computation`, from a client's id.
        computation_body: takes one data set of clients that fits.
    Raises:
        TypeMismatch: `dataset_computation` is no computation with a parameter and a sequence as its result; or
            `computation_body` is no computation.
        SequenceTypeNotFoundError, SequenceTypeNotAssignableError, MultipleMatchingSequenceTypesError:
            `computation_body` takes no data set of clients, none that fits, or several that fit.
    Example:
        >>> data = TestClientData({"a": [1, 2], "b": [3]})
        >>> by_id = compose_dataset_computation_with_computation(data.dataset_computation, total)
        >>> print(by_id.type_signature)
        ({str}@CLIENTS -> int32@SERVER)
        >>> int(by_id(["a", "b", "b"]))
        9
    """
    parameter_type = _parameter_type(dataset_computation)
    _check_computation("computation_body", computation_body)
    dataset_type = dataset_computation.type_signature.result
    parameters = computation_body.module.main.parameters
    path = _path_of_dataset(dataset_type, StructType([(p.name, p.type) for p in parameters]), computation_body)
    federated = FederatedType(parameter_type, CLIENTS)
    types = [_replace(p.type, path[1:], federated) if i == path[0] else p.type for i, p in enumerate(parameters)]

    if isinstance(dataset_computation, ReadingFunction):
        named_types = zip((p.name for p in parameters), types, strict=True)
        parameter = types[0] if len(types) == 1 else StructType(named_types)
        return ComputationOfIds(computation_body, dataset_computation, path, parameter)

    def call_with_datasets(*arguments: object) -> object:
        values = list(arguments)
        values[path[0]] = _map_datasets(dataset_computation, values[path[0]], parameters[path[0]].type, path[1:])
        return computation_body(*values)

    call_with_datasets.__name__ = computation_body.__name__
    named = [inspect.Parameter(p.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in parameters]
    call_with_datasets.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return federated_computation(call_with_datasets, *types)


def compose_dataset_computation_with_iterative_process(
    dataset_computation: Computation | ReadingFunction, process: IterativeProcess
) -> IterativeProcess:
    """The process whose `next` takes what makes the data sets in place of the data sets.

    Types: `(T -> U*)` and `next : (<S,{U*}@CLIENTS> -> R)` give `next : (<S,{T}@CLIENTS> -> R)`. The result is of the
    process's class and has its other attributes.

    Args:
        dataset_computation: makes a client's data set, such as `client_data.dataset_computation`, from a client's id.
        process: its `next` takes one data set of clients that fits.
    Raises:
        TypeMismatch: `process` is no process or has a sequence in its state; or as for
            `compose_dataset_computation_with_computation`.
    Example:
        >>> data = TestClientData({"a": [1, 2], "b": [3]})
        >>> by_id = compose_dataset_computation_with_iterative_process(data.dataset_computation, summing)
        >>> int(by_id.next(by_id.initialize(), ["a", "b"]))
        6
    """
    if not isinstance(process, IterativeProcess):
        raise TypeMismatch(f"process is an iterative process, not {brief(process)}")
    _parameter_type(dataset_computation)  # refuses an argument that makes no data sets
    if contains(process.state_type, lambda t: isinstance(t, SequenceType)):
        raise TypeMismatch(f"the state of process holds a data set: {process.state_type}")
    return process.with_next(compose_dataset_computation_with_computation(dataset_computation, process.next))


compose_dataset_computation_with_learning_process = compose_dataset_computation_with_iterative_process
"""TFF's name for learning processes, whose class the result has."""


def _check_computation(role: str, computation: Any) -> None:
    """Refuses an argument that is no computation with a type."""
    if isinstance(computation, PolymorphicComputation) or not isinstance(computation, Computation):
        raise TypeMismatch(f"{role} is a computation with a type, not {brief(computation)}")


def _parameter_type(dataset_computation: Computation | ReadingFunction) -> Type:
    """The type from which data sets are made.

    Raises:
        TypeMismatch: the argument makes no data sets.
    """
    if not isinstance(dataset_computation, ReadingFunction):
        _check_computation("dataset_computation", dataset_computation)
    type_ = dataset_computation.type_signature
    if not isinstance(type_.result, SequenceType):
        raise TypeMismatch(f"dataset_computation returns a sequence, such as int32*, not {type_.result}")
    if type_.parameter is None:
        raise TypeMismatch(f"dataset_computation takes an argument, such as a client's id; its type is {type_}")
    return type_.parameter


def _path_of_dataset(dataset_type: Type, parameter_types: StructType, body: Computation) -> tuple[int, ...]:
    """The position in nested structs of the client value that the made data sets fit."""
    matching_paths: list[tuple[int, ...]] = []
    other_types: list[Type] = []

    def search(type_: Type, path: tuple[int, ...]) -> None:
        if isinstance(type_, StructType):
            for i, element in enumerate(type_.types):
                search(element, (*path, i))
        elif isinstance(type_, FederatedType) and isinstance(type_.member, SequenceType):
            if fits(dataset_type, type_.member):
                matching_paths.append(path)
            else:
                other_types.append(type_.member)

    search(parameter_types, ())
    title = f"`{body.__name__}` : {body.type_signature} takes"
    if len(matching_paths) > 1:
        raise MultipleMatchingSequenceTypesError(
            f"{title} {len(matching_paths)} data sets that {dataset_type} fits, not one"
        )
    if matching_paths:
        return matching_paths[0]
    if other_types:
        takes = ", ".join(map(str, other_types))
        raise SequenceTypeNotAssignableError(
            f"{title} no data set that fits\n  it takes  {takes}\n  made is   {dataset_type}"
        )
    raise SequenceTypeNotFoundError(f"{title} no data set of clients, so {dataset_type} has no place in it")


def _replace(type_: Type, path: Sequence[int], new: Type) -> Type:
    """The type with another type at a position of its nested structs."""
    if not path:
        return new
    assert isinstance(type_, StructType)
    return type_.with_types(_replace(t, path[1:], new) if i == path[0] else t for i, t in enumerate(type_.types))


def _map_datasets(dataset_computation: Computation, value: Any, type_: Type, path: Sequence[int]) -> Any:
    """The value with data sets made of what stands at a position of its nested structs."""
    if not path:
        return federated_map(dataset_computation, value)
    assert isinstance(type_, StructType)
    parts = [
        _map_datasets(dataset_computation, part, type_.types[i], path[1:]) if i == path[0] else part
        for i, part in enumerate(value)
    ]
    return dict(zip(type_.names, parts, strict=True)) if all(type_.names) else tuple(parts)

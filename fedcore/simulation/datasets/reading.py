"""Data sets in files as functions of clients' ids, which are read when a computation is called.

A graph opens no file, since it can be saved and shipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedcore.computation import Computation
from fedcore.errors import TracingError, TypeMismatch, brief
from fedcore.ir import Builder, Value
from fedcore.ir.active import active_builder
from fedcore.types import FunctionType, SequenceType, StructType, TensorType, Type, to_type

if TYPE_CHECKING:
    from fedcore.data import Cohort
    from fedcore.simulation.datasets.client_data import ClientData

LIMIT_BYTES = 256 << 20
"""The most bytes of examples that a graph holds."""


class ReadingFunction:
    """The function from a client's id to its data set, for data in files: `(str -> T*)`.

    It is called from Python, or given to `fc.simulation.compose_dataset_computation_with_computation` and its siblings:
    what they make reads the clients of a call when it is called. In a computation that is being traced, the examples of
    all clients are read then and become constants of its graph, up to `LIMIT_BYTES`.
    """

    def __init__(self, data: ClientData) -> None:
        self._data = data
        self.type_signature = FunctionType(TensorType("str"), SequenceType(to_type(data.element_type_structure)))
        self.__name__ = "dataset_of_client"

    def __repr__(self) -> str:
        return f"<reading function {self.__name__} : {self.type_signature}>"

    def __call__(self, client_id: Any) -> Any:
        if active_builder() is not None:
            return self._constant_computation(client_id)
        return self._data.create_tf_dataset_for_client(_text(client_id))

    def __fedcore_function__(self, builder: Builder, parameter_type: Type | None) -> Value:
        return self._constant_computation.__fedcore_function__(builder, parameter_type)

    @functools.cached_property
    def _constant_computation(self) -> Computation:
        """The computation whose graph holds all examples.

        Raises:
            TracingError: they are too large.
        """
        held = self._data.in_memory()
        if held.size_bytes > LIMIT_BYTES:
            raise TracingError(
                f"the data sets of these clients are read from files, and {held.size_bytes} bytes are too many to be "
                f"constants of a graph, which holds {LIMIT_BYTES}; fix: what "
                "fc.simulation.compose_dataset_computation_with_computation(data.dataset_computation, computation) "
                "makes reads the clients of a call when it is called"
            )
        computation = held.dataset_computation
        assert isinstance(computation, Computation)  # of data in memory
        return computation

    def cohort(self, client_ids: Iterable) -> Cohort:
        """The data sets of clients, read when they are needed."""
        if isinstance(client_ids, str | bytes) or not isinstance(client_ids, Iterable):
            raise TypeMismatch(f"clients are given by a list of their ids, not by {brief(client_ids)}")
        return self._data.cohort([_text(client_id) for client_id in client_ids])


class ComputationOfIds(Computation):
    """A computation whose data sets of clients are given by the clients' ids, and are read when it is called.

    Args:
        body: takes the data sets.
        reading: reads them.
        path: position of the data sets among the parameters of `body`, then in nested structs there.
        parameter: the type of the parameters, with ids in place of the data sets.
    """

    def __init__(self, body: Computation, reading: ReadingFunction, path: Sequence[int], parameter: Type) -> None:
        super().__init__(body.module, body.__name__)
        self._body = body
        self._reading = reading
        self._path = tuple(path)
        self._type = FunctionType(parameter, body.type_signature.result)

    @property
    def type_signature(self) -> FunctionType:
        return self._type

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = Computation.__hash__

    def __reduce__(self) -> tuple[Callable, tuple]:
        return ComputationOfIds, (self._body, self._reading, self._path, self._type.parameter)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if active_builder() is not None:
            raise TracingError(
                f"{self.__name__} reads clients' data from files when it is called, which cannot be done inside a "
                "computation: call it from Python"
            )
        return self._body(*self._open(args, kwargs))

    def invoke(self, /, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        return self._body.invoke(*self._open(args, kwargs), seed=seed)

    def _open(self, args: tuple, kwargs: dict) -> list:
        """The arguments, with data sets in place of ids."""
        arguments = self._arguments(args, kwargs)
        first, *inner = self._path
        type_ = self.module.main.parameters[first].type
        arguments[first] = self._opened_within(arguments[first], type_, inner)
        return arguments

    def _opened_within(self, value: Any, type_: Type, path: Sequence[int]) -> Any:
        """An argument with a cohort in place of the ids at a path; structs around it become lists or dicts.

        Args:
            type_: the type of `value` in the body, whose field names are a mapping's keys.
            path: positions of the ids in nested structs; empty if `value` is the ids.
        """
        if not path:
            return self._reading.cohort(value)
        assert isinstance(type_, StructType)
        first, *inner = path
        parts: Any = dict(value) if isinstance(value, Mapping) else list(value)
        key = type_.names[first] if isinstance(value, Mapping) else first
        parts[key] = self._opened_within(parts[key], type_.types[first], inner)
        return parts


def _text(client_id: Any) -> str:
    """A client's id from text, numpy's text, or an eager tensor."""
    if hasattr(client_id, "numpy"):
        client_id = client_id.numpy()
    return client_id.decode() if isinstance(client_id, bytes) else str(client_id)

"""Converts a user's arguments to nested tuples by type, and results back to the containers of their types.

Mismatches are found before any stage runs, except in client values, which are converted when their slice is read.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import attrs
import numpy as np

from fedcore.data import dataset_of, is_table
from fedcore.errors import TypeMismatch
from fedcore.graphs.tensors.returned import returned
from fedcore.graphs.tensors.values import container, elements_of, tensor_leaf
from fedcore.ir import Function
from fedcore.site_value import SiteValue
from fedcore.types import (
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    fits,
    leaves,
    strip_placement,
)


@attrs.frozen
class ClientValues:
    """The client values of one argument, as the user gave them. A value is converted when its slice is read.

    Guarantees:
      - A generator is read once, and only as far as slices are taken.

    Args:
        given: the user's values, one for each client.
        convert: (value, its path) -> the value in the runtime's form.
        path: name of the argument, or of its element, in messages.
        member_type: type of the values; None for elements of the user's values, and for values of an earlier stage.
        is_opened_elsewhere: `given` has clients' ids; the process that computes a client opens its value.
    """

    given: Iterable
    convert: Callable[[object, str], Any]
    path: str
    member_type: Type | None = None
    is_opened_elsewhere: bool = False

    def convert_client(self, index: int, value: object) -> object:
        """A client's value in the runtime's form."""
        return self.convert(value, f"{self.path}[{index}]")

    def __iter__(self) -> Iterator:
        """The converted values."""
        for index, value in enumerate(self.given):
            yield self.convert_client(index, value)

    @property
    def size(self) -> int | None:
        """The number of clients; None for an iterator, whose length is unknown until it ends."""
        return len(self.given) if isinstance(self.given, Sized) else None

    @property
    def is_read_once(self) -> bool:
        """Whether the values are an iterator, such as a generator: a second reading finds nothing."""
        return isinstance(self.given, Iterator)

    def part(self, index: int) -> "ClientValues":
        """One element of every client's value; None for a client that was dropped."""

        def convert(value: object, path: str) -> Any:
            whole = self.convert(value, path)
            return None if whole is None else whole[index]

        return attrs.evolve(self, convert=convert, member_type=None)


def prepare(value: Any, type_: Type, path: str, sequence: Callable) -> Any:
    """The value in the runtime's form: structs as tuples, client values as `ClientValues`.

    Args:
        path: name of the value in messages.
        sequence: (value, sequence type, path) -> `Columns`.
    Raises:
        TypeMismatch: the value does not fit; the message names the argument, the client and the element.
    """
    if isinstance(type_, FederatedType):
        if type_.placement.name == "CLIENTS" and not type_.all_equal:
            return _client_values(value, type_, path, sequence)
        return prepare(value, type_.member, path, sequence)
    if isinstance(type_, StructType):
        parts = elements_of(value, type_, path)
        return tuple(
            prepare(part, t, _element_path(path, i, name), sequence)
            for i, (part, (name, t)) in enumerate(zip(parts, type_.items(), strict=True))
        )
    if isinstance(type_, SequenceType):
        return sequence(value, type_, path)
    if isinstance(type_, TensorType):
        leaf = returned.tensor(value)  # the tensor itself if the value is an array of an earlier result
        fits_as_is = type(leaf) is np.ndarray and leaf.dtype.kind in "biufc" and leaf.dtype == type_.dtype.numpy
        return leaf if fits_as_is and leaf.shape == type_.shape else tensor_leaf(leaf, type_, path)
    if isinstance(type_, FunctionType):
        raise TypeMismatch(f"{path}: a function cannot be an argument of a call from Python; give it while tracing")
    raise TypeMismatch(f"{path}: a value of type {type_} cannot be given")


def _element_path(path: str, index: int, name: str | None) -> str:
    """The path of an element of a struct: `x.name`, or `x[index]` if it has no name."""
    return f"{path}[{index}]" if name is None else f"{path}.{name}"


def _client_values(value: Any, type_: FederatedType, path: str, sequence: Callable) -> ClientValues:
    """The client values of an argument. Arguments as of `prepare`.

    Raises:
        TypeMismatch: the value has no elements or no order, or is one client's data set or table.
    """
    if isinstance(value, set | frozenset):
        raise TypeMismatch(
            f"{path} is a client value of type {type_}: give a list with one element per client, "
            f"not {type(value).__name__}, which has no order and holds equal values once\n  fix: sorted({path})"
        )
    has_no_elements = (
        isinstance(value, str | bytes | dict) or not hasattr(value, "__iter__") or getattr(value, "ndim", 1) == 0
    )
    is_one_client = hasattr(value, "element_spec") or is_table(value)
    if has_no_elements or is_one_client:
        fix = f"\n  fix: [{path}] is a list of one client" if hasattr(value, "element_spec") else ""
        raise TypeMismatch(
            f"{path} is a client value of type {type_}: give a list with one element per client, "
            f"not {type(value).__name__}{fix}"
        )
    if _is_column(value, type_.member):
        return ClientValues(value, lambda x, _: np.asarray(x), path, type_.member)

    def convert(client_value: object, client_path: str) -> Any:
        if isinstance(client_value, SiteValue):
            return client_value
        return prepare(client_value, type_.member, client_path, sequence)

    return ClientValues(value, convert, path, type_.member)


def _is_column(value: object, member: Type) -> bool:
    """Whether a value is an array with a row for each client, whose rows need no conversion to the member type."""
    return (
        type(value) is np.ndarray
        and value.dtype.kind in "biufc"
        and value.dtype.isnative
        and isinstance(member, TensorType)
        and fits(TensorType(value.dtype, value.shape[1:]), member)
    )


def leaf_numbers(main: Function) -> dict[str, int]:
    """Name of a value of the main function -> the number of its first leaf among the leaves of all parameters.

    Values that are neither parameters nor elements of parameters have the number 0. A sequence's number is folded into
    the seed of its shuffles.
    """
    numbers: dict[str, int] = {}
    count = 0
    for parameter in main.parameters:
        numbers[parameter.name] = count
        count += len(leaves(strip_placement(parameter.type)))
    parameter_names, types = set(numbers), main.types()  # of parameters, and of elements of parameters
    starts: dict[str, list[int]] = {}  # for each struct that `item` reads, the first leaves of its elements
    for op in main.operations:
        numbers[op.name] = 0
        if op.kind == "item" and op.operands[0].name in parameter_names:
            source = op.operands[0].name
            if source not in starts:
                struct = strip_placement(types[source])
                sizes = [len(leaves(t)) for t in struct.types] if isinstance(struct, StructType) else []
                starts[source] = list(itertools.accumulate(sizes, initial=numbers[source]))
            numbers[op.name] = starts[source][op.attributes["index"]]
            parameter_names.add(op.name)
    return numbers


def restore(value: Any, type_: Type) -> Any:
    """A result in the containers of its type. Client values become lists, sequences become datasets.

    A client that was dropped has None, and a value at a site stays a `SiteValue`.
    """
    if isinstance(type_, FederatedType):
        if type_.placement.name == "CLIENTS" and not type_.all_equal:
            return [v if v is None or isinstance(v, SiteValue) else restore(v, type_.member) for v in value]
        return restore(value, type_.member)
    if isinstance(type_, StructType):
        return container([restore(v, t) for v, t in zip(value, type_.types, strict=True)], type_)
    return dataset_of(value, type_) if isinstance(type_, SequenceType) else value

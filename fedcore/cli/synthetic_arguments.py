"""Generates arguments of a type, for measurements in which shapes matter and values do not."""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.ir import Function
from fedcore.types import FederatedType, SequenceType, StructType, TensorType, Type, tensor_leaves


@attrs.frozen
class Sizes:
    """The sizes that types leave open.

    Args:
        clients: number of clients.
        steps: number of elements of each sequence.
        rows: size of every unknown dimension, such as a batch's.
        integers: number of different integers, from 0.
    """

    clients: int
    steps: int
    rows: int
    integers: int = 2


def synthetic_argument(type_: Type, sizes: Sizes, rng: np.random.Generator) -> Any:
    """A value of the type: small normally distributed floats, integers from 0, bools, empty strings.

    Raises:
        FedcoreError: the type has no generated values (a function, or a tensor of unknown rank).
    """
    if isinstance(type_, FederatedType):
        if type_.placement.name == "CLIENTS" and not type_.all_equal:
            return [synthetic_argument(type_.member, sizes, rng) for _ in range(sizes.clients)]
        return synthetic_argument(type_.member, sizes, rng)
    if isinstance(type_, SequenceType):
        return _sequence(type_, sizes, rng)
    if isinstance(type_, StructType):
        return _struct(type_, [synthetic_argument(t, sizes, rng) for t in type_.types])
    if not isinstance(type_, TensorType) or type_.shape is None:
        raise FedcoreError(f"no value of type {type_} can be generated: give it with --arg")
    return _array(type_, [sizes.rows if s is None else s for s in type_.shape], sizes, rng)


def argument_lists(main: Function, run: Callable[[list], object]) -> list[list]:
    """Lists of arguments for which a program has a result, with 3, 1 and 0 clients.

    Integers are 0 to 8, or 0 and 1 if the program refuses others, as labels of two classes.

    Args:
        run: calls the program; raises FedcoreError where it has no result, as for no clients.
    Raises:
        FedcoreError: it has none for 3 clients.
    """
    lists = []
    for clients in (3, 1, 0):
        for integers in (9, 2):
            rng, sizes = np.random.default_rng([clients, integers]), Sizes(clients, 2, 3, integers)
            arguments = [synthetic_argument(p.type, sizes, rng) for p in main.parameters]
            try:
                run(arguments)
            except FedcoreError:
                if clients == 3 and integers == 2:
                    raise
                continue
            lists.append(arguments)
            break
    return lists


def _struct(type_: StructType, parts: list) -> dict | tuple:
    """The parts as a dict if all have names, else as a tuple."""
    if parts and None not in type_.names:
        return dict(zip(type_.names, parts, strict=True))
    return tuple(parts)


def _sequence(type_: SequenceType, sizes: Sizes, rng: np.random.Generator) -> ClientDataset:
    """A client's dataset: batches if the first dimension of all tensors is unknown, else single elements."""
    batched = all(t.shape and t.shape[0] is None for t in tensor_leaves(type_.element))
    count = sizes.steps * (sizes.rows if batched else 1)

    def columns(element: Type) -> Any:
        """The structure of the element, with an array of `count` rows for each tensor."""
        if isinstance(element, StructType):
            return _struct(element, [columns(t) for t in element.types])
        if not isinstance(element, TensorType) or element.shape is None:
            raise FedcoreError(f"no value of type {type_} can be generated: give it with --arg")
        inner = element.shape[1:] if batched else element.shape
        return _array(element, [count, *(sizes.rows if s is None else s for s in inner)], sizes, rng)

    dataset = ClientDataset.from_columns(columns(type_.element))
    return dataset.batch(sizes.rows) if batched else dataset


def _array(type_: TensorType, shape: list[int], sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
    """An array of the type's dtype: see `synthetic_argument`."""
    if type_.dtype.name == "str":
        return np.full(shape, b"", object)
    if type_.dtype.is_inexact:
        return (rng.standard_normal(shape) / 10).astype(type_.dtype.numpy)
    highest = 2 if type_.dtype.name == "bool" else sizes.integers
    return rng.integers(0, highest, shape).astype(type_.dtype.numpy)

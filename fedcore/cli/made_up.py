"""Arguments of a type, made up: for measuring, where shapes matter and values do not."""

import attrs
import numpy as np

from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError
from fedcore.types import FederatedType, SequenceType, StructType, TensorType, Type, tensor_leaves


@attrs.frozen
class Amounts:
    """What types leave open.

    Args:
        clients: how many there are.
        steps: elements of each sequence.
        rows: the size of a dimension that the type does not tell, such as a batch's.
    """

    clients: int
    steps: int
    rows: int


def made_up(type_: Type, amounts: Amounts, rng: np.random.Generator):
    """A value of the type: small normal floats, integers and bools of 0 and 1, empty text.

    Raises:
        FedcoreError: no value of the type can be made up (a function, or an unknown rank).
    """
    if isinstance(type_, FederatedType):
        if type_.placement.name == "CLIENTS" and not type_.all_equal:
            return [made_up(type_.member, amounts, rng) for _ in range(amounts.clients)]
        return made_up(type_.member, amounts, rng)
    if isinstance(type_, SequenceType):
        return _sequence(type_, amounts, rng)
    if isinstance(type_, StructType):
        return _struct(type_, [made_up(t, amounts, rng) for t in type_.types])
    if not isinstance(type_, TensorType) or type_.shape is None:
        raise FedcoreError(f"no value of type {type_} can be made up: give it with --arg")
    return _array(type_, [amounts.rows if s is None else s for s in type_.shape], rng)


def _struct(type_: StructType, parts: list):
    if parts and None not in type_.names:
        return dict(zip(type_.names, parts, strict=True))
    return tuple(parts)


def _sequence(type_: SequenceType, amounts: Amounts, rng: np.random.Generator) -> ClientDataset:
    """A client's data set: batches where the elements' first dimension is open, else single elements."""
    batched = all(t.shape and t.shape[0] is None for t in tensor_leaves(type_.element))
    count = amounts.steps * (amounts.rows if batched else 1)

    def columns(element: Type):
        if isinstance(element, StructType):
            return _struct(element, [columns(t) for t in element.types])
        if not isinstance(element, TensorType) or element.shape is None:
            raise FedcoreError(f"no value of type {type_} can be made up: give it with --arg")
        inner = element.shape[1:] if batched else element.shape
        return _array(element, [count, *(amounts.rows if s is None else s for s in inner)], rng)

    made = ClientDataset.from_columns(columns(type_.element))
    return made.batch(amounts.rows) if batched else made


def _array(type_: TensorType, shape: list[int], rng: np.random.Generator):
    if type_.dtype.name == "str":
        return np.full(shape, b"", object)
    if type_.dtype.is_inexact:
        return (rng.standard_normal(shape) / 10).astype(type_.dtype.numpy)
    return rng.integers(0, 2, shape).astype(type_.dtype.numpy)

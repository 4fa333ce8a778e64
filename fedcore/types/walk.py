"""Traversals of types: leaves, maps, and the position of each part in the notation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from fedcore.errors import TypeMismatch
from fedcore.types.types import FederatedType, Key, StructType, StructWithPythonType, TensorType, Type, quote

At: TypeAlias = tuple[Key, ...]
"""The keys that lead from a type to one of its parts."""


def leaves(type_: Type) -> list[tuple[str, Type]]:
    """The leaves of a type in order, with their paths: the parts below structs and placements.

    A leaf is a tensor, a sequence, a function or a type variable. Its path is such as `x.y[0]`; empty for a type that
    is itself a leaf.
    """
    return [(path, leaf) for _, path, leaf in leaves_at(type_)]


def tensor_leaves(type_: Type | None) -> list[TensorType]:
    """The leaves of a type of tensors, in order; None (no parameter) has no leaves.

    Raises:
        TypeMismatch: a leaf is not a tensor.
    """
    return [] if type_ is None else [_tensor(leaf) for _, leaf in leaves(type_)]


def _tensor(leaf: Type) -> TensorType:
    if not isinstance(leaf, TensorType):
        raise TypeMismatch(f"tensors are wanted here, not {leaf}")
    return leaf


def leaves_at(type_: Type, at: At = (), path: str = "") -> Iterator[tuple[At, str, Type]]:
    """The `leaves`, with the keys that lead to each leaf."""
    if isinstance(type_, FederatedType):
        yield from leaves_at(type_.member, (*at, 0), path)
    elif isinstance(type_, StructType):
        for i, (name, element) in enumerate(type_.elements):
            yield from leaves_at(element, (*at, i), element_path(path, i, name))
    else:
        yield at, path, type_


def element_path(path: str, index: int, name: str | None) -> str:
    """The path of a struct's element, where `path` leads to the struct."""
    if name is None:
        return f"{path}[{index}]"
    return f"{path}.{quote(name)}" if path else quote(name)


def map_leaves(fn: Callable[[Type], Type], type_: Type) -> Type:
    """The type with fn applied to each of its `leaves`."""
    if isinstance(type_, StructType | FederatedType):
        return type_.map_children(lambda child: map_leaves(fn, child))
    return fn(type_)


def map_tensors(fn: Callable[[TensorType], Type], type_: Type) -> Type:
    """Maps the leaves of a type of tensors.

    Raises:
        TypeMismatch: a leaf is not a tensor.
    """
    return map_leaves(lambda leaf: fn(_tensor(leaf)), type_)


def member_of(type_: Type) -> Type:
    """The member of a federated type; any other type itself."""
    return type_.member if isinstance(type_, FederatedType) else type_


def strip_placement(type_: Type) -> Type:
    """The type with each federated type replaced by its member."""
    if isinstance(type_, FederatedType):
        return strip_placement(type_.member)
    return type_.map_children(strip_placement)


def strip_containers(type_: Type) -> Type:
    """The type with each struct that has a Python container replaced by a plain struct."""
    mapped = type_.map_children(strip_containers)
    return StructType(mapped.elements) if isinstance(mapped, StructWithPythonType) else mapped


def contains(type_: Type, predicate: Callable[[Type], bool]) -> bool:
    """Whether the predicate holds for the type or a part of it, including parameters and results of functions."""
    return predicate(type_) or any(contains(child, predicate) for _, child in type_.children())


def notation_with_spans(type_: Type) -> tuple[str, dict[At, tuple[int, int]]]:
    """`str(type_)`, and the span of each part in it, by the keys that lead to the part."""
    pieces: list[str] = []
    spans: dict[At, tuple[int, int]] = {}

    def write(part: str | Type, at: At, start: int) -> int:
        """Adds the text of a part that begins at offset `start`; returns the offset of its end."""
        if isinstance(part, str):
            pieces.append(part)
            return start + len(part)
        end = start
        for key, child in part.parts():
            begin, here = end, at if key is None else (*at, key)
            end = write(child, here, begin)
            if key is not None:
                spans[here] = begin, end
        return end

    spans[()] = 0, write(type_, (), 0)
    return "".join(pieces), spans

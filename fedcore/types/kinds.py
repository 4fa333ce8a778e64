"""What a type variable of a signature may be bound to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fedcore.types.types import FederatedType, StructType, TensorType, Type
from fedcore.types.walk import At, contains, element_path, leaves_at

Violation: TypeAlias = tuple[At, str] | None
"""Which part of a type is not of a kind, and what it is, such as "is bool"; None where all is."""


def _of_every_leaf(holds: Callable[[Type], bool]) -> Callable[[Type], Violation]:
    def violation(type_: Type) -> Violation:
        if contains(type_, lambda inner: isinstance(inner, FederatedType)):
            return (), f"is {type_}"
        return next((_found(at, path, leaf) for at, path, leaf in leaves_at(type_) if not holds(leaf)), None)

    return violation


def _of_dtype(attribute: str) -> Callable[[Type], Violation]:
    return _of_every_leaf(lambda leaf: isinstance(leaf, TensorType) and getattr(leaf.dtype, attribute))


def _of_struct(type_: Type) -> Violation:
    return None if isinstance(type_, StructType) else ((), f"is {type_}")


def _of_placed(type_: Type, at: At = (), path: str = "") -> Violation:
    if isinstance(type_, FederatedType):
        return None
    if not isinstance(type_, StructType):
        return _found(at, path, type_)
    inner = [
        _of_placed(element, (*at, i), element_path(path, i, name)) for i, (name, element) in enumerate(type_.elements)
    ]
    return next((violation for violation in inner if violation is not None), None)


def _found(at: At, path: str, leaf: Type) -> tuple[At, str]:
    return at, f"`{path}` is {leaf}" if path else f"is {leaf}"


KINDS: dict[str, Callable[[Type], Violation]] = {
    "any": lambda type_: None,
    "numeric": _of_dtype("is_numeric"),
    "inexact": _of_dtype("is_inexact"),
    "integer": _of_dtype("is_integer"),
    "real": _of_dtype("is_real"),
    "tensor": _of_every_leaf(lambda leaf: isinstance(leaf, TensorType)),
    "struct": _of_struct,
    "placed": _of_placed,
}
"""By name, a function that finds what keeps a type from the kind.

numeric, inexact, integer, real and tensor ask it of every leaf, and of a type without placements; a struct without
leaves is of each. struct takes structs. placed takes types whose leaves all stand inside a federated type.
"""

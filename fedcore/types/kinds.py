"""Kinds: constraints on the type variables of signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fedcore.types.types import FederatedType, FunctionType, StructType, TensorType, Type
from fedcore.types.walk import At, contains, element_path, leaves_at

Violation: TypeAlias = tuple[At, str] | None
"""The part of a type that violates a kind, and a description such as "is bool"; None for a type of the kind."""


def _leaf_check(holds: Callable[[Type], bool]) -> Callable[[Type], Violation]:
    """The check of a kind whose types have no placements, and whose leaves all satisfy `holds`."""

    def violation(type_: Type) -> Violation:
        if contains(type_, lambda inner: isinstance(inner, FederatedType)):
            return (), f"is {type_}"
        return next((_violation(at, path, leaf) for at, path, leaf in leaves_at(type_) if not holds(leaf)), None)

    return violation


def _dtype_check(attribute: str) -> Callable[[Type], Violation]:
    """The check of a kind whose leaves are tensors with a true `attribute` of their `DType`, such as `is_real`."""
    return _leaf_check(lambda leaf: isinstance(leaf, TensorType) and getattr(leaf.dtype, attribute))


def _check_struct(type_: Type) -> Violation:
    return None if isinstance(type_, StructType) else ((), f"is {type_}")


def _check_placed(type_: Type, at: At = (), path: str = "") -> Violation:
    """The first part below structs that is not federated; `at` and `path` lead to `type_`."""
    if isinstance(type_, FederatedType):
        return None
    if not isinstance(type_, StructType):
        return _violation(at, path, type_)
    inner = [
        _check_placed(element, (*at, i), element_path(path, i, name))
        for i, (name, element) in enumerate(type_.elements)
    ]
    return next((violation for violation in inner if violation is not None), None)


def _check_local(type_: Type) -> Violation:
    is_placed_or_function = contains(type_, lambda inner: isinstance(inner, FederatedType | FunctionType))
    return ((), f"is {type_}, of which a part is placed or a function") if is_placed_or_function else None


def _violation(at: At, path: str, leaf: Type) -> tuple[At, str]:
    """The violation by a leaf, or by another innermost part, to which `at` and `path` lead."""
    return at, f"`{path}` is {leaf}" if path else f"is {leaf}"


KINDS: dict[str, Callable[[Type], Violation]] = {
    "any": lambda type_: None,
    "numeric": _dtype_check("is_numeric"),
    "inexact": _dtype_check("is_inexact"),
    "integer": _dtype_check("is_integer"),
    "real": _dtype_check("is_real"),
    "tensor": _leaf_check(lambda leaf: isinstance(leaf, TensorType)),
    "struct": _check_struct,
    "placed": _check_placed,
    "local": _check_local,
}
"""By the name of a kind, a function that finds a violation.

numeric, inexact, integer, real and tensor constrain each leaf of a type without placements; a struct without leaves
has all of these kinds. struct: the type is a struct. placed: each leaf is inside a federated type.
local: no part is a federated type or a function, as of a value inside one placement.
"""

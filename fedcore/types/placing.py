"""Types of placed values: shorthands, and predicates."""

from __future__ import annotations

from fedcore.types.placements import CLIENTS, SERVER, Placement
from fedcore.types.types import FederatedType, Type


def at_clients(type_: object, all_equal: bool = False) -> FederatedType:
    """The type of a value of clients: `{int32}@CLIENTS`, or `int32@CLIENTS` if it is equal at all of them.

    Args:
        type_: anything that `to_type` takes.
    """
    return FederatedType(type_, CLIENTS, all_equal)


def at_server(type_: object) -> FederatedType:
    """The type of the server's value, such as `int32@SERVER`; `type_` is anything that `to_type` takes."""
    return FederatedType(type_, SERVER, True)


def is_at(type_: Type, where: Placement) -> bool:
    return isinstance(type_, FederatedType) and type_.placement == where


def is_all_equal(type_: Type) -> bool:
    return isinstance(type_, FederatedType) and bool(type_.all_equal)


def is_client_value(type_: Type) -> bool:
    """Whether the type is that of a value of its own at each client."""
    return is_at(type_, CLIENTS) and not is_all_equal(type_)

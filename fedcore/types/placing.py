"""Shorthands for the types of placed values."""

from __future__ import annotations

from fedcore.types.placements import CLIENTS, SERVER
from fedcore.types.types import FederatedType


def at_clients(type_: object, all_equal: bool = False) -> FederatedType:
    """The type of a value of clients: `{int32}@CLIENTS`, or `int32@CLIENTS` if it is equal at all of them.

    Args:
        type_: anything that `to_type` takes.
    """
    return FederatedType(type_, CLIENTS, all_equal)


def at_server(type_: object) -> FederatedType:
    """The type of the server's value, such as `int32@SERVER`; `type_` is anything that `to_type` takes."""
    return FederatedType(type_, SERVER, True)

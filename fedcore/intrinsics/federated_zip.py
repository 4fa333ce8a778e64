from typing import Any

from fedcore.intrinsics.numerics import NumpyValue
from fedcore.ir.active import active_builder
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import FederatedType, StructType, Type


@intrinsic("(value: {S}@CLIENTS -> {S}@CLIENTS) | (value: S@SERVER -> S@SERVER) where S: struct")
def federated_zip(value: tuple, *, operand_types: tuple[Type], clients: int) -> NumpyValue:
    """Converts a struct of values at one placement to a placed struct.

    Structs may nest; the result keeps names and containers.

    Example:
        >>> pairs = fc.federated_zip((values, weights))  # {<A,B>}@CLIENTS
    """
    (type_,) = operand_types

    def client_value(part: Any, part_type: Type, k: int) -> NumpyValue:
        """The part at client k; the server's members have no clients, so any k gives them."""
        if isinstance(part_type, StructType):
            return tuple(client_value(p, t, k) for p, t in zip(part, part_type.types, strict=True))
        assert isinstance(part_type, FederatedType)
        return part[k] if part_type.placement.name == "CLIENTS" else part

    at_server = _placement(type_) == "SERVER"
    return client_value(value, type_, 0) if at_server else [client_value(value, type_, k) for k in range(clients)]


@federated_zip.in_stage
def _name_elements(value: Value | tuple, *, result_type: Type) -> Value:
    """The tuple of members as a struct with the names and containers of the result."""
    if isinstance(value, Value):
        return value
    builder = active_builder()
    assert builder is not None
    assert isinstance(result_type, StructType)
    parts = [_name_elements(v, result_type=t) for v, t in zip(value, result_type.types, strict=True)]
    return builder.append("struct", parts, result_type.with_types([p.type for p in parts]))


def _placement(type_: Type) -> str | None:
    """The placement of the values in a struct, which the signature has checked to be one; None without values."""
    if isinstance(type_, FederatedType):
        return type_.placement.name
    assert isinstance(type_, StructType)
    return next((p for p in map(_placement, type_.types) if p), None)

from fedcore.ir.active import active_builder
from fedcore.ir.operations import intrinsic
from fedcore.ir.values import Value
from fedcore.types import FederatedType, StructType


@intrinsic("(value: {S}@CLIENTS -> {S}@CLIENTS) | (value: S@SERVER -> S@SERVER) where S: struct")
def federated_zip(value, *, operand_types, clients):
    """Converts a struct of values at one placement to a placed struct.

    Structs may nest; the result keeps names and containers.

    Example:
        >>> pairs = fc.federated_zip((values, weights))  # {<A,B>}@CLIENTS
    """
    (type_,) = operand_types

    def client_value(part, part_type, k):
        if isinstance(part_type, StructType):
            return tuple(client_value(p, t, k) for p, t in zip(part, part_type.types, strict=True))
        return part[k] if part_type.placement.name == "CLIENTS" else part

    at_server = _placement(type_) == "SERVER"
    return client_value(value, type_, 0) if at_server else [client_value(value, type_, k) for k in range(clients)]


@federated_zip.in_stage
def _name_elements(value, *, result_type):
    """The tuple of members as a struct with the names and containers of the result."""
    if isinstance(value, Value):
        return value
    builder = active_builder()
    assert builder is not None
    parts = [_name_elements(v, result_type=t) for v, t in zip(value, result_type.types, strict=True)]
    return builder.append("struct", parts, result_type.with_types([p.type for p in parts]))


def _placement(type_) -> str | None:
    if isinstance(type_, FederatedType):
        return type_.placement.name
    return next((p for p in map(_placement, type_.types) if p), None)

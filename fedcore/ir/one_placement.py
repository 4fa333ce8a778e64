"""The error for a forgotten broadcast: an operation on server values and client values together."""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fedcore.errors import TypeMismatch, add_location
from fedcore.ir.locations import user_frame, user_location
from fedcore.ir.values import Value
from fedcore.types import FederatedType, StructType, Type

if TYPE_CHECKING:
    from fedcore.ir.operations import Intrinsic

_OPERATORS = {"generic_plus": "+", "generic_minus": "-", "generic_multiply": "*", "generic_divide": "/"}
"""Operations that a user writes as Python's operators."""


def check_one_placement(op: "Intrinsic", values: Mapping[str, Value]) -> None:
    """Refuses server values beside client values where the operation takes values of one placement.

    Args:
        values: by parameter, those that are placed.
    Raises:
        TypeMismatch: names the server value and the client value, and the broadcast that is missing.
    """
    alternatives = op.signature.alternatives if op.signature is not None and op.level != "local" else ()
    if any({"SERVER", "CLIENTS"} <= {q for p in a.parameters for q in placements_of(p.type)} for a in alternatives):
        return  # the operation takes both, as federated_select does
    unplaced = {p.name for a in alternatives for p in a.parameters if not placements_of(p.type)}
    parts = [part for name, value in values.items() if name not in unplaced for part in _parts(value)]
    if len({p for part in parts for p in placements_of(part.type)}) < 2:
        return
    server, client = (next(p for p in parts if where in placements_of(p.type)) for where in ("SERVER", "CLIENTS"))
    text = (
        f"{_name_of(op.name)}: {_title(server)} is at the server, {_title(client)} at the clients, who "
        f"read a server value once it is sent to them\n  {server.type}\n  {client.type}\n  fix: {broadcast_of(server)}"
    )
    raise TypeMismatch(add_location(text, user_location()))


def broadcast_of(value: Value) -> str:
    """The Python code that sends a server value to the clients; of a client value its name."""
    name = _python_name(value) or "…"
    return f"fc.federated_broadcast({name})" if "SERVER" in placements_of(value.type) else name


def placements_of(type_: Type) -> set[str]:
    """Names of the placements of a federated type, or of a struct of federated types."""
    if isinstance(type_, FederatedType):
        return {type_.placement.name}
    return {p for t in type_.types for p in placements_of(t)} if isinstance(type_, StructType) else set()


def _parts(value: Value) -> Iterator[Value]:
    """The values of which a struct was made; a value of another kind itself."""
    builder = value.builder
    operation = builder.operation(value)
    if operation is None or operation.kind != "struct" or isinstance(value.type, FederatedType):
        yield value
        return
    assert isinstance(value.type, StructType)
    for operand, type_ in zip(operation.operands, value.type.types, strict=True):
        yield from _parts(Value(builder, operand, type_))


def _python_name(value: Value) -> str | None:
    """The name that a value has in the user's function; None if none has it."""
    frame = user_frame(sys._getframe(1))
    variables = {} if frame is None else frame.f_locals
    return next(
        (
            name
            for name, other in variables.items()
            if isinstance(other, Value) and other.builder is value.builder and other.operand == value.operand
        ),
        None,
    )


def _title(value: Value) -> str:
    """The name of a value, or the operation that computes it."""
    name, operation = _python_name(value), value.builder.operation(value)
    return f"`{name}`" if name else "a value" if operation is None else f"the result of {_name_of(operation.kind)}"


def _name_of(kind: str) -> str:
    """The operation as a user writes it: `+` for `generic_plus`."""
    return _OPERATORS.get(kind, kind)

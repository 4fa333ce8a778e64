"""Aggregation processes: measured ones from client values to a server value."""

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.templates.iterative import label
from fedcore.templates.measured import MeasuredProcess
from fedcore.types import CLIENTS, SERVER, FederatedType, StructType, Type, contains
from fedcore.types.placing import is_at


class AggregationProcess(MeasuredProcess):
    """A measured process from client values to a server value.

    Types: `next : (<state=S@SERVER,value={V}@CLIENTS[,weight={W}@CLIENTS]> ->
    <state=S@SERVER,result=R@SERVER,measurements=M@SERVER>)`.

    Raises:
        TypeMismatch: as for a measured process, or a value is not where it has to be.
    Example:
        >>> process = fc.templates.AggregationProcess(initialize, next_fn)
    """

    def __init__(self, initialize_fn: Computation, next_fn: Computation) -> None:
        super().__init__(initialize_fn, next_fn)
        parameters = next_fn.module.main.parameters
        who = label("next_fn", next_fn)
        if len(parameters) not in (2, 3):
            raise TypeMismatch(
                f"AggregationProcess: {who} takes a state, a value and maybe a weight, not {len(parameters)}: "
                f"{next_fn.type_signature.parameter}"
            )
        for parameter in parameters[1:]:
            if not is_at(parameter.type, CLIENTS):
                raise TypeMismatch(
                    f"AggregationProcess: {who} takes client values, but {parameter.name} has the type {parameter.type}"
                )
        result = next_fn.type_signature.result
        assert isinstance(result, StructType)  # a MeasuredProcess returns one
        for name, type_ in result.items():
            if not _stands_at_server(type_):
                raise TypeMismatch(
                    f"AggregationProcess: the {name} of {who} is at the server, not {type_}{_fix(type_)}"
                )

    @property
    def is_weighted(self) -> bool:
        return len(self.next.module.main.parameters) == 3


def _fix(type_: Type) -> str:
    """The line of a message that says how to place an unplaced value at the server; empty for placed values."""
    if contains(type_, lambda t: isinstance(t, FederatedType)):
        return ""
    argument = "()" if isinstance(type_, StructType) and not len(type_) else "..."
    return f"\n  fix: fc.federated_value({argument}, fc.SERVER)"


def _stands_at_server(type_: Type) -> bool:
    """Whether a value, or each placed value in a struct, is at the server."""
    if isinstance(type_, StructType) and contains(type_, lambda t: isinstance(t, FederatedType)):
        return all(map(_stands_at_server, type_.types))
    return is_at(type_, SERVER)

"""The part of a learning process that sends the global weights to the clients."""

from fedcore.computation import Computation, federated_computation
from fedcore.errors import TypeMismatch
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_value
from fedcore.ir import Value
from fedcore.learning.templates.part import Part
from fedcore.templates import MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, Type, contains, to_type


class DistributionProcess(Part):
    """A measured process that sends a value of the server to the clients.

    Types: `next : (<S@SERVER,V@SERVER> -> <state=S@SERVER,result=R@CLIENTS,measurements=M@SERVER>)`.

    Raises:
        TypeMismatch: the types are others.
    Example:
        >>> send = fc.learning.templates.build_broadcast_process(('float32', [2]))
        >>> same = fc.learning.templates.DistributionProcess(send.initialize, send.next)
    """

    def __init__(self, initialize_fn: Computation, next_fn: Computation) -> None:
        super().__init__(initialize_fn, next_fn)
        (value,) = self.parameter_types(next_fn, ("a value",))
        self.check_placed("the second argument of", next_fn, "next_fn", value, SERVER)
        self.check_output(next_fn, CLIENTS)


def build_broadcast_process(value_type: TensorStructure | Type) -> DistributionProcess:
    """Builds the distribution process that broadcasts a value as it is; it has no state and measures nothing.

    Types: `next : (<<>@SERVER,V@SERVER> -> <state=<>@SERVER,result=V@CLIENTS,measurements=<>@SERVER>)`.

    Args:
        value_type: V, or what `fc.to_type` takes for it.
    Raises:
        TypeMismatch: the type holds placed values.
    Example:
        >>> send = fc.learning.templates.build_broadcast_process(('float32', [2]))
        >>> str(send.next.type_signature.result['result'])
        'float32[2]@CLIENTS'
    """
    type_: Type = to_type(value_type)
    if contains(type_, lambda t: isinstance(t, FederatedType)):
        raise TypeMismatch(f"build_broadcast_process: value_type is not placed, but is {type_}")

    @federated_computation
    def initialize() -> Value:
        return federated_value((), SERVER)

    @federated_computation(initialize.type_signature.result, FederatedType(type_, SERVER))
    def broadcast(state: Value, value: Value) -> MeasuredProcessOutput:
        return MeasuredProcessOutput(state, federated_broadcast(value), federated_value((), SERVER))

    return DistributionProcess(initialize, broadcast)

"""Distribution processes: they send a server value to the clients."""

from fedcore.computation import Computation, federated_computation
from fedcore.errors import TypeMismatch
from fedcore.intrinsics import federated_broadcast, federated_value
from fedcore.learning.templates.placed_process import PlacedProcess
from fedcore.templates import MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, contains, to_type


class DistributionProcess(PlacedProcess):
    """A measured process that sends a server value to the clients.

    Types, for a state S, values V and U and measurements M:
        initialize  (-> S@SERVER)
        next        (<S@SERVER,V@SERVER> -> <state=S@SERVER,result={U}@CLIENTS,measurements=M@SERVER>)

    Raises:
        TypeMismatch: the computations have other types; the message names the part.
    Example:
        >>> sending = fc.learning.templates.build_broadcast_process(('float32', [3]))
        >>> same = fc.learning.templates.DistributionProcess(sending.initialize, sending.next)
    """

    def __init__(self, initialize_fn: Computation, next_fn: Computation):
        super().__init__(initialize_fn, next_fn, {"a value": SERVER}, CLIENTS)


def build_broadcast_process(value_type) -> DistributionProcess:
    """The distribution process that broadcasts a value as it is.

    Types, for values V:
        initialize  (-> <>@SERVER)
        next        (<<>@SERVER,V@SERVER> -> <state=<>@SERVER,result=V@CLIENTS,measurements=<>@SERVER>)

    Args:
        value_type: V, or what `fc.to_type` takes.
    Raises:
        TypeMismatch: the type holds placed values.
    Example:
        >>> sending = fc.learning.templates.build_broadcast_process(('float32', [3]))
        >>> print(sending.next.type_signature.result['result'])
        float32[3]@CLIENTS
    """
    value_type = to_type(value_type)
    if contains(value_type, lambda t: isinstance(t, FederatedType)):
        raise TypeMismatch(f"build_broadcast_process takes a type without placements, not {value_type}")

    @federated_computation
    def initialize():
        return federated_value((), SERVER)

    @federated_computation(initialize.type_signature.result, FederatedType(value_type, SERVER))
    def next_fn(state, value):
        return MeasuredProcessOutput(state, federated_broadcast(value), federated_value((), SERVER))

    return DistributionProcess(initialize, next_fn)

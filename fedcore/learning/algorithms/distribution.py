"""Sending the global weights to the clients."""

from fedcore.intrinsics import federated_broadcast
from fedcore.ir import Value
from fedcore.templates import MeasuredProcess


def distribute(distributor: MeasuredProcess | None, state: Value) -> tuple:
    """(The weights at the clients, the distributor's next state, its measurements), while a round is traced.

    Args:
        distributor: a measured process; None for a broadcast of the weights as they are, which measures nothing.
    """
    if distributor is None:
        return federated_broadcast(state.global_model_weights), state.distributor, None
    sent = distributor.next(state.distributor, state.global_model_weights)
    return sent.result, sent.state, sent.measurements

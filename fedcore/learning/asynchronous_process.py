"""`AsynchronousProcess`: a learning process whose clients may begin from models of earlier rounds."""

from typing import Any

import attrs

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.process import LearningProcess
from fedcore.templates.iterative import label
from fedcore.types import CLIENTS, FederatedType, StructType, Type, explain, fits, member_of, to_type


@attrs.frozen
class ClientStart:
    """The model that a client has begun from.

    Types, for weights U: `<weights=U,staleness=int32>`.

    Args:
        weights: the `global_model_weights` of the state then.
        staleness: how many rounds have ended since.
    Example:
        >>> fc.learning.ClientStart(state.global_model_weights, np.int32(2)).staleness
        np.int32(2)
    """

    weights: ModelWeights
    staleness: Any


class AsynchronousProcess(LearningProcess):
    """A learning process whose clients may have begun from models of earlier rounds.

    Types, for a server state S with the global weights U, batches B and metrics M:
        initialize  (-> S@SERVER)
        next        (<S@SERVER,{B*}@CLIENTS,{<weights=U,staleness=int32>}@CLIENTS> -> <state=S@SERVER,metrics=M@SERVER>)

    `fc.learning.programs.train` with a `fc.simulation.BufferedClock` gives each client the model that it began from. A
    loop of one's own passes a `ClientStart` for each client, in the order of the data. The weights are the clients': a
    report does not count them as sent; `train` counts one model for each client that begins.

    Args:
        initialize_fn, next_fn: computations of these types.
        args, functions: further arguments of `LearningProcess`.
    Raises:
        TypeMismatch: `next_fn` does not take the clients' models as its third argument.
    Example:
        >>> process = fc.learning.algorithms.build_fed_buff(model_fn, lambda: keras.optimizers.SGD(0.1))
        >>> state = process.initialize()
        >>> start = fc.learning.ClientStart(state.global_model_weights, np.int32(0))
        >>> process.next(state, [client_a, client_b], [start, start]).state.round
        np.int64(1)
    """

    _takes_client_values = True

    def __init__(self, initialize_fn: Computation, next_fn: Computation, *args: Any, **functions: Any) -> None:
        super().__init__(initialize_fn, next_fn, *args, **functions)
        parameters = next_fn.module.main.parameters
        state: Any = member_of(parameters[0].type)
        if len(parameters) != 3 or not isinstance(state, StructType) or "global_model_weights" not in state.names:
            raise TypeMismatch(
                f"AsynchronousProcess: {label('next_fn', next_fn)} takes a LearningAlgorithmState, data, and the "
                f"models that clients began from; it has the type {next_fn.type_signature}"
            )
        starts, taken = FederatedType(client_start_type(state["global_model_weights"]), CLIENTS), parameters[2].type
        if not fits(starts, taken):
            title = f"AsynchronousProcess: {label('next_fn', next_fn)} takes no models that clients began from"
            raise TypeMismatch(explain(title, starts, taken, have_label="ClientStart", want_label="next_fn"))


def client_start_type(weights: Type) -> Type:
    """The type of a `ClientStart`."""
    return to_type(ClientStart(weights, "int32"))  # type: ignore[arg-type]

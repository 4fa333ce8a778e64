"""`ClientStateProcess`: a learning process whose clients keep a state between their rounds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedcore.computation import Computation
from fedcore.errors import TypeMismatch
from fedcore.learning.process import LearningProcess
from fedcore.templates.iterative import check_computation, label
from fedcore.types import CLIENTS, FederatedType, StructType, Type, explain, fits, member_of


class ClientStateOutput(NamedTuple):
    """The result of a round whose clients keep a state.

    Types: `<state=State@SERVER,metrics=M@SERVER,client_states={C}@CLIENTS>`; the states of the clients are in the
    order of the round's data. A client that the fault policy dropped has None.

    Example:
        >>> process = fc.learning.algorithms.build_scaffold(model_fn, 0.1, num_clients=2)
        >>> output = process.next(process.initialize(), [client_a], [process.initial_client_state()])
        >>> len(output.client_states)
        1
    """

    state: object
    metrics: object
    client_states: object


class ClientStateProcess(LearningProcess):
    """A learning process whose clients keep a state C between the rounds that they take part in.

    Types, for a server state S, batches B, and client states C:
        initialize            (-> S@SERVER)
        initial_client_state  (-> C), or (S -> C) of the server's state
        next                  (<S@SERVER,{B*}@CLIENTS,{C}@CLIENTS> ->
                               <state=S@SERVER,metrics=M@SERVER,client_states={C}@CLIENTS>)

    `fc.learning.programs.train` keeps the states of all clients. A loop of one's own keeps them by client, and passes
    those of the round's cohort in the order of its data.

    Args:
        initialize_fn, next_fn, hyperparameters, get_model_weights, set_model_weights: as for `LearningProcess`.
        initial_client_state: makes the state of a client that takes part for the first time.
    Raises:
        TypeMismatch: the computations do not fit: `next_fn` takes and returns the server's state and the clients'
            states, and `initial_client_state` makes such a client state.
    Example:
        >>> process = fc.learning.algorithms.build_scaffold(model_fn, 0.1, num_clients=2)
        >>> print(process.initial_client_state.type_signature)
        (-> <float32[2,1],float32[1]>)
    """

    _takes_client_values = True

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        initial_client_state: Computation,
        *,
        hyperparameters: Mapping[str, Sequence[str]] | None = None,
        get_model_weights: Callable | None = None,
        set_model_weights: Callable | None = None,
    ) -> None:
        super().__init__(initialize_fn, next_fn, get_model_weights, set_model_weights, hyperparameters=hyperparameters)
        check_computation(type(self).__name__, "initial_client_state", initial_client_state)
        _check_client_states(next_fn, initial_client_state)
        self._initial_client_state = initial_client_state

    @property
    def initial_client_state(self) -> Computation:
        """`(-> C)` or `(S -> C)`: the state of a client that has not taken part yet."""
        return self._initial_client_state

    @property
    def client_state_type(self) -> Type:
        """C."""
        return self._initial_client_state.type_signature.result


def _check_client_states(next_fn: Computation, initial: Computation) -> None:
    """Raises TypeMismatch unless `next_fn` takes the states that `initial` makes, and returns such states."""
    name, client_state = "ClientStateProcess", initial.type_signature.result
    parameters, result = next_fn.module.main.parameters, next_fn.type_signature.result
    if len(parameters) != 3 or not isinstance(result, StructType) or len(result) != 3:
        raise TypeMismatch(
            f"{name}: {label('next_fn', next_fn)} takes a state, data and client states, and returns "
            f"fc.learning.ClientStateOutput(state, metrics, client_states); it has the type {next_fn.type_signature}"
        )
    expected = FederatedType(client_state, CLIENTS)
    # A round has to accept the states that `initial` makes, and to return states that it accepts in the next one.
    for part, have in (("takes", parameters[2].type), ("returns", result.types[2])):
        if not fits(expected if part == "takes" else have, have if part == "takes" else expected):
            title = f"{name}: {label('next_fn', next_fn)} {part} other client states than initial_client_state makes"
            raise TypeMismatch(
                explain(title, have, expected, have_label=f"next_fn {part}", want_label="initial_client_state")
            )
    takes = initial.module.main.parameters
    state: Any = member_of(parameters[0].type)
    if len(takes) > 1 or (takes and not fits(state, takes[0].type)):
        title = f"{name}: {label('initial_client_state', initial)} takes nothing, or the server's state"
        if len(takes) > 1:
            raise TypeMismatch(f"{title}; it has the type {initial.type_signature}")
        raise TypeMismatch(
            explain(title, state, takes[0].type, want_label="initial_client_state", have_label="the state")
        )

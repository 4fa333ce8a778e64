"""The states of clients in the rounds of a training."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedcore.data import Cohort
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs.tensors.values import to_python, unflatten
from fedcore.learning.client_state_process import ClientStateProcess
from fedcore.program import ClientStates
from fedcore.seeds import fold_in
from fedcore.types import Type, leaves


class ClientMemory:
    """Reads and writes the states of a round's clients in a store.

    A client without a state begins with the process's initial one.

    Args:
        seed: the training's.
    """

    def __init__(self, process: ClientStateProcess, states: ClientStates, seed: int) -> None:
        self.states = states
        self._process = process
        self._seed = seed
        self._common_initial_state: Any = None
        """The initial state of every client, once computed, of a process whose initial state ignores the server's."""

    def begin(self, checkpoint: tuple[Any, int] | None) -> None:
        """Begins a training (None), or goes on from (the store's part of a checkpoint, the checkpoint's round)."""
        self.states.begin(containers_of(self._process.client_state_type), checkpoint)

    def cohort_states(self, client_ids: Sequence, server_state: Any) -> Cohort:
        """The states of a round's clients, each of which is read when it is needed.

        Raises:
            InvalidValue: a client is there twice.
            TypeMismatch: an id is neither a text nor a whole number.
        """
        ids = _check_ids(client_ids)
        new = self.states.missing(ids)
        initial = self._initial_state(server_state) if new else None
        read = _ReadAhead(self.states, [i for i in ids if i not in new])
        return Cohort(len(ids), lambda index: initial if ids[index] in new else read(ids[index]))

    def put(self, client_ids: Sequence, states: Sequence, round_number: int) -> None:
        """Stores the new states of a round's clients; a client with None, which was dropped, keeps its old state."""
        pairs: Mapping = dict(zip(_check_ids(client_ids), states, strict=True))
        self.states.put({client_id: state for client_id, state in pairs.items() if state is not None}, round_number)

    def _initial_state(self, server_state: Any) -> Any:
        """The state of the clients that take part for the first time, drawn from the seed (and the round)."""
        compute = self._process.initial_client_state
        if compute.module.main.parameters:
            return compute.invoke(server_state, seed=fold_in(self._seed, int(server_state.round)))
        if self._common_initial_state is None:
            self._common_initial_state = compute.invoke(seed=self._seed)
        return self._common_initial_state


class _ReadAhead:
    """Gives the state of a client by its id; where clients are asked for in order, the store reads several at once."""

    def __init__(self, states: ClientStates, client_ids: Sequence) -> None:
        self._states = states
        self._client_ids = client_ids
        self._positions = {client_id: position for position, client_id in enumerate(client_ids)}
        self._ahead: dict = {}

    def __call__(self, client_id: str | int) -> Any:
        try:
            return self._ahead.pop(client_id)
        except KeyError:
            ids = self._client_ids[self._positions[client_id] :]
            ahead = dict(zip(ids, self._states.read_ahead(ids), strict=False))
            state = ahead.pop(client_id)
            self._ahead = ahead  # replaced, since another thread may read the cohort too
            return state


def containers_of(type_: Type) -> Any:
    """The containers of a value of an unplaced type, with None for each leaf."""
    return to_python(unflatten([None] * len(leaves(type_)), type_), type_)


def _check_ids(client_ids: Sequence) -> list[str | int]:
    """The ids as Python's texts and whole numbers, in their order; see `ClientMemory.cohort_states` for the errors."""
    ids = [i.item() if isinstance(i, np.generic) else i for i in client_ids]
    unknown = [i for i in ids if not isinstance(i, str | int) or isinstance(i, bool)]
    if unknown:
        raise TypeMismatch(f"clients that keep states have texts or whole numbers as ids, not {brief(unknown[0])}")
    if len(set(ids)) < len(ids):
        twice = next(i for i, count in collections.Counter(ids).items() if count > 1)
        raise InvalidValue(
            f"client {twice!r} is drawn twice in one round, but keeps one state: take a sampler without replacement"
        )
    return ids

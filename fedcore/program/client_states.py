"""The states that clients keep between the rounds of a training."""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedcore.errors import InvalidValue, NotFound
from fedcore.program.structures import children_of, with_children
from fedcore.site_value import SiteValue

ClientId = str | int


class ClientStates(Mapping[ClientId, Any], abc.ABC):
    """The states that clients keep between rounds, by client id: a mapping that a training writes.

    Only clients that took part in a round have a state. A store of one's own derives from this class.

    Guarantees that a store gives:
      - After `begin` with the part of the checkpoint of a version, each client has the state that it had when that
        version was saved, however the program ended meanwhile.
      - Reading a client reads no other one. Any thread may read.
    """

    @abc.abstractmethod
    def begin(self, structure: Any, checkpoint: tuple[Any, int] | None) -> None:
        """Prepares the store for a training: a new one, or one that goes on from a checkpoint.

        Args:
            structure: the containers of a client's state, with None for each leaf; states that were stored are read in
                these containers. None reads them in plain lists, tuples and dicts.
            checkpoint: the part that `begin_save` returned, in plain containers, and the version that it was saved for;
                None for a new training.
        Raises:
            InvalidValue: the store lacks the states of that checkpoint, or has states of another training.
        """

    @abc.abstractmethod
    def put(self, states: Mapping[ClientId, Any], version: int) -> None:
        """Takes the states of the clients of a round, which nobody changes afterwards.

        Args:
            version: number of the round; at least that of all states so far.
        Raises:
            OSError: they cannot be written.
        """

    @abc.abstractmethod
    def begin_save(self, version: int) -> tuple[Any, Callable[[Sequence[int]], None]]:
        """Begins to save the states as they are now.

        Returns:
            The store's part of the checkpoint, of arrays, numbers, texts and containers; and the function that writes
            what is not in it. That is called in another thread, before the checkpoint is written, with the versions
            of the checkpoints that are there; states that none of them needs may be removed.
        """

    def missing(self, client_ids: Iterable[ClientId]) -> set[ClientId]:
        """The clients that have no state."""
        return {client_id for client_id in client_ids if client_id not in self}

    def read_ahead(self, client_ids: Sequence[ClientId]) -> list:
        """The states of the first of some clients: as many as are best read at once, at least one.

        Raises:
            NotFound, and the errors of reading: of the first client only.
        """
        return [self[client_ids[0]]]

    def close(self) -> None:
        """The training has ended. States can still be read."""


class MemoryClientStates(ClientStates):
    """Keeps the states of clients in memory; a checkpoint has them all.

    For few clients or small states.

    Raises:
        NotFound: `states[client_id]`: the client has no state.
    Example:
        >>> states = fc.program.MemoryClientStates()
        >>> states.begin(None, None)
        >>> states.put({"client_a": np.float32(1.0)}, version=1)
        >>> dict(states)
        {'client_a': np.float32(1.0)}
    """

    def __init__(self) -> None:
        self._states: dict[ClientId, Any] = {}

    def begin(self, structure: Any, checkpoint: tuple[Any, int] | None) -> None:
        self._states = {}
        if checkpoint is not None:
            part, version = checkpoint
            check_kind(part, "memory", version)
            self._states = {client_id: _in_containers(structure, state) for client_id, state in part["states"]}

    def put(self, states: Mapping[ClientId, Any], version: int) -> None:
        self._states.update(states)

    def begin_save(self, version: int) -> tuple[Any, Callable[[Sequence[int]], None]]:
        part = {"kind": "memory", "states": [[client_id, state] for client_id, state in self._states.items()]}
        return part, lambda versions: None

    def __getitem__(self, client_id: ClientId) -> Any:
        try:
            return self._states[client_id]
        except KeyError:
            raise no_state_of(client_id) from None

    def __iter__(self) -> Iterator[ClientId]:
        return iter(list(self._states))

    def __len__(self) -> int:
        return len(self._states)


def check_kind(part: Any, kind: str, version: int) -> None:
    """Raises InvalidValue where another store wrote the part of a checkpoint."""
    if part["kind"] != kind:
        raise InvalidValue(
            f"the checkpoint of round {version} was written with the client states of a store of kind {part['kind']}, "
            f"not {kind}: take that store as client_states"
        )


def no_state_of(client_id: Any) -> NotFound:
    return NotFound(f"client {client_id!r} has no state: it has not taken part in a round")


def _in_containers(structure: Any, plain: Any) -> Any:
    """Rebuilds plain lists, tuples and dicts in the containers of `structure`, such as named tuples.

    Where `structure` has a leaf, the plain value stays; a `SiteValue` is a leaf, whatever `structure` has.
    """
    children = children_of(structure)
    if children is None or isinstance(plain, SiteValue):
        return plain
    pairs = zip(children.values(), (children_of(plain) or {}).values(), strict=True)
    return with_children(structure, [_in_containers(child, value) for child, value in pairs])

"""The clients of each round."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fedcore.data import Cohort, OpenedElsewhere
from fedcore.data.dataset_mistakes import no_fit_of_clients
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.learning.process import LearningProcess
from fedcore.program import FederatedDataSource
from fedcore.scalars import whole_number
from fedcore.seeds import fold_in
from fedcore.simulation import Sampler, build_uniform_sampling_fn
from fedcore.simulation.datasets import from_clients
from fedcore.types import SequenceType, member_of, to_type


class ClientDataCohorts:
    """Clients of a `ClientData`, sampled by the seed and the round. A client's data set is made when it is read.

    Args:
        size: clients of a round; None for all clients, in the order of their ids, or as many as the sampler draws.
        on_client: called when a client is read, with the number of clients that the round has read so far, and the
            number of all its clients.
        sampler: draws the clients, in every attempt the same; or a function from the number of rounds before to
            client ids. Default: they are drawn uniformly.
        size_argument: what the user calls `size`, for messages.
    """

    def __init__(
        self,
        data: Any,
        size: int | None,
        seed: int,
        on_client: Callable[[int, int], object],
        sampler: Sampler | Callable[[int], Sequence] | None = None,
        size_argument: str = "clients_per_round",
    ) -> None:
        self.client_ids: list = []
        """The ids of the newest round's clients."""
        self._sampler = sampler
        self._data = data
        self._ids = data.client_ids
        self.number_of_clients = len(self._ids)
        self._size = size
        self._seed = seed
        self._on_client = on_client
        if size is not None and whole_number("the number of clients of a round", size, at_least=1) > len(self._ids):
            raise InvalidValue(
                f"a round cannot have {size} of {len(self._ids)} clients\n  fix: {size_argument}=None for all clients"
            )

    def draw(self, rounds_before: int, attempt: int) -> Cohort:
        """The clients of the round after `rounds_before` rounds.

        Args:
            attempt: how many results of this round were refused; each draws other clients, except from a sampler.
        """
        chosen = self._ids
        if self._sampler is not None:
            chosen = self._sample(rounds_before)
        elif self._size is not None:
            seed = self._seed if not attempt else fold_in(self._seed, attempt)
            chosen = build_uniform_sampling_fn(self._ids, seed=seed)(rounds_before, self._size)

        self.client_ids = list(chosen)
        if getattr(self._data, "is_in_files", False):
            return _CountedClientsOfFiles(chosen, self._data.create_tf_dataset_for_client, self._on_client)

        def client(index: int) -> tf.data.Dataset:
            self._on_client(index + 1, len(chosen))
            return self._data.create_tf_dataset_for_client(chosen[index])

        return Cohort(len(chosen), client, self.client_ids)

    def _sample(self, rounds_before: int) -> Sequence:
        """The ids that the sampler draws; raises TypeMismatch if a user's function returns no ids."""
        if isinstance(self._sampler, Sampler):
            return self._sampler(rounds_before, self._size)
        assert self._sampler is not None
        chosen = self._sampler(rounds_before)
        if isinstance(chosen, str) or not isinstance(chosen, Iterable):
            raise TypeMismatch(f"sampler({rounds_before}) returns the identifiers of clients, not {brief(chosen)}")
        return list(chosen)

    def get_state(self) -> Any:
        return None

    def set_state(self, state: Any) -> None:
        """A sample depends on the seed and the round only."""


class _CountedClientsOfFiles(OpenedElsewhere):
    """Clients of files, which another process may open; tells `on_client` of each client that this process reads."""

    def __init__(self, client_ids: Any, open_client: Callable, on_client: Callable[[int, int], object]) -> None:
        super().__init__(client_ids, open_client)
        self._on_client = on_client

    def __getitem__(self, index: int) -> tf.data.Dataset:
        self._on_client(index + 1, len(self))
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[tf.data.Dataset]:
        return map(self.__getitem__, range(len(self)))


class DataSourceCohorts:
    """Selections of a `FederatedDataSource`; a checkpoint keeps the bytes of its iterator."""

    def __init__(self, source: FederatedDataSource, size: int | None) -> None:
        self._iterator = source.iterator()
        self._size = size

    def draw(self, rounds_before: int, attempt: int) -> Any:
        return self._iterator.select(self._size)

    def get_state(self) -> Any:
        return self._iterator.to_bytes()

    def set_state(self, state: Any) -> None:
        self._iterator = type(self._iterator).from_bytes(state)


Cohorts = ClientDataCohorts | DataSourceCohorts


def cohorts_of(
    name: str,
    data: Any,
    size: int | None,
    seed: int,
    on_client: Callable[[int, int], object],
    sampler: Sampler | Callable[[int], Sequence] | None = None,
) -> Cohorts:
    """The source of each round's clients: `ClientDataCohorts` for client data, `DataSourceCohorts` for a data source.

    Args:
        name: the user's name of the argument `data`, for messages.
        size, seed, on_client, sampler: as for `ClientDataCohorts`; of these a data source takes `size` alone.
    Raises:
        TypeMismatch: there is a sampler for a data source, which selects by itself.
        InvalidValue: there are fewer clients than a round has.
    """
    if sampler is not None and not callable(sampler):
        raise TypeMismatch(
            "sampler is one of fc.simulation, such as build_poisson_sampling_fn(…), or a function from the number of "
            f"rounds before to identifiers, not {brief(sampler)}"
        )
    if isinstance(data, FederatedDataSource):
        if sampler is not None:
            raise TypeMismatch(f"{name} is a FederatedDataSource, which selects by itself: leave out sampler")
        return DataSourceCohorts(data, size)
    size_argument = "clients_per_round" if name == "data" else "evaluation_clients"
    return ClientDataCohorts(data, size, seed, on_client, sampler, size_argument)


def as_client_data(name: str, data: Any) -> Any:
    """Client data or a data source, as it is; or client data of a list of data sets, or of a dict of them by client id.

    Args:
        name: of the argument, for messages.
    Raises:
        TypeMismatch: `data` is nothing of these.
    """
    if isinstance(data, FederatedDataSource):
        return data
    if hasattr(data, "client_ids") and hasattr(data, "create_tf_dataset_for_client"):
        return data
    values = [*data.values()] if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else []
    if values and all(isinstance(value, tf.data.Dataset) for value in values):
        return from_clients(data)
    raise TypeMismatch(
        f"{name} is a fc.simulation.datasets.ClientData or a FederatedDataSource, not {brief(data)}; {_fix(name, data)}"
    )


def check_type(name: str, data: Any, taker: str, process: LearningProcess) -> None:
    """Checks that the first client's data fit the process, before anything runs.

    Args:
        name: the user's name of the argument `data`, for messages.
        taker: the user's name of the process, for messages.
    Raises:
        TypeMismatch: the data do not fit.
    """
    want = member_of(process.next.module.main.parameters[1].type)
    try:
        structure = getattr(data, "element_type_structure", None) if getattr(data, "client_ids", ()) else None
    except Exception:  # of the user's functions: the round reads again, and names the client
        return
    if structure is None or not isinstance(want, SequenceType):
        return
    error = no_fit_of_clients(to_type(structure), want, name, taker)
    if error is not None:
        raise error


def _fix(name: str, data: Any) -> str:
    """A hint, for an error message, how the user turns `data` into client data."""
    if isinstance(data, tf.data.Dataset):
        return f"fix: {name}=[dataset] for one client"
    if isinstance(data, tuple | Mapping) or hasattr(data, "__array__"):
        split = f"fc.simulation.datasets.split_over_clients({name}, num_clients)"
        return f"fix: {split}.preprocess(lambda dataset: dataset.batch(n))"
    return "fix: a list has a tf.data.Dataset of each client"


EVALUATION_BATCH = 32
"""The batch size of arrays to evaluate on: the default of Keras' `evaluate`."""


def evaluation_client_data(data: Any) -> Any:
    """The client data to evaluate on; a data set, or arrays as Keras' `evaluate` takes them, become a single client.

    Raises:
        TypeMismatch: the data are nothing of these.
    """
    name = "evaluation_data"
    if isinstance(data, tf.data.Dataset):
        return from_clients({name: data})
    is_tuple_of_arrays = isinstance(data, tuple) and not all(isinstance(part, tf.data.Dataset) for part in data)
    if is_tuple_of_arrays or hasattr(data, "__array__"):
        return from_clients({name: data}).preprocess(lambda dataset: dataset.batch(EVALUATION_BATCH))
    return as_client_data(name, data)

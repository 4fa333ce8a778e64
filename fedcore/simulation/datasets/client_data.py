"""Data sets that are split over clients."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import InvalidValue, NotFound, TypeMismatch, brief
from fedcore.scalars import random_generator

if TYPE_CHECKING:
    import tensorflow as tf

    from fedcore.data import ClientDataset

Structure = Any  # arrays in dicts and tuples, as tf.data has them; a list is an array


class ClientData(abc.ABC):
    """A data set for each client, created when it is asked for.

    Guarantees:
      - `client_ids` are strings, sorted and without repetition.
      - All clients' data sets have one element type.
    """

    def __init__(self, client_ids: Iterable[str]):
        self._client_ids = sorted(client_ids)
        if not all(isinstance(client_id, str) for client_id in self._client_ids):
            raise TypeMismatch("client ids must be strings")
        self._members = frozenset(self._client_ids)
        if len(self._members) < len(self._client_ids):
            raise InvalidValue("a client id is given twice")

    @property
    def client_ids(self) -> list[str]:
        return list(self._client_ids)

    @property
    def element_type_structure(self) -> Structure:
        """The `tf.TensorSpec`s of one element, read from the first client."""
        if not self._client_ids:
            raise InvalidValue("no clients, so no element type")
        return self.create_tf_dataset_for_client(self._client_ids[0]).element_spec

    @abc.abstractmethod
    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        """The data set of a client; KeyError for an unknown client."""

    @abc.abstractmethod
    def select(self, client_ids: Iterable[str]) -> ClientData:
        """The client data with only these clients; KeyError for an unknown client."""

    def create_tf_dataset_from_all_clients(self, seed: int | None = None) -> tf.data.Dataset:
        """The examples of all clients in one data set, client after client, in an order of clients shuffled by `seed`.

        Without a seed each call draws an order. `ArrayClientData` returns a `ClientDataset`; otherwise the result is a
        `tf.data.Dataset` that reads the clients when it is iterated.
        """
        import tensorflow as tf

        order = self._shuffled_ids(seed)

        def elements():
            for client_id in order:
                yield from self.create_tf_dataset_for_client(client_id)

        return tf.data.Dataset.from_generator(elements, output_signature=self.element_type_structure)

    def datasets(self, limit_count: int | None = None, seed: int | None = None) -> Iterator[tf.data.Dataset]:
        """Yields clients' data sets in an order shuffled by `seed`: all, or the first `limit_count`."""
        for client_id in self._shuffled_ids(seed)[:limit_count]:
            yield self.create_tf_dataset_for_client(client_id)

    def preprocess(self, preprocess_fn: Callable[[ClientDataset], tf.data.Dataset]) -> ClientData:
        """Client data in which `preprocess_fn` is applied to a client's data set when this data set is asked for.

        Example:
            >>> data = TestClientData({"a": {"x": [1, 2, 3]}})
            >>> batched = data.preprocess(lambda dataset: dataset.batch(2))
            >>> [batch["x"].shape[0] for batch in batched.create_tf_dataset_for_client("a")]
            [2, 1]
        """
        return FunctionClientData(
            self._client_ids,
            lambda client_id: preprocess_fn(self.create_tf_dataset_for_client(client_id)),
        )

    @staticmethod
    def from_clients_and_tf_fn(client_ids: Iterable[str], dataset_fn: Callable[[str], tf.data.Dataset]) -> ClientData:
        """Client data whose data sets come from a function of the client's id."""
        return FunctionClientData(client_ids, dataset_fn)

    @staticmethod
    def train_test_client_split(
        client_data: ClientData, num_test_clients: int, seed: int | None = None
    ) -> tuple[ClientData, ClientData]:
        """Splits the clients: `num_test_clients` clients, drawn by `seed`, for test, and the others for training.

        Only clients with examples are drawn for test; their data sets are read to check this.

        Raises:
            ValueError: no client would remain for training, or too few clients have examples.
        Example:
            >>> data = TestClientData({name: [1.0, 2.0] for name in "abc"})
            >>> train, test = ClientData.train_test_client_split(data, 1, seed=0)
            >>> len(train.client_ids), len(test.client_ids)
            (2, 1)
        """
        ids = client_data.client_ids
        if not 0 <= num_test_clients < len(ids):
            raise InvalidValue(f"cannot take {num_test_clients} of {len(ids)} clients for test and still train")
        test: set[str] = set()
        for client_id in client_data._shuffled_ids(seed):
            if len(test) == num_test_clients:
                break
            if any(True for _ in client_data.create_tf_dataset_for_client(client_id).take(1)):
                test.add(client_id)
        if len(test) < num_test_clients:
            raise InvalidValue(f"wanted {num_test_clients} test clients, but only {len(test)} have examples")
        return client_data.select(set(ids) - test), client_data.select(test)

    def _shuffled_ids(self, seed: int | None) -> list[str]:
        rng = np.random.default_rng() if seed is None else random_generator(seed)
        order = rng.permutation(len(self._client_ids))
        return [self._client_ids[i] for i in order]

    def _require(self, client_id: str) -> str:
        if client_id not in self._members:
            raise NotFound(f"no client {brief(client_id)} among {len(self._client_ids)}")
        return client_id


class FunctionClientData(ClientData):
    """Client data whose data sets come from a function of the client's id."""

    def __init__(self, client_ids: Iterable[str], dataset_fn: Callable[[str], tf.data.Dataset]):
        super().__init__(client_ids)
        self._dataset_fn = dataset_fn

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        return self._dataset_fn(self._require(client_id))

    def select(self, client_ids: Iterable[str]) -> ClientData:
        return FunctionClientData(map(self._require, client_ids), self._dataset_fn)


class ArrayClientData(ClientData):
    """The examples of all clients in shared arrays, of which each client has a range of rows.

    Guarantees:
      - A client's data set holds views of the arrays; creating it copies nothing.

    Args:
        columns: equally long arrays in dicts and tuples.
        ranges: for each client its first row and the row after its last.
    """

    def __init__(self, columns: Structure, ranges: Mapping[str, tuple[int, int]]):
        super().__init__(ranges)
        lengths = {len(column) for column in _leaves(columns)}
        if len(lengths) != 1:
            raise InvalidValue(f"columns must be equally long, not {sorted(lengths)}")
        (length,) = lengths
        for client_id, (start, stop) in ranges.items():
            if not 0 <= start <= stop <= length:
                raise InvalidValue(f"client {brief(client_id)}: rows {start} to {stop} are not within {length}")
        self._columns = columns
        self._ranges = dict(ranges)

    @classmethod
    def from_partition(cls, columns: Structure, parts: Mapping[str, np.ndarray]) -> ArrayClientData:
        """Gives each client the rows that its index array names.

        Example:
            >>> data = ArrayClientData.from_partition(np.array([10, 20, 30]), {"a": [2, 0], "b": [1]})
            >>> list(data.create_tf_dataset_for_client("a").as_numpy_iterator()) == [30, 10]
            True
        """
        stops = np.cumsum([len(part) for part in parts.values()], dtype=np.int64).tolist()
        rows = np.concatenate([np.zeros(0, np.int64), *parts.values()]).astype(np.int64)
        ranges = zip([0, *stops], stops, strict=False)
        return cls(_map_leaves(lambda column: column[rows], columns), dict(zip(parts, ranges, strict=True)))

    def create_tf_dataset_for_client(self, client_id: str) -> ClientDataset:
        from fedcore.data import ClientDataset

        start, stop = self._ranges[self._require(client_id)]
        return ClientDataset.from_columns(_map_leaves(lambda column: column[start:stop], self._columns))

    def create_tf_dataset_from_all_clients(self, seed: int | None = None) -> ClientDataset:
        from fedcore.data import ClientDataset

        order = [np.arange(*self._ranges[client_id]) for client_id in self._shuffled_ids(seed)]
        rows = np.concatenate([np.zeros(0, np.int64), *order])
        return ClientDataset.from_columns(_map_leaves(lambda column: column[rows], self._columns))

    def select(self, client_ids: Iterable[str]) -> ArrayClientData:
        return ArrayClientData(self._columns, {i: self._ranges[self._require(i)] for i in client_ids})


class TestClientData(ArrayClientData):
    """Client data from literals, for tests.

    As in TensorFlow, Python ints become int32 if they fit, floats become float32, and strings become bytes.

    Args:
        tensor_slices_dict: client id -> an argument of `tf.data.Dataset.from_tensor_slices`: arrays or lists, in dicts
            and tuples.
    Raises:
        ValueError: there are no clients, or examples of two clients differ in structure, dtypes or shapes.
    Example:
        >>> data = TestClientData({"a": {"x": [1, 2]}, "b": {"x": [3]}})
        >>> [int(example["x"]) for example in data.create_tf_dataset_for_client("a")]
        [1, 2]
    """

    __test__ = False  # pytest: not a class of tests

    def __init__(self, tensor_slices_dict: Mapping[str, Structure]):
        if not tensor_slices_dict:
            raise InvalidValue("TestClientData needs at least one client")
        slices = {i: _map_leaves(_as_tensorflow_has_it, s) for i, s in tensor_slices_dict.items()}
        first, *others = slices
        for other in others:
            if _example_type(slices[other]) != _example_type(slices[first]):
                raise InvalidValue(
                    f"clients {first!r} and {other!r} differ\n"
                    f"  {first!r}  has {_example_type(slices[first])}\n"
                    f"  {other!r}  has {_example_type(slices[other])}"
                )
        ranges, start = {}, 0
        for client_id, structure in slices.items():
            lengths = {len(column) for column in _leaves(structure)}
            if len(lengths) != 1:
                raise InvalidValue(f"client {brief(client_id)}: columns must be equally long, not {sorted(lengths)}")
            ranges[client_id] = (start, start := start + lengths.pop())
        super().__init__(_map_leaves(lambda *columns: np.concatenate(columns), *slices.values()), ranges)


def _map_leaves(fn: Callable[..., Any], structure: Structure, *others: Structure) -> Structure:
    if isinstance(structure, Mapping):
        return {key: _map_leaves(fn, structure[key], *(o[key] for o in others)) for key in structure}
    if isinstance(structure, tuple):
        items = [_map_leaves(fn, *item) for item in zip(structure, *others, strict=True)]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return fn(structure, *others)


def _leaves(structure: Structure) -> list[Any]:
    found: list[Any] = []
    _map_leaves(found.append, structure)
    return found


def _example_type(structure: Structure) -> Structure:
    return _map_leaves(lambda column: f"{column.dtype}{list(column.shape[1:])}", structure)


def _as_tensorflow_has_it(value: Any) -> np.ndarray:
    column = np.asarray(value)
    if column.ndim == 0:
        raise InvalidValue(f"a client's value must have rows; {brief(value)} has none")
    if column.dtype.kind in "SU":
        encoded = [v.encode() if isinstance(v, str) else v for v in column.ravel().tolist()]
        return np.array(encoded, dtype=object).reshape(column.shape)
    innermost = value
    while isinstance(innermost, list | tuple) and len(innermost):
        innermost = innermost[0]
    if hasattr(innermost, "dtype"):
        return column
    if column.dtype == np.int64 and np.array_equal(column, column.astype(np.int32)):
        return column.astype(np.int32)
    return column.astype(np.float32) if column.dtype == np.float64 else column

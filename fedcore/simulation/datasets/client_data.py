"""Data sets that are split over clients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import InvalidValue, NotFound, TracingError, TypeMismatch, brief
from fedcore.ir.locations import describe
from fedcore.scalars import random_generator
from fedcore.simulation.datasets.structures import (
    Structure,
    as_tensorflow_has_it,
    leaves_of,
    map_leaves,
    num_rows,
    row_type,
    rows_of,
)
from fedcore.types import TensorType
from fedcore.types.immutable_arrays import frozen, immutable
from fedcore.types.ragged_rows import RaggedRows, concatenate

if TYPE_CHECKING:
    import tensorflow as tf

    from fedcore.computation import Computation
    from fedcore.data import ClientDataset, Cohort
    from fedcore.simulation.datasets.reading import ReadingFunction

Seed = int | Sequence[int] | None
"""A seed, or several numbers that make one; None for a seed that is drawn."""


class ClientData:
    """A data set for each client, created when it is asked for.

    Guarantees:
      - `client_ids` are strings, sorted and without repetition.
      - All clients' data sets have one element type.

    A class of one's own gives the ids to the constructor and defines `create_tf_dataset_for_client`; or it defines the
    properties `client_ids` and `serializable_dataset_fn`, as in TFF.

    Args:
        client_ids: the identifiers, in any order. Default: they are listed when they are first needed.
    """

    def __init__(self, client_ids: Iterable[str] | None = None) -> None:
        if client_ids is not None:
            self._ids = _sorted_ids(client_ids)

    def _list_client_ids(self) -> Iterable[str]:
        """The identifiers, in any order, of data that did not give them to the constructor."""
        if type(self).client_ids is ClientData.client_ids:
            raise NotImplementedError(f"{type(self).__name__} gives its client ids to ClientData.__init__")
        return self.client_ids

    @functools.cached_property
    def _ids(self) -> list[str]:
        return _sorted_ids(self._list_client_ids())

    @functools.cached_property
    def _id_set(self) -> frozenset[str]:
        return frozenset(self._ids)

    @property
    def client_ids(self) -> list[str]:
        return list(self._ids)

    @property
    def element_type_structure(self) -> Structure:
        """The `tf.TensorSpec`s of one element, read from the first client."""
        if not self._ids:
            raise InvalidValue("no clients, so no element type")
        return self.create_tf_dataset_for_client(self._ids[0]).element_spec

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        """The data set of a client; KeyError for an unknown client."""
        if type(self).serializable_dataset_fn is ClientData.serializable_dataset_fn:
            raise NotImplementedError(f"{type(self).__name__} defines create_tf_dataset_for_client")
        return self.serializable_dataset_fn(self._require(client_id))

    @property
    def serializable_dataset_fn(self) -> Callable[[str], tf.data.Dataset]:
        """The function (client's id -> its data set).

        Inside a graph the id is a tensor. Data in memory, data from a function that takes tensors, and what
        `preprocess` makes of them take it; data in files do not.
        """
        return self._from_python_id

    def _from_python_id(self, client_id: str | tf.Tensor) -> tf.data.Dataset:
        return self.create_tf_dataset_for_client(python_id(client_id))

    @functools.cached_property
    def dataset_computation(self) -> Computation | ReadingFunction:
        """The data sets as a computation `(str -> T*)`; clients that run it get their data from their ids.

        For data in files it is a function of this type: computations that are composed with it read the clients of a
        call when they are called.
        Example:
            >>> data = TestClientData({"a": [1, 2], "b": [3]})
            >>> print(data.dataset_computation.type_signature)
            (str -> int32*)
        """
        from fedcore.computation import tf_computation

        if self.is_in_files:
            from fedcore.simulation.datasets.reading import ReadingFunction

            return ReadingFunction(self)
        make = self.serializable_dataset_fn

        def dataset_of_client(client_id: str | tf.Tensor) -> tf.data.Dataset:
            return make(client_id)

        return tf_computation(TensorType("str"))(dataset_of_client)

    def select(self, client_ids: Iterable[str]) -> ClientData:
        """The client data with only these clients; KeyError for an unknown client."""
        return FunctionClientData(map(self._require, client_ids), self.serializable_dataset_fn)

    def create_tf_dataset_from_all_clients(self, seed: Seed = None) -> tf.data.Dataset:
        """The examples of all clients in one data set, client after client, in an order of clients shuffled by `seed`.

        Without a seed each call draws an order. `ArrayClientData` returns a `ClientDataset`; otherwise the result is a
        `tf.data.Dataset` that reads the clients when it is iterated.
        """
        import tensorflow as tf

        order = self._shuffled_ids(seed)

        def elements() -> Iterator:
            for client_id in order:
                yield from self.create_tf_dataset_for_client(client_id)

        return tf.data.Dataset.from_generator(elements, output_signature=self.element_type_structure)

    @property
    def is_in_files(self) -> bool:
        """Whether another process that sees the same files can open the clients' data sets."""
        return False

    def cohort(self, client_ids: Iterable[str]) -> Cohort:
        """The clients of a round, in this order; a data set is made when it is read.

        If the data are in files, `fc.runtime.ray` opens them on its workers: clients travel as ids.

        Raises:
            NotFound: an unknown client.
        Example:
            >>> data = TestClientData({"a": [1, 2], "b": [3]})
            >>> len(data.cohort(["b", "a"]))
            2
        """
        from fedcore.data import Cohort, OpenedElsewhere

        ids = [self._require(client_id) for client_id in client_ids]
        if self.is_in_files:
            return OpenedElsewhere(ids, self.create_tf_dataset_for_client)
        return Cohort(len(ids), lambda index: self.create_tf_dataset_for_client(ids[index]))

    def __getstate__(self) -> dict:
        """Pickles without ids that are listed from elsewhere."""
        lists_ids = type(self)._list_client_ids is not ClientData._list_client_ids
        return {k: v for k, v in vars(self).items() if not (lists_ids and k in ("_ids", "_id_set"))}

    def datasets(self, limit_count: int | None = None, seed: Seed = None) -> Iterator[tf.data.Dataset]:
        """Yields clients' data sets in an order shuffled by `seed`: all, or the first `limit_count`."""
        for client_id in self._shuffled_ids(seed, limit_count):
            yield self.create_tf_dataset_for_client(client_id)

    def preprocess(self, preprocess_fn: Callable[[ClientDataset], tf.data.Dataset]) -> ClientData:
        """Client data in which `preprocess_fn` is applied to a client's data set when this data set is asked for.

        Raises:
            TypeMismatch: `preprocess_fn` is no Python function.
        Example:
            >>> data = TestClientData({"a": {"x": [1, 2, 3]}})
            >>> batched = data.preprocess(lambda dataset: dataset.batch(2))
            >>> [batch["x"].shape[0] for batch in batched.create_tf_dataset_for_client("a")]
            [2, 1]
        """
        check_python_function("preprocess: preprocess_fn", preprocess_fn, "a data set to a data set")
        return PreprocessedClientData(self, preprocess_fn)

    @staticmethod
    def from_clients_and_tf_fn(
        client_ids: Iterable[str], serializable_dataset_fn: Callable[[str], tf.data.Dataset]
    ) -> ClientData:
        """Client data whose data sets come from a function of the client's id.

        Args:
            serializable_dataset_fn: client's id -> data set. For `dataset_computation` it takes the id as a tensor.
        Raises:
            TypeMismatch: an id is no string, or `serializable_dataset_fn` is no Python function.
        """
        check_python_function(
            "from_clients_and_tf_fn: serializable_dataset_fn", serializable_dataset_fn, "a client's id to a data set"
        )
        return FunctionClientData(client_ids, serializable_dataset_fn)

    @staticmethod
    def from_clients_and_fn(
        client_ids: Iterable[str], create_tf_dataset_for_client_fn: Callable[[str], tf.data.Dataset]
    ) -> ClientData:
        """The older name of `from_clients_and_tf_fn`."""
        return ClientData.from_clients_and_tf_fn(client_ids, create_tf_dataset_for_client_fn)

    @staticmethod
    def train_test_client_split(
        client_data: ClientData, num_test_clients: int, seed: Seed = None
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

    def train_validation_split(self, share: float = 0.2, seed: int = 0) -> tuple[ClientData, ClientData]:
        """Splits the examples of each client into (training data, validation data), which have all clients.

        A client of n examples has `round(share * n)` of them in the validation data, but at least one in the training
        data, and none of one example. Which ones these are depends only on the seed, the client's id and n, so they are
        the same in every round, cohort and process. Examples keep their order. A client is split when it is asked for.

        Args:
            share: of the examples for validation, between 0 and 1.
        Raises:
            InvalidValue: `share` is not between 0 and 1. When a client is read: its data set is shuffled or augmented,
                has batches of several sizes, or does not end; split before `preprocess` does so.
        Example:
            >>> data = TestClientData({"a": [1, 2, 3, 4, 5], "b": [6]})
            >>> train, validation = data.train_validation_split(0.4, seed=1)
            >>> [[len(list(part.create_tf_dataset_for_client(i))) for i in "ab"] for part in (train, validation)]
            [[3, 1], [2, 0]]
        """
        from fedcore.simulation.datasets.example_split import split_examples

        return split_examples(self, share, seed)

    def in_memory(self) -> ArrayClientData:
        """The client data with all examples read now and held in shared arrays.

        Raises:
            InvalidValue: the examples of two clients differ in structure, dtypes or shapes.
        Example:
            >>> data = TestClientData({"a": [1, 2], "b": [3]}).preprocess(lambda dataset: dataset.map(lambda x: 2 * x))
            >>> data.in_memory().create_tf_dataset_for_client("a")
            <ClientDataset int32*>
        """
        if not self._ids:
            raise InvalidValue("no clients, so no examples to hold in memory")
        return ArrayClientData.from_clients({i: rows_of(self.create_tf_dataset_for_client(i)) for i in self._ids})

    def _shuffled_ids(self, seed: Seed, limit: int | None = None) -> list[str]:
        """The ids in an order by the seed: all, or the first `limit` of them."""
        rng = np.random.default_rng() if seed is None else _generator(seed)
        return [self._ids[i] for i in rng.permutation(len(self._ids))[:limit]]

    def _has(self, client_id: str) -> bool:
        """Whether there is such a client."""
        return client_id in self._id_set

    def _require(self, client_id: str) -> str:
        """The id; NotFound if there is no such client."""
        if not self._has(client_id):
            raise self._unknown(client_id)
        return client_id

    def _unknown(self, client_id: object) -> NotFound:
        return NotFound(f"no client {brief(client_id)} among {len(self._ids)}")


class FunctionClientData(ClientData):
    """Client data whose data sets come from a function of the client's id."""

    def __init__(self, client_ids: Iterable[str], dataset_fn: Callable[[str], tf.data.Dataset]) -> None:
        super().__init__(client_ids)
        self._dataset_fn = dataset_fn

    @property
    def is_in_files(self) -> bool:
        source = getattr(self._dataset_fn, "__self__", None)
        return isinstance(source, ClientData) and source.is_in_files

    @property
    def serializable_dataset_fn(self) -> Callable[[str], tf.data.Dataset]:
        return self._dataset_fn


class PreprocessedClientData(ClientData):
    """Client data with a function applied to each client's data set."""

    def __init__(self, base: ClientData, preprocess_fn: Callable[[ClientDataset], tf.data.Dataset]) -> None:
        super().__init__()
        self._base = base
        self._preprocess_fn = preprocess_fn

    @property
    def is_in_files(self) -> bool:
        return self._base.is_in_files

    def _list_client_ids(self) -> list[str]:
        return self._base._ids

    def _has(self, client_id: str) -> bool:
        return self._base._has(client_id)

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        dataset = self._preprocess_fn(self._base.create_tf_dataset_for_client(client_id))
        if dataset is None:
            raise TypeMismatch(f"{describe(self._preprocess_fn)} returns None; it returns the client's data set")
        return dataset

    def select(self, client_ids: Iterable[str]) -> ClientData:
        return PreprocessedClientData(self._base.select(client_ids), self._preprocess_fn)

    @property
    def serializable_dataset_fn(self) -> Callable[[str], tf.data.Dataset]:
        return self._in_graph

    def _in_graph(self, client_id: str | tf.Tensor) -> tf.data.Dataset:
        """The data set of a client whose id may be a tensor of a graph."""
        return self._preprocess_fn(self._base.serializable_dataset_fn(client_id))


class ArrayClientData(ClientData):
    """The examples of all clients in shared arrays, of which each client has a range of rows.

    Guarantees:
      - A client's data set holds views of the arrays; creating it copies nothing.

    Args:
        columns: equally long arrays in dicts and tuples. An array that can be written to is copied. Rows of several
            lengths are a `RaggedRows`.
        ranges: for each client its first row and the row after its last.
    """

    def __init__(self, columns: Structure, ranges: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(ranges)
        length = num_rows(columns)
        for client_id, (start, stop) in ranges.items():
            if not 0 <= start <= stop <= length:
                raise InvalidValue(f"client {brief(client_id)}: rows {start} to {stop} are not within {length}")
        self._columns = map_leaves(lambda c: immutable(c) if isinstance(c, np.ndarray) else c, columns)
        self._ranges = dict(ranges)

    @classmethod
    def from_partition(
        cls, columns: Structure, parts: Mapping[str, np.ndarray] | Sequence[np.ndarray]
    ) -> ArrayClientData:
        """Gives each client the rows that its index array names.

        Args:
            parts: by client id; or, as those of `fc.simulation.partition`, in a sequence: these clients are named by
                their numbers, "0", "1", ….
        Raises:
            TypeMismatch: `parts` holds no index arrays.
        Example:
            >>> data = ArrayClientData.from_partition(np.array([10, 20, 30]), {"a": [2, 0], "b": [1]})
            >>> list(data.create_tf_dataset_for_client("a").as_numpy_iterator()) == [30, 10]
            True
        """
        if not isinstance(parts, Mapping):
            parts = {str(number): part for number, part in enumerate(parts)}
        if any(np.ndim(part) != 1 for part in parts.values()):
            raise TypeMismatch(
                f"from_partition: parts holds an array of row numbers for each client, not {brief(parts)}"
            )
        rows = np.concatenate([np.zeros(0, np.int64), *parts.values()]).astype(np.int64)
        ranges = _ranges({i: len(p) for i, p in parts.items()})
        return cls(map_leaves(lambda column: frozen(column[rows]), columns), ranges)

    @classmethod
    def from_clients(cls, clients: Mapping[str, Structure]) -> ArrayClientData:
        """Client data from the arrays of each client, which are copied into shared arrays.

        Args:
            clients: client id -> an array, or equally long arrays in dicts and tuples, of one structure for all.
        Raises:
            InvalidValue: there are no clients, or examples of two clients differ in structure, dtypes or shapes.
        Example:
            >>> ArrayClientData.from_clients({"a": np.zeros(2), "b": np.zeros(3)}).client_ids
            ['a', 'b']
        """
        if not clients:
            raise InvalidValue(f"{cls.__name__} needs at least one client")
        first, *others = clients
        first_type = row_type(clients[first])
        for other in others:
            other_type = row_type(clients[other])
            if other_type != first_type:
                raise InvalidValue(
                    f"clients {first!r} and {other!r} differ\n"
                    f"  {first!r}  has {first_type}\n  {other!r}  has {other_type}"
                )
        ranges = _ranges({i: num_rows(columns, f"client {brief(i)}: ") for i, columns in clients.items()})
        joined = map_leaves(lambda *columns: concatenate(columns), *clients.values())
        return ArrayClientData(joined, ranges)  # not `cls`, whose constructor may take other arguments

    def create_tf_dataset_for_client(self, client_id: str) -> ClientDataset:
        from fedcore.data import ClientDataset

        start, stop = self._ranges[self._require(client_id)]
        return ClientDataset.from_columns(map_leaves(lambda column: column[start:stop], self._columns))

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays; texts count as their references."""
        return sum(column.nbytes for column in leaves_of(self._columns))

    def create_tf_dataset_from_all_clients(self, seed: Seed = None) -> ClientDataset:
        from fedcore.data import ClientDataset

        order = [np.arange(*self._ranges[client_id]) for client_id in self._shuffled_ids(seed)]
        rows = np.concatenate([np.zeros(0, np.int64), *order])
        return ClientDataset.from_columns(map_leaves(lambda column: column[rows], self._columns))

    def select(self, client_ids: Iterable[str]) -> ArrayClientData:
        return ArrayClientData(self._columns, {i: self._ranges[self._require(i)] for i in client_ids})

    def in_memory(self) -> ArrayClientData:
        return self

    @property
    def serializable_dataset_fn(self) -> Callable[[str], tf.data.Dataset]:
        return self._dataset_in_graph

    def _dataset_in_graph(self, client_id: str | tf.Tensor) -> tf.data.Dataset:
        """The rows of a client whose id a graph computes; an unknown id fails when the graph runs."""
        import tensorflow as tf

        if not tf.is_tensor(client_id) or tf.executing_eagerly():
            return self._from_python_id(client_id)
        bounds = tf.constant([self._ranges[i] for i in self._ids], tf.int64)
        is_client = tf.constant(self._ids) == client_id
        assertion = tf.Assert(tf.reduce_any(is_client), [f"no such client among {len(self._ids)}:", client_id])
        with tf.control_dependencies([assertion]):
            start, stop = tf.unstack(tf.gather(bounds, tf.argmax(tf.cast(is_client, tf.int32))))
        if any(isinstance(column, RaggedRows) for column in leaves_of(self._columns)):
            row_readers = map_leaves(_row_reader_in_graph, self._columns)
            return tf.data.Dataset.range(start, stop).map(lambda row: map_leaves(lambda read: read(row), row_readers))
        rows = map_leaves(lambda column: tf.constant(column)[start:stop], self._columns)
        return tf.data.Dataset.from_tensor_slices(rows)


def _row_reader_in_graph(column: np.ndarray | RaggedRows) -> Callable[[tf.Tensor], tf.Tensor]:
    """The function from a row's number to the row, in a graph."""
    import tensorflow as tf

    if not isinstance(column, RaggedRows):
        return tf.constant(column).__getitem__
    values, splits = tf.constant(column.values), tf.constant(column.splits)
    return lambda row: values[splits[row] : splits[row + 1]]


class TestClientData(ArrayClientData):
    """Client data from literals, for tests.

    As in TensorFlow, Python ints become int32 if they fit, floats become float32, and strings become bytes.

    Args:
        tensor_slices_dict: client id -> an argument of `tf.data.Dataset.from_tensor_slices`: arrays or lists, in dicts
            and tuples.
    Raises:
        ValueError: there are no clients, or examples of two clients differ in structure, dtypes or shapes.
        TypeError: `tensor_slices_dict` is no dict, or an id is no text.
    Example:
        >>> data = TestClientData({"a": {"x": [1, 2]}, "b": {"x": [3]}})
        >>> [int(example["x"]) for example in data.create_tf_dataset_for_client("a")]
        [1, 2]
    """

    __test__ = False  # pytest: not a class of tests

    def __init__(self, tensor_slices_dict: Mapping[str, Structure]) -> None:
        if not isinstance(tensor_slices_dict, Mapping):
            raise TypeMismatch(
                "TestClientData takes a dict from clients' ids to their examples, such as {'a': [1, 2]}, not "
                f"{brief(tensor_slices_dict)}"
            )
        clients = {i: map_leaves(as_tensorflow_has_it, s) for i, s in tensor_slices_dict.items()}
        joined = TestClientData.from_clients(clients)
        super().__init__(joined._columns, joined._ranges)


def _ranges(sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Client id -> its first row and the row after its last, for clients whose rows follow each other."""
    stops = np.cumsum(list(sizes.values()), dtype=np.int64).tolist()
    return dict(zip(sizes, zip([0, *stops], stops, strict=False), strict=True))


def numbered_ids(count: int) -> list[str]:
    """`client_0`, `client_1`, …, with leading zeros, so that sorting keeps their order."""
    width = len(str(count - 1))
    return [f"client_{i:0{width}d}" for i in range(count)]


def python_id(client_id: Any) -> str:
    """A client's id as Python's text, from text or from a tensor with a value.

    Raises:
        TracingError: it is a tensor of a graph, whose value is not known yet.
    """
    if isinstance(client_id, str):
        return client_id
    try:
        return client_id.numpy().decode()
    except (AttributeError, NotImplementedError):
        raise TracingError(
            "the data sets of these clients are made outside of graphs, by an id that is known; "
            "fix: use data.in_memory() in place of the data"
        ) from None


def check_python_function(role: str, fn: object, signature: str) -> None:
    """Raises TypeMismatch where `fn` is a computation, or cannot be called.

    Args:
        role: the argument, for the message, such as `preprocess: preprocess_fn`.
        signature: what `fn` takes and returns, for the message, such as `a path to a data set`.
    """
    from fedcore.computation import Computation, PolymorphicComputation

    if isinstance(fn, Computation | PolymorphicComputation):
        raise TypeMismatch(f"{role} is a Python function from {signature}, not a computation")
    if not callable(fn):
        raise TypeMismatch(f"{role} is a function from {signature}, not {brief(fn)}")


def _generator(seed: int | Sequence[int]) -> np.random.Generator:
    return random_generator(*seed) if isinstance(seed, Sequence) else random_generator(seed)


def _sorted_ids(client_ids: Iterable[str]) -> list[str]:
    """The ids, sorted.

    Raises:
        TypeMismatch: one is no text.
        InvalidValue: one is there twice.
    """
    ids = list(client_ids)
    if not all(isinstance(client_id, str) for client_id in ids):
        raise TypeMismatch("client ids must be strings")
    ids.sort()
    if any(previous == other for previous, other in itertools.pairwise(ids)):
        raise InvalidValue("a client id is given twice")
    return ids

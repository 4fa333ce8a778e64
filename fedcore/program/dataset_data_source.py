"""Clients' data sets as a data source."""

import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.program.data_source import FederatedDataSource, FederatedDataSourceIterator
from fedcore.program.safetensors_file import SafetensorsFile
from fedcore.program.state_files import Damaged, check_manifest, from_files, manifest_of, take_apart
from fedcore.scalars import random_generator, seed_number, whole_number
from fedcore.types import CLIENTS, FederatedType, SequenceType, StructType, explain, parse_type, to_type

if TYPE_CHECKING:
    import tensorflow as tf


class DatasetDataSourceIterator(FederatedDataSourceIterator):
    """Selects clients' data sets, uniformly at random and without repetition within a selection.

    Selection n depends on the seed and n only. The bytes of the iterator hold the data sets, as TFF's do.

    Args:
        datasets: one for each client.
        federated_type: the type of a selection.
        seed: a whole number. Default: drawn.
    Raises:
        InvalidValue: there are no data sets.
        TypeMismatch: their elements differ in type.
    """

    def __init__(
        self, datasets: Sequence["tf.data.Dataset"], federated_type: FederatedType, seed: int | None = None
    ) -> None:
        _check(datasets)
        self._datasets = list(datasets)
        self._federated_type = federated_type
        self._seed = secrets.randbits(63) if seed is None else seed_number("seed", seed)
        self._selections = 0

    @property
    def federated_type(self) -> FederatedType:
        return self._federated_type

    def select(self, k: int | None = None) -> list["tf.data.Dataset"]:
        """The data sets of k clients.

        Raises:
            InvalidValue: k is no number of clients from 0 to all.
        """
        if k is None or whole_number("k", k) < 0 or k > len(self._datasets):
            raise InvalidValue(f"k is a number of clients from 0 to {len(self._datasets)}, not {brief(k)}")
        chosen = random_generator(self._seed, self._selections).choice(len(self._datasets), size=k, replace=False)
        self._selections += 1
        return [self._datasets[i] for i in chosen]

    def to_bytes(self) -> bytes:
        clients = [list(dataset.as_numpy_iterator()) for dataset in self._datasets]
        parts = take_apart(
            {"type": str(self._federated_type), "seed": self._seed, "selections": self._selections, "data": clients}
        )
        arrays = SafetensorsFile(parts.arrays)
        tensors = b"".join(arrays)
        assert arrays.digest is not None
        manifest = manifest_of(parts, 0, arrays.digest)
        return json.dumps([len(manifest), len(tensors)]).encode() + b"\n" + manifest + tensors

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "DatasetDataSourceIterator":
        """The iterator of these bytes, which goes on where it was.

        Raises:
            InvalidValue: they are not the bytes of an iterator.
        """
        head, _, body = buffer.partition(b"\n")
        try:
            manifest_size, tensors_size = json.loads(head)
            content = check_manifest(body[:manifest_size], 0)
            state = from_files(content, [body[manifest_size : manifest_size + tensors_size]])
            type_: Any = parse_type(state["type"])
            spec = _element_spec(type_.member.element)
            iterator = cls([_dataset(elements, spec) for elements in state["data"]], type_, state["seed"])
            iterator._selections = whole_number("selections", state["selections"], at_least=0)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, Damaged) as error:
            raise InvalidValue(f"these are not the bytes of a DatasetDataSourceIterator: {error}") from None
        return iterator

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DatasetDataSourceIterator):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]


class DatasetDataSource(FederatedDataSource):
    """A data source over a data set for each client.

    Args:
        datasets: one for each client.
        seed: seed of the selections. Default: drawn by each `iterator()`.
    Raises:
        InvalidValue: there are no data sets.
        TypeMismatch: their elements differ in type.
    Example:
        >>> source = fc.program.DatasetDataSource([tf.data.Dataset.range(n) for n in (1, 2, 3)], seed=0)
        >>> str(source.federated_type), len(source.iterator().select(2))
        ('{int64*}@CLIENTS', 2)
    """

    def __init__(self, datasets: Sequence["tf.data.Dataset"], seed: int | None = None) -> None:
        _check(datasets)
        self._datasets = list(datasets)
        self._seed = seed if seed is None else seed_number("seed", seed)
        self._federated_type = FederatedType(SequenceType(to_type(self._datasets[0].element_spec)), CLIENTS)

    @property
    def federated_type(self) -> FederatedType:
        return self._federated_type

    def iterator(self) -> DatasetDataSourceIterator:
        return DatasetDataSourceIterator(self._datasets, self._federated_type, self._seed)


def _check(datasets: Sequence["tf.data.Dataset"]) -> None:
    """Checks that there are data sets, and that their elements have one type.

    Raises:
        InvalidValue, TypeMismatch: it is not so.
    """
    if not datasets:
        raise InvalidValue("datasets is a list of one data set or more, not empty")
    first = to_type(datasets[0].element_spec)
    for index, dataset in enumerate(datasets):
        type_ = to_type(dataset.element_spec)
        if type_ != first:
            title = f"the elements of `datasets` differ in type: data set {index} is not like data set 0"
            raise TypeMismatch(explain(title, type_, first, want_label="data set 0", have_label=f"data set {index}"))


def _element_spec(type_: Any) -> Any:
    """The `tf.TypeSpec`s of a type, in its containers, as the `element_spec` of a data set of such elements."""
    from fedcore.graphs.tensors.specs import spec
    from fedcore.graphs.tensors.values import container

    if isinstance(type_, StructType):
        return container([_element_spec(t) for t in type_.types], type_)
    return spec(type_)


def _dataset(elements: list, spec: Any) -> "tf.data.Dataset":
    """The data set of some elements, of the types of `_element_spec`."""
    import tensorflow as tf

    return tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=spec)

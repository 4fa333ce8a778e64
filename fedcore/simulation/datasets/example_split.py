"""Training and validation data of the same clients."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fedcore.errors import InvalidValue, brief
from fedcore.scalars import real_number, seed_number
from fedcore.seeds import fold_in, permutation
from fedcore.simulation.datasets.client_data import ClientData
from fedcore.simulation.datasets.structures import map_leaves, num_rows, rows_of
from fedcore.types.immutable_arrays import frozen

if TYPE_CHECKING:
    import tensorflow as tf

    from fedcore.data import ClientDataset


def split_examples(data: ClientData, share: float, seed: int) -> tuple[ClientData, ClientData]:
    """(Training data, validation data); see `ClientData.train_validation_split`."""
    number = real_number("share", share)
    if not 0 < number < 1:
        raise InvalidValue(f"share is a number between 0 and 1, not {brief(share)}")
    part = functools.partial(_PartOfExamples, data, number, seed_number("seed", seed))
    return part(is_validation=False), part(is_validation=True)


class _PartOfExamples(ClientData):
    """Client data with the training examples, or the validation examples, of each client."""

    def __init__(self, base: ClientData, share: float, seed: int, *, is_validation: bool) -> None:
        super().__init__()
        self._base = base
        self._share = share
        self._seed = seed
        self._is_validation = is_validation

    @property
    def is_in_files(self) -> bool:
        return self._base.is_in_files

    def _list_client_ids(self) -> Iterable[str]:
        return self._base._ids

    def _has(self, client_id: str) -> bool:
        return self._base._has(client_id)

    def create_tf_dataset_for_client(self, client_id: str) -> ClientDataset:
        from fedcore.data import ClientDataset

        dataset = self._base.create_tf_dataset_for_client(client_id)
        if _draws(dataset):
            raise InvalidValue(
                f"the data set of client {brief(client_id)} draws random numbers, so each round would have another "
                "split; fix: split before preprocess shuffles or augments"
            )
        columns = rows_of(dataset, "split the examples before preprocess batches them")
        rows = self._rows(client_id, num_rows(columns))
        return ClientDataset.from_columns(map_leaves(lambda column: frozen(column[rows]), columns))

    def select(self, client_ids: Iterable[str]) -> ClientData:
        return _PartOfExamples(
            self._base.select(client_ids), self._share, self._seed, is_validation=self._is_validation
        )

    def _rows(self, client_id: str, count: int) -> np.ndarray:
        """int [n]: the rows of a client's `count` examples that belong to this part, ascending."""
        digest = hashlib.sha256(client_id.encode()).digest()
        order = permutation(fold_in(self._seed, int.from_bytes(digest[:8], "big")), count)
        validation_size = max(0, min(round(self._share * count), count - 1))
        return np.sort(order[:validation_size] if self._is_validation else order[validation_size:])


def _draws(dataset: tf.data.Dataset) -> bool:
    """Whether two readings of a data set may differ by random numbers."""
    from fedcore.data import ClientDataset
    from fedcore.data.tf_data_draws import draws

    if isinstance(dataset, ClientDataset):
        return dataset.columns.is_random or dataset.columns.draws
    return draws(dataset)

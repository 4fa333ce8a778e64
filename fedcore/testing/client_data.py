"""Checks the laws of client data."""

import gc
import os
import pickle
import random
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.errors import TypeMismatch, brief
from fedcore.runtime.reports.result_difference import difference
from fedcore.simulation.datasets import ClientData
from fedcore.simulation.datasets.structures import Structure, as_tensorflow_has_it, map_leaves, num_rows
from fedcore.testing.laws import LawBroken, open_files

THREADS = 4

READINGS = 5
"""Readings of one client, after all have been read, that may not leave a file open each."""


def _random_states() -> str:
    with np.printoptions(threshold=1000):
        return repr((random.getstate(), np.random.get_state()))


def check_client_data(
    data: ClientData,
    columns: Mapping[str, Structure] | None = None,
    *,
    is_shuffled: bool = False,
    clients: int = 20,
) -> None:
    """Checks the laws of client data.

    Laws: the ids are sorted texts, each once, and the caller's own list; another id is not found; a client's data set
    has elements of `element_type_structure`, the same ones in the same order in every reading: of one data set again,
    of a new one, of data sets that were made before others and are read in turn, from several threads, from a
    selection, from a cohort in another order, and after pickling, where the data and their selections pickle; these
    elements are the rows of `columns`; the data sets of clients without examples have the same type too; reading leaves
    no files open, no temporary files, and Python's and numpy's own random numbers as they were.

    Args:
        columns: client id -> its examples: arrays, or lists, in dicts and tuples. Default: they are not checked.
        is_shuffled: data sets draw an order in each reading, so elements are compared in any order.
        clients: how many clients are read again and again, spread over all; those of `columns` are all read once.
    Raises:
        LawBroken: names the law and the client, and shows the difference.
        TypeMismatch: it is no client data.
    Example:
        >>> columns = {"a": {"x": [1, 2]}, "b": {"x": [3]}}
        >>> fc.testing.check_client_data(fc.simulation.datasets.TestClientData(columns), columns)
    """
    if not isinstance(data, ClientData):
        raise TypeMismatch(f"check_client_data takes client data of fc.simulation.datasets, not {brief(data)}")
    _Check(data, is_shuffled, clients).run(columns)


class _Check:
    """The checks of one `ClientData`. Reads its data sets once, as the elements that other readings are to give.

    Attributes:
        _ids: at most `clients` ids, spread over all.
        _rows: client id -> elements.
    """

    def __init__(self, data: ClientData, is_shuffled: bool, clients: int) -> None:
        self._data = data
        self._is_shuffled = is_shuffled
        self._name = type(data).__name__
        self._check_ids(data.client_ids)
        self._ids = data.client_ids[:: max(1, len(data.client_ids) // clients)][:clients]
        draws = _random_states()
        self._specs = data.element_type_structure
        self._rows = {i: self._read(self._dataset(i), i) for i in self._ids}
        if _random_states() != draws:
            law = "reading leaves the random numbers of Python and numpy as they were"
            raise self._broken(law, "fix: draw from a np.random.default_rng of your own")
        self._check_nothing_stays()

    def run(self, columns: Mapping[str, Structure] | None) -> None:
        if columns is not None:
            self._check_columns(columns)
        self._check_elements()
        data, ids = self._data, self._ids
        self._same("are the same in every reading", data.create_tf_dataset_for_client)
        self._same("are those of `serializable_dataset_fn`", data.serializable_dataset_fn)
        datasets = {i: data.create_tf_dataset_for_client(i) for i in ids}
        self._same("do not depend on data sets that are made later", datasets.__getitem__)
        self._same("can be read again", datasets.__getitem__)
        self._check_turns(datasets)
        self._check_threads()
        chosen = data.select(ids[:2])
        if chosen.client_ids != ids[:2]:
            raise self._broken("a selection has its clients", f"it has {chosen.client_ids}, not {ids[:2]}")
        self._same("are those of a selection", chosen.create_tf_dataset_for_client, ids[:2])
        cohort = data.cohort(ids[::-1])
        self._same("are those of a cohort in another order", lambda i: cohort[ids[::-1].index(i)])
        self._check_pickle()

    def _check_nothing_stays(self) -> None:
        """Reads one client again and again; its temporary files come into a directory that is looked at."""
        files, usual, client_id = open_files(), tempfile.tempdir, self._ids[0]
        with tempfile.TemporaryDirectory() as directory:
            tempfile.tempdir = directory
            try:
                for _ in range(READINGS):
                    self._read(self._dataset(client_id), client_id)
            finally:
                tempfile.tempdir = usual
            gc.collect()  # of files whose owner removes them
            for left, what in (open_files() - files, "files open"), (len(os.listdir(directory)), "temporary files"):
                if left >= READINGS:
                    raise self._broken(f"reading leaves no {what}", f"{READINGS} readings of {client_id!r} left {left}")

    def _dataset(self, client_id: str) -> Any:
        """The data set of a client, which has the type of all."""
        dataset = self._data.create_tf_dataset_for_client(client_id)
        have, want = getattr(dataset, "element_spec", self._specs), self._specs
        same = tf.nest.map_structure(lambda h, w: w.is_compatible_with(h), have, want)
        if not all(tf.nest.flatten(same)):
            law = "the elements have the type of `element_type_structure`"
            raise self._broken(law, f"those of client {client_id!r} are of {have}, not {want}")
        return dataset

    def _broken(self, law: str, what: str) -> LawBroken:
        return LawBroken(f"{self._name}: {law}", what)

    def _check_ids(self, ids: Any) -> None:
        if not isinstance(ids, list) or ids != sorted({*map(str, ids)}):
            raise self._broken("the ids are a sorted list of texts, each once", f"they are {brief(ids)}")
        if not ids:
            raise self._broken("there are clients", "client_ids is empty, so nothing was checked")
        kept = [*ids]
        ids.clear()
        if self._data.client_ids != kept:
            raise self._broken(
                "the list of ids is the caller's own", "data.client_ids.clear() left data without clients"
            )
        other = kept[-1] + "?"
        try:
            self._data.create_tf_dataset_for_client(other)
        except KeyError:
            return
        except Exception as error:
            raise self._broken(
                "another id raises KeyError", f"{other!r} raises {type(error).__name__}: {error}"
            ) from error
        raise self._broken("another id raises KeyError", f"{other!r} has a data set")

    def _read(self, dataset: Any, client_id: str) -> list:
        try:
            return [tf.nest.map_structure(np.asarray, element) for element in dataset]
        except Exception as error:
            what = f"client {client_id!r} raises {type(error).__name__}: {error}"
            raise self._broken("the data sets can be read", what) from error

    def _same(self, law: str, dataset: Callable[[str], Any], ids: Sequence[str] | None = None) -> None:
        """Checks that the elements of each client are those that `__init__` has read.

        Clients are read in reverse order, so that reading one may not depend on those before it.

        Args:
            law: the end of a sentence that begins with "the elements".
            dataset: client id -> data set.
            ids: of the clients that are read. Default: all that `__init__` has read.
        """
        for client_id in (self._ids if ids is None else ids)[::-1]:
            self._equal(law, client_id, self._read(dataset(client_id), client_id), self._rows[client_id])

    def _equal(self, law: str, client_id: str, have: list, want: list) -> None:
        have, want = ([tf.nest.flatten(element) for element in elements] for elements in (have, want))
        if self._is_shuffled:
            have, want = sorted(have, key=repr), sorted(want, key=repr)
        mismatch = difference(have, want, 0, f"client {client_id!r}")
        if mismatch is not None:
            raise self._broken(f"the elements {law}", mismatch)

    def _check_columns(self, columns: Mapping[str, Structure]) -> None:
        if sorted(columns) != self._data.client_ids:
            what = f"the ids are {brief(self._data.client_ids)}, and those of the columns {brief(sorted(columns))}"
            raise self._broken("its clients are those of the columns", what)
        for client_id, client_columns in columns.items():
            arrays = map_leaves(as_tensorflow_has_it, client_columns)
            rows = [map_leaves(lambda a, k=k: np.asarray(a[k]), arrays) for k in range(num_rows(arrays))]
            read = self._rows.get(client_id)
            if read is None:
                read = self._read(self._dataset(client_id), client_id)
            self._equal("are the rows of the columns", client_id, read, rows)

    def _check_elements(self) -> None:
        specs = self._data.element_type_structure
        for client_id, elements in self._rows.items():
            for element in elements:
                tf.nest.assert_same_structure(element, specs)
                pairs = zip(tf.nest.flatten(element), tf.nest.flatten(specs), strict=True)
                for value, spec in pairs:
                    if not spec.is_compatible_with(tf.convert_to_tensor(value)):
                        what = f"client {client_id!r} has {value.dtype}{list(value.shape)}, not {spec}"
                        raise self._broken("the elements have the type of `element_type_structure`", what)

    def _check_turns(self, datasets: dict[str, Any]) -> None:
        """Reads the data sets side by side, one element of each client in turn, and checks the elements."""
        readers = {i: iter(dataset) for i, dataset in datasets.items()}
        read: dict[str, list] = {i: [] for i in readers}
        while readers:
            for client_id, reader in [*readers.items()]:
                element = next(reader, None)
                if element is None:
                    del readers[client_id]
                else:
                    read[client_id].append(tf.nest.map_structure(np.asarray, element))
        for client_id, elements in read.items():
            self._equal("are the same where clients are read in turn", client_id, elements, self._rows[client_id])

    def _check_threads(self) -> None:
        """Reads all clients in several threads at once, each beginning with another client, and checks the elements."""
        together = threading.Barrier(THREADS)

        def read(number: int) -> dict[str, list]:
            start = number * len(self._ids) // THREADS
            ids = self._ids[start:] + self._ids[:start]
            together.wait()
            return {i: self._read(self._data.create_tf_dataset_for_client(i), i) for i in ids}

        with ThreadPoolExecutor(THREADS) as threads:
            for rows in threads.map(read, range(THREADS)):
                for client_id in self._ids:
                    self._equal("are the same in several threads", client_id, rows[client_id], self._rows[client_id])

    def _check_pickle(self) -> None:
        for data, what in (self._data, "data"), (self._data.select(self._ids[:2]), "selections"):
            try:
                pickled = pickle.dumps(data)
            except Exception as error:
                if data.is_in_files:
                    raised = f"`is_in_files` is True, and it raises {type(error).__name__}: {error}"
                    raise self._broken(f"{what} in files pickle, since other processes open them", raised) from error
                return
            try:
                loaded = pickle.loads(pickled)
                ids = loaded.client_ids
            except Exception as error:
                raise self._broken(f"{what} that pickle can be loaded", f"{type(error).__name__}: {error}") from error
            if ids != data.client_ids:
                raise self._broken(f"pickled {what} have their clients", f"they have {brief(ids)}")
            self._same(
                "are the same after pickling", loaded.create_tf_dataset_for_client, sorted({*ids} & {*self._ids})
            )

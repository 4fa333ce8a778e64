"""Client data in a file for each client."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.simulation.datasets.client_data import ClientData, check_python_function
from fedcore.simulation.datasets.structures import rows_of

if TYPE_CHECKING:
    import tensorflow as tf


class FilePerUserClientData(ClientData):
    """Client data in a file for each client, which is read when the client's data set is asked for.

    A data set whose examples have one shape is handed out as a `ClientDataset`, another one as it is.

    Args:
        client_ids_to_files: client's id -> path of its file.
        dataset_fn: path -> data set.
    Raises:
        FedcoreError: there are no clients, or `dataset_fn` is no Python function. When a client is read: TensorFlow
            cannot read its file.
    Example:
        >>> data = FilePerUserClientData({"a": path}, tf.data.TextLineDataset)
        >>> list(data.create_tf_dataset_for_client("a").as_numpy_iterator())
        [b'first', b'second']
    """

    def __init__(self, client_ids_to_files: Mapping[str, str], dataset_fn: Callable[[str], tf.data.Dataset]) -> None:
        if not isinstance(client_ids_to_files, Mapping):
            raise TypeMismatch(f"client_ids_to_files is a dict from ids to paths, not {brief(client_ids_to_files)}")
        if not client_ids_to_files:
            raise InvalidValue("FilePerUserClientData needs at least one client")
        check_python_function("FilePerUserClientData: dataset_fn", dataset_fn, "a path to a data set")
        super().__init__(client_ids_to_files)
        self._files = dict(client_ids_to_files)
        self._dataset_fn = dataset_fn

    @property
    def is_in_files(self) -> bool:
        return True

    @classmethod
    def create_from_dir(
        cls, path: str | os.PathLike, create_tf_dataset_fn: Callable[[str], tf.data.Dataset] | None = None
    ) -> FilePerUserClientData:
        """Client data with a client for each file of a directory, named by the file.

        Args:
            path: the directory; directories in it are not searched.
            create_tf_dataset_fn: path -> data set. Default: `tf.data.TFRecordDataset`.
        Raises:
            FedcoreError: there is no such directory, or no file in it, or a file is a link out of the directory.
        """
        if not os.path.isdir(path):
            raise InvalidValue(f"FilePerUserClientData: there is no directory {os.path.abspath(path)}")
        files = {entry.name: entry.path for entry in os.scandir(os.fspath(path)) if entry.is_file()}
        root = os.path.realpath(path)
        outside = [name for name, file in files.items() if os.path.dirname(os.path.realpath(file)) != root]
        if outside:
            raise InvalidValue(
                f"FilePerUserClientData: {brief(outside[0])} is a link out of {root}; fix: name the files of clients "
                "yourself, by FilePerUserClientData({client_id: path})"
            )
        if not files:
            raise InvalidValue(f"FilePerUserClientData: there is no file in {os.path.abspath(path)}")
        return cls(files, create_tf_dataset_fn or _read_records)

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        import tensorflow as tf

        from fedcore.data import ClientDataset
        from fedcore.data.tf_data_end import is_endless
        from fedcore.runtime.clients.failures import reason

        path = self._files[self._require(client_id)]
        if self._dataset_fn in (_read_records, tf.data.TFRecordDataset) and (problem := _problem_of_records(path)):
            raise _unreadable(client_id, path, problem)
        dataset = self._dataset_fn(path)
        if is_endless(dataset):
            return dataset
        try:
            return ClientDataset.from_columns(rows_of(dataset))
        except InvalidValue:
            return dataset
        except tf.errors.OpError as error:
            raise _unreadable(client_id, path, reason(error)) from None

    def select(self, client_ids: Iterable[str]) -> FilePerUserClientData:
        return FilePerUserClientData({i: self._files[self._require(i)] for i in client_ids}, self._dataset_fn)


_RECORD_HEAD = struct.Struct("<QI")
"""The head of a record in a TFRecord file: the length of its data in bytes, and the checksum of that length."""

_CHECKSUM_BYTES = 4
"""Bytes of the checksum behind the data of a record."""


def _unreadable(client_id: str, path: str, problem: str) -> InvalidValue:
    return InvalidValue(f"FilePerUserClientData: client {brief(client_id)} cannot be read from {path}: {problem}")


def _problem_of_records(path: str) -> str | None:
    """Why a TFRecord file cannot be read; None if it can.

    A record is longer than the file, for which TensorFlow would end the process, or the file cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            bytes_left = os.fstat(file.fileno()).st_size
            while len(head := file.read(_RECORD_HEAD.size)) == _RECORD_HEAD.size:
                length, _ = _RECORD_HEAD.unpack(head)
                bytes_left -= _RECORD_HEAD.size + length + _CHECKSUM_BYTES
                if bytes_left < 0:
                    return f"a record has {length} bytes, which is longer than the file"
                file.seek(length + _CHECKSUM_BYTES, os.SEEK_CUR)
    except OSError as error:
        return error.strerror
    return None


def _read_records(path: str) -> tf.data.Dataset:
    import tensorflow as tf

    return tf.data.TFRecordDataset(path)

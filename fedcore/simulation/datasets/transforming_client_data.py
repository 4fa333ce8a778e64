"""Client data with transformed examples, possibly with several pseudo-clients for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.simulation.datasets.client_data import ClientData, python_id

if TYPE_CHECKING:
    import tensorflow as tf


class TransformingClientData(ClientData):
    """Client data whose examples are those of other client data, each transformed by a function of the client.

    Each client may stand for several pseudo-clients, with a transformation each.

    Args:
        base_client_data: the client data to transform.
        make_transform_fn: (pseudo-)client's id -> a function from an example to an example, as of `tf.data`'s `map`.
        expand_client_id: client's id -> the ids of its pseudo-clients. Default: its own id.
        reduce_client_id: pseudo-client's id -> its client's id. Given if and only if `expand_client_id` is.
    Raises:
        FedcoreError: `base_client_data` is no client data or has no clients, or only one of the functions of ids is
            given.
    Example:
        >>> data = TransformingClientData(
        ...     TestClientData({"a": [1, 2]}),
        ...     lambda client_id: lambda x: x * int(client_id[-1]),
        ...     expand_client_id=lambda client_id: [client_id + "-1", client_id + "-2"],
        ...     reduce_client_id=lambda client_id: client_id[:-2],
        ... )
        >>> data.client_ids, [int(x) for x in data.create_tf_dataset_for_client("a-2")]
        (['a-1', 'a-2'], [2, 4])
    """

    def __init__(
        self,
        base_client_data: ClientData,
        make_transform_fn: Callable[[str], Callable[[Any], Any]],
        expand_client_id: Callable[[str], Iterable[str]] | None = None,
        reduce_client_id: Callable[[str], str] | None = None,
    ) -> None:
        if not isinstance(base_client_data, ClientData):
            raise TypeMismatch(f"base_client_data is client data, not {brief(base_client_data)}")
        if (expand_client_id is None) != (reduce_client_id is None):
            raise InvalidValue("TransformingClientData takes both or neither of expand_client_id and reduce_client_id")
        ids = base_client_data.client_ids
        if not ids:
            raise InvalidValue("TransformingClientData: base_client_data has no clients")
        super().__init__(ids if expand_client_id is None else [new for i in ids for new in expand_client_id(i)])
        self._base = base_client_data
        self._make_transform_fn = make_transform_fn
        self._reduce_client_id = reduce_client_id

    @property
    def is_in_files(self) -> bool:
        return self._base.is_in_files

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        known_id = self._require(client_id)
        base_id = known_id if self._reduce_client_id is None else python_id(self._reduce_client_id(known_id))
        return self._base.create_tf_dataset_for_client(base_id).map(self._make_transform_fn(known_id))

    @property
    def serializable_dataset_fn(self) -> Callable[[str], tf.data.Dataset]:
        return self._in_graph

    def _in_graph(self, client_id: str | tf.Tensor) -> tf.data.Dataset:
        base_id = client_id if self._reduce_client_id is None else self._reduce_client_id(client_id)
        return self._base.serializable_dataset_fn(base_id).map(self._make_transform_fn(client_id))

"""Client data named by URIs, which a backend turns into data when a round reads them."""

import abc
import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import tensorflow as tf

from fedcore.context import Runtime
from fedcore.data import Cohort
from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.ir import Module
from fedcore.runtime.local import local
from fedcore.runtime.reports.report import Report
from fedcore.types import CLIENTS, FederatedType, Type, fits, to_type


@attrs.frozen
class Data:
    """The name of one client's data."""

    uri: str


class DataBackend(abc.ABC):
    """Turns URIs into data.

    Example:
        >>> class Shards(fc.framework.DataBackend):
        ...     async def materialize(self, data, type_spec):
        ...         return client_a if data.uri == 'shard://a' else client_b
    """

    @abc.abstractmethod
    async def materialize(self, data: Data, type_spec: Type) -> Any:
        """The data that `data.uri` names, as a client's value of the type `type_spec`.

        It is called whenever a stage of a call reads the client; equal URIs must give equal data within a call. A
        plain function may stand in place of a coroutine function. A coroutine runs in an event loop of its own.
        """


@attrs.frozen
class DataDescriptor:
    """Client data by URIs, one for each client: an argument of a computation where a client value is wanted."""

    uris: tuple[str, ...]
    type_signature: FederatedType

    def __len__(self) -> int:
        return len(self.uris)


def CreateDataDescriptor(arg_uris: Sequence[str], arg_type: object) -> DataDescriptor:
    """Client data by their URIs.

    Args:
        arg_uris: a URI for each client, in order.
        arg_type: the type of a client's data; a federated type's member.
    Raises:
        TypeMismatch: a URI is no text, or `arg_type` stands for no type.
    Example:
        >>> data = fc.framework.CreateDataDescriptor(['shard://a', 'shard://b'], fc.SequenceType(spec))
        >>> len(data)
        2
    """
    if isinstance(arg_uris, str) or not all(isinstance(uri, str) for uri in arg_uris):
        raise TypeMismatch(f"arg_uris is a list of texts, one for each client, not {brief(arg_uris)}")
    type_ = to_type(arg_type)
    member = type_.member if isinstance(type_, FederatedType) else type_
    return DataDescriptor(tuple(arg_uris), FederatedType(member, CLIENTS))


@attrs.frozen
class EagerTFExecutor:
    """A device on which clients run. Default: all GPUs, or all CPUs if there is no GPU."""

    device: tf.config.LogicalDevice | str | None = None


@attrs.frozen
class DataExecutor:
    """Clients on the device of an `EagerTFExecutor`, with data from a `DataBackend`."""

    target_executor: EagerTFExecutor
    data_backend: DataBackend


class _DataRuntime:
    """A runtime that passes calls on to another one, with each `DataDescriptor` as a cohort read from a backend."""

    def __init__(self, runtime: Runtime, backend: DataBackend) -> None:
        self.compiles = runtime.compiles
        self._runtime = runtime
        self._backend = backend

    @property
    def default_num_clients(self) -> int | None:
        return getattr(self._runtime, "default_num_clients", 0)

    @property
    def plan_options(self) -> Mapping[str, object]:
        return self._runtime.plan_options

    def run(self, module: Module, arguments: list, report: Report) -> Any:
        values = [
            self._cohort(value, parameter.type, parameter.name) if isinstance(value, DataDescriptor) else value
            for value, parameter in zip(arguments, module.main.parameters, strict=True)
        ]
        return self._runtime.run(module, values, report)

    def _cohort(self, data: DataDescriptor, type_: Type, name: str) -> Cohort:
        """The clients of an argument, each materialized when a stage reads it.

        Args:
            type_, name: of the parameter.
        Raises:
            TypeMismatch: the data's type does not fit the parameter's.
        """
        if not fits(data.type_signature, type_):
            raise TypeMismatch(f"{name} is of type {type_}, but its URIs name data of type {data.type_signature}")
        member = data.type_signature.member
        return Cohort(len(data), lambda index: _materialize(self._backend, Data(data.uris[index]), member))

    def close(self) -> None:
        self._runtime.close()


def _materialize(backend: DataBackend, data: Data, type_: Type) -> Any:
    """One client's data from a backend; runs the coroutine that the backend may return."""
    value: object = backend.materialize(data, type_)
    if not inspect.isawaitable(value):
        return value
    with ThreadPoolExecutor(1) as thread:  # this thread may run an event loop, as in notebooks
        return thread.submit(asyncio.run, _wait_for(value)).result()


async def _wait_for(value: Awaitable) -> Any:
    return await value


def local_executor_factory(
    default_num_clients: int | None = None,
    max_fanout: int = 100,
    *,
    leaf_executor_fn: Callable[[tf.config.LogicalDevice], DataExecutor | EagerTFExecutor] | None = None,
) -> Runtime:
    """A local runtime whose client data come from a backend; not installed.

    Args:
        default_num_clients: as `fc.runtime.local`.
        max_fanout: changes nothing: it is of TFF's tree of executors, and a local runtime is no tree.
        leaf_executor_fn: device -> the executor of the clients. It is called for the first GPU, or the first CPU if
            there is no GPU. Default: clients run on all devices, and there is no backend.
    Raises:
        FedcoreError: `leaf_executor_fn` gives no such executor.
    Example:
        >>> class Shards(fc.framework.DataBackend):
        ...     async def materialize(self, data, type_spec):
        ...         return {'shard://a': client_a, 'shard://b': client_b}[data.uri]
        >>> def leaf(device):
        ...     return fc.framework.DataExecutor(fc.framework.EagerTFExecutor(device), data_backend=Shards())
        >>> runtime = fc.framework.local_executor_factory(leaf_executor_fn=leaf)
        >>> data = fc.framework.CreateDataDescriptor(['shard://a', 'shard://b'], fc.SequenceType(spec))
        >>> with fc.use(runtime):
        ...     state, metrics = process.next(process.initialize(), data)
    """
    del max_fanout
    if leaf_executor_fn is None:
        return local(default_num_clients=default_num_clients)
    device = (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))[0]
    leaf = leaf_executor_fn(device)
    executor = leaf.target_executor if isinstance(leaf, DataExecutor) else leaf
    if not isinstance(executor, EagerTFExecutor):
        raise FedcoreError(f"leaf_executor_fn gives a DataExecutor or an EagerTFExecutor, not {brief(leaf)}")
    devices = None if executor.device is None else [executor.device]
    runtime = local(client_devices=devices, default_num_clients=default_num_clients)
    return _DataRuntime(runtime, leaf.data_backend) if isinstance(leaf, DataExecutor) else runtime


__all__ = [
    "CreateDataDescriptor",
    "Data",
    "DataBackend",
    "DataDescriptor",
    "DataExecutor",
    "EagerTFExecutor",
    "local_executor_factory",
]

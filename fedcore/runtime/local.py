"""The local runtime: a server device, client devices, and the executors over them."""

import functools
import os
from collections.abc import Sequence

import tensorflow as tf

from fedcore.data import columns_of
from fedcore.errors import FedcoreError
from fedcore.ir import Module
from fedcore.runtime.arguments import prepare, restore
from fedcore.runtime.clients import ClientsExecutor
from fedcore.runtime.device import DeviceExecutor
from fedcore.runtime.metering import meter
from fedcore.runtime.plan_executor import PlanExecutor
from fedcore.runtime.report import Report
from fedcore.runtime.returned import returned
from fedcore.types import FederatedType, StructType, Type


class LocalRuntime:
    """Runs plans on the devices of this machine.

    Guarantees:
      - Threads are fixed when the runtime is made: `workers_per_device` for each client device.
      - Same plan, arguments and seed: same bits, for any number of workers and devices of one kind.
    """

    compiles = True

    def __init__(
        self,
        server_device: str | None = None,
        client_devices: Sequence[str] | None = None,
        workers_per_device: int | None = None,
    ):
        devices = list(client_devices) if client_devices else [_default_device()]
        if workers_per_device is not None and workers_per_device < 1:
            raise FedcoreError(f"workers_per_device is at least 1, not {workers_per_device}")
        workers = workers_per_device or max(1, (os.cpu_count() or 1) // len(devices))
        server = DeviceExecutor(server_device or _default_device())
        self._clients = ClientsExecutor([DeviceExecutor(d) for d in devices], workers)
        self._plans = PlanExecutor(server, self._clients)

    def run(self, module: Module, arguments: list, report: Report):
        """The result of a planned module as the user sees it."""
        main = module.main
        sequence = functools.partial(columns_of, note=report.note)
        values = [prepare(v, p.type, p.name, sequence) for v, p in zip(arguments, main.parameters, strict=True)]
        result = self._plans.run(module, module.digest(), values, report)
        meter(module, report)
        return restore(_to_numpy(result, main.result_type), main.result_type)

    def close(self) -> None:
        """Ends the worker threads."""
        self._clients.close()


def local(
    server_device: str | None = None,
    client_devices: Sequence[str] | None = None,
    workers_per_device: int | None = None,
) -> LocalRuntime:
    """The runtime over this machine's devices.

    Args:
        server_device: where the server's stages run. Default: the first GPU, else the CPU.
        client_devices: where clients run. Default: the server's.
        workers_per_device: calls in flight on each client device. Default: the machine's cores, shared out.
    Example:
        >>> with fc.use(fc.runtime.local(workers_per_device=4)): ...
    """
    return LocalRuntime(server_device, client_devices, workers_per_device)


def _default_device() -> str:
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[0].name if gpus else "/device:CPU:0"


def _to_numpy(value, type_: Type):
    if isinstance(type_, FederatedType) and type_.placement.name == "CLIENTS" and not type_.all_equal:
        return [_to_numpy(v, type_.member) for v in value]
    if isinstance(type_, FederatedType):
        return _to_numpy(value, type_.member)
    if isinstance(type_, StructType):
        return tuple(_to_numpy(v, t) for v, t in zip(value, type_.types, strict=True))
    return _leaf(value)


def _leaf(value):
    return returned.show(value) if isinstance(value, tf.Tensor) else value

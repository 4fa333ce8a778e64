"""The local runtime: a server device and a clients executor, by default over this machine's devices."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.collection_pause import without_collection
from fedcore.data import columns_of
from fedcore.errors import FedcoreError, brief
from fedcore.graphs.tensors.intra_op_threads import set_intra_op_threads
from fedcore.graphs.tensors.returned import returned
from fedcore.ir import Module
from fedcore.ir.target import parse_target
from fedcore.processor import has_bfloat16_products
from fedcore.runtime.arguments import ClientValues, prepare, restore
from fedcore.runtime.clients.blocked import blocked_threads
from fedcore.runtime.clients.faults import Drop
from fedcore.runtime.clients.memory_budget import memory_budget
from fedcore.runtime.clients.protocols import ClientsExecutor, check_clients_executor
from fedcore.runtime.clients.sliced_executor import LocalClientsExecutor
from fedcore.runtime.devices.device import DeviceExecutor, default_devices, device_name
from fedcore.runtime.devices.executable_cache import ExecutableCache
from fedcore.runtime.plan_executor import PlanExecutor
from fedcore.runtime.reports.metering import meter
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.settings import Masked, settings_of
from fedcore.runtime.stopping import current_stop
from fedcore.scalars import python_scalar, whole_number
from fedcore.site_value import SiteValue
from fedcore.types import FederatedType, StructType, Type


class LocalRuntime:
    """Runs plans: server stages on a device of this process, client stages by a `ClientsExecutor`.

    Guarantees:
      - The numbers of threads are fixed when the runtime is made: one for the server, and the executor's.
      - Equal plans, arguments and seeds give equal bits, for any number of workers and of devices of one kind.

    Args:
        server: runs the server stages.
        clients: runs the client stages; closed with the runtime.
        plan_options: options of the pass `plan`, for plans that are compiled for this runtime.
        notes: notes that every report gets.
        default_num_clients: number of clients of a call without client arguments; None if it is not known.
    """

    compiles = True

    def __init__(
        self,
        server: DeviceExecutor,
        clients: ClientsExecutor,
        plan_options: Mapping[str, object],
        notes: Sequence[str] = (),
        default_num_clients: int | None = None,
    ) -> None:
        self.default_num_clients = default_num_clients
        self.plan_options = dict(plan_options)
        self._notes = tuple(notes)
        self._clients = clients
        self._sent: set[str] = set()  # digests of the constants that clients have, see `meter`
        self._plans = PlanExecutor(server, clients, default_num_clients)

    @property
    def client_devices(self) -> list[DeviceExecutor]:
        """The devices of this process that run clients; empty if the clients executor has no such devices."""
        return getattr(self._clients, "devices", [])

    def run(self, module: Module, arguments: list, report: Report) -> Any:
        """The result of a planned module, in the containers of its type."""
        if not tf.executing_eagerly():  # the caller is a signal handler that runs while a graph is traced
            with tf.init_scope():
                return self.run(module, arguments, report)
        for note in self._notes:
            report.note(note)
        main = module.main
        to_columns = functools.partial(columns_of, note=report.note)
        with report.span("arguments", main.name):
            values = [prepare(v, p.type, p.name, to_columns) for v, p in zip(arguments, main.parameters, strict=True)]
        try:
            with current_stop() as stop:
                result = self._plans.run(module, module.digest(), values, report, stop)
        finally:
            blocked = blocked_threads.describe()
            if blocked:
                report.note(blocked)
        with report.span("results", main.name), without_collection():  # one value or more for each client
            meter(module, report, self._sent)
            return restore(_to_numpy(result, main.result_type), main.result_type)

    def close(self) -> None:
        """Ends the worker threads."""
        self._clients.close()
        self._plans.close()


def local(
    server_device: str | tf.config.LogicalDevice | None = None,
    client_devices: Sequence | None = None,
    workers_per_device: int | None = None,
    *,
    memory_bytes: int | None = None,
    block_size: int | str = "auto",
    vectorize: int | bool | str = "auto",
    xla: bool | str = "auto",
    low_rank: bool | str = "auto",
    compute_dtype: str = "float32",
    intra_op_threads: int | None = None,
    deterministic: bool = False,
    on_client_failure: str | Drop = "raise",
    client_timeout_s: float | None = None,
    default_num_clients: int | None = None,
    clients_executor: ClientsExecutor | None = None,
    secure_aggregation: str | Masked | None = None,
    target: str | None = None,
) -> LocalRuntime:
    """The runtime over this machine's devices.

    Args:
        server_device: device of the server stages, such as `"GPU:0"` or a `tf.config.LogicalDevice`. Default: the first
            GPU, else the first CPU.
        client_devices: devices of the client stages. Default: all logical GPUs, or all CPUs if there is no GPU.
        workers_per_device: calls in flight on each client device. Default: the machine's cores divided by the devices.
        memory_bytes: bytes that the clients' work may take at once, on all client devices together: broadcasts,
            partial sums, the data of the clients in calls, and their computation, as far as shapes tell; not what else
            the process holds, nor servers' stages. Where the plan's calls need more, groups get narrower, calls
            shorter, fewer run at once, and last clients run one by one; the report's `memory` and `notes` say so. Bits
            stay. If one client does not fit, the call raises ExecutionError. Default: three quarters of the memory of
            this machine or of its control group, then without that error; no limit on GPUs.
        block_size: clients of a block, which are folded in order; it decides the bits. Default: 8 for vectorised
            stages, else 1.
        vectorize: number of clients that one graph computes at once, 2 or more; False for none. Default: decided by
            shapes.
        xla: True compiles client stages without convolutions, loops and random numbers by XLA; a stage that is not
            vectorised, again for every size of a batch. Default: False, since XLA gains nothing on CPUs; `fedcore tune`
            measures it.
        low_rank: False keeps a dense copy of every weight for each client. Default: kernels of large dense layers that
            gradient descent trains are kept as the shared kernel plus factors of low rank, decided by shapes; it is
            faster and gives other bits. A plan shows the rank as `low_rank`. Of embeddings of 8 MiB and more that plain
            gradient descent trains, clients keep the rows that they change; a plan shows `table_rows`.
        compute_dtype: `"bfloat16"` computes float32 products (dense layers, convolutions, `einsum`) in bfloat16 in the
            clients' training and evaluation, gradients and metrics included: operands and results are rounded, sums
            within a product are float32, and so is all else. It turns off XLA and low-rank kernels in such stages. It
            is faster for convolutions on processors with bfloat16 instructions, and slower on others: see
            docs/performance.md. A plan shows it as `compute_dtype`. Default: no rounding.
        intra_op_threads: threads of one operation, in the whole process; the number decides bits. Default:
            FEDCORE_INTRA_OP_THREADS, else 1. A number that was set before the import of fedcore, or that TensorFlow has
            started with, is not changed; the report then has a note.
        deterministic: asks TensorFlow for operations that give equal bits in every run on a GPU. They are slower. This
            holds for the whole process.
        on_client_failure: `"raise"` raises ClientError, which names the client; a float that is not finite is then no
            failure. `fc.runtime.drop()` drops clients that fail.
        client_timeout_s: seconds that reading a client's data may take, and seconds that its graph may take. The
            clients of one graph call have the sum of their seconds; if the call exceeds it, each client runs alone.
            Tracing and compiling do not count. A graph that exceeds its seconds is cancelled. Python code that still
            waits for data cannot be ended; the message names its thread. Default: no deadline.
        default_num_clients: number of clients of a computation that has values at CLIENTS, but no client value among
            its arguments. Default: such a call is an error.
        clients_executor: runs the client stages instead of devices of this process. The executor then decides devices,
            workers, memory, failures, deadlines and secure sums: `client_devices`, `workers_per_device`,
            `memory_bytes`, `on_client_failure`, `client_timeout_s` and `secure_aggregation` are refused. If it has a
            protocol of secure sums (the argument `secure` of `fc.runtime.SlicedClientsExecutor`), stages with secure
            sums run client by client. It is closed with the runtime. Default: the devices of this process.
        secure_aggregation: `"masked"` or `fc.runtime.masked(...)` runs secure sums (`fc.federated_secure_sum`,
            `fc.aggregators.SecureSumFactory`) by a protocol with masks: the server object gets their sums only; stages
            with secure sums then run client by client. Needs the extra `secure`. Default: they are added as other sums.
        target: kind of machine whose shape rules plans follow, such as `"avx2/small-l2/slow-memory/no-gpu"`; it fixes
            strategies, and so bits, on other machines too. See docs/performance.md. Default: FEDCORE_TARGET, else this
            machine's.
    Raises:
        FedcoreError: a setting is out of its range; the message has the range.
        TypeMismatch: `clients_executor` is no `fc.runtime.ClientsExecutor`.
    Example:
        >>> with fc.use(fc.runtime.local(workers_per_device=4)): ...
    """
    if clients_executor is not None:
        check_clients_executor(clients_executor)
        _check_left_to_executor(
            client_devices, workers_per_device, memory_bytes, on_client_failure, client_timeout_s, secure_aggregation
        )
    if workers_per_device is not None:
        workers_per_device = whole_number("workers_per_device", workers_per_device, at_least=1)
    if memory_bytes is not None:
        memory_bytes = whole_number("memory_bytes", memory_bytes, at_least=1)
    if client_devices is not None and (isinstance(client_devices, str) or not list(client_devices)):
        raise FedcoreError(f"client_devices is a list of one device or more, not {brief(client_devices)}")
    if default_num_clients is not None:
        default_num_clients = whole_number("default_num_clients", default_num_clients, at_least=0)
    options = _plan_options(*map(python_scalar, (block_size, vectorize, xla, low_rank)))
    if not isinstance(compute_dtype, str) or compute_dtype not in ("float32", "bfloat16"):
        raise FedcoreError(f"compute_dtype is 'float32' or 'bfloat16', not {brief(compute_dtype)}")
    if compute_dtype != "float32":
        options["compute_dtype"] = compute_dtype
    if target is not None:
        options["target"] = str(parse_target(target))
    secure = settings_of(secure_aggregation)
    if secure is not None or getattr(clients_executor, "secure", None) is not None:
        options["secure"] = "masked"
    policy, timeout_s = client_settings(on_client_failure, client_timeout_s)
    note = set_intra_op_threads(intra_op_threads)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    server = device_name(server_device, "server_device") if server_device is not None else default_devices()[0]
    executables = ExecutableCache()
    if clients_executor is None:
        names = [device_name(d, "client_devices") for d in client_devices] if client_devices else default_devices()
        workers = workers_per_device or default_workers(len(names))
        devices = [DeviceExecutor(name, executables) for name in names]
        budget = memory_budget(memory_bytes, names)
        clients_executor = LocalClientsExecutor(devices, workers, policy, timeout_s, secure, budget)
    notes = [note] if note else []
    if "compute_dtype" in options and not has_bfloat16_products():
        notes.append(BFLOAT16_NOTE)
    return LocalRuntime(DeviceExecutor(server, executables), clients_executor, options, notes, default_num_clients)


def _check_left_to_executor(
    client_devices: object,
    workers_per_device: object,
    memory_bytes: object,
    on_client_failure: object,
    client_timeout_s: object,
    secure_aggregation: object,
) -> None:
    """Refuses the settings that a clients executor decides, if they are not the defaults of `local`."""
    settings = {
        "client_devices": client_devices,
        "workers_per_device": workers_per_device,
        "memory_bytes": memory_bytes,
        "on_client_failure": None if on_client_failure == "raise" else on_client_failure,  # "raise" is the default
        "client_timeout_s": client_timeout_s,
        "secure_aggregation": secure_aggregation,
    }
    names = [name for name, value in settings.items() if value is not None]
    if names:
        raise FedcoreError(f"{' and '.join(names)}: clients_executor is given, so its own settings hold for clients")


def default_workers(devices: int) -> int:
    """The default number of workers of a client device: the machine's cores divided by the number of devices."""
    return max(1, (os.cpu_count() or 1) // devices)


def _plan_options(block_size: Any, vectorize: Any, xla: Any, low_rank: Any) -> dict[str, object]:
    """Options of the pass `plan`; a setting `"auto"` gives no option.

    Raises:
        FedcoreError: a setting is out of its range.
    """
    if not _is_auto(block_size) and not (_is_whole(block_size) and block_size >= 1):
        raise FedcoreError(f"block_size is 'auto' or a number of clients, 1 or more, not {brief(block_size)}")
    if not _is_auto(vectorize) and vectorize is not False and not (_is_whole(vectorize) and vectorize >= 2):
        raise FedcoreError(f"vectorize is 'auto', False or a number of clients, 2 or more, not {brief(vectorize)}")
    if not _is_auto(xla) and not isinstance(xla, bool):
        raise FedcoreError(f"xla is 'auto', True or False, not {brief(xla)}")
    if not _is_auto(low_rank) and low_rank is not False:
        raise FedcoreError(f"low_rank is 'auto' or False, not {brief(low_rank)}")
    options = {"block_size": block_size, "vectorize": vectorize, "xla": xla, "low_rank": low_rank}
    return {name: value for name, value in options.items() if value != "auto"}


BFLOAT16_NOTE = "compute_dtype='bfloat16': the processor has no instructions for products of bfloat16, so it is slower"


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == "auto"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def client_settings(on_client_failure: str | Drop, client_timeout_s: Any) -> tuple[Drop | None, float | None]:
    """(fault policy, deadline in seconds) of clients, from the user's settings; None is no policy or no deadline.

    Raises:
        FedcoreError: a setting is out of its range.
    """
    policy = on_client_failure if isinstance(on_client_failure, Drop) else None
    if policy is None and not (isinstance(on_client_failure, str) and on_client_failure == "raise"):
        raise FedcoreError(f"on_client_failure is 'raise' or fc.runtime.drop(), not {brief(on_client_failure)}")
    seconds = python_scalar(client_timeout_s)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and seconds > 0):
        raise FedcoreError(f"client_timeout_s is a number of seconds greater than 0, not {brief(seconds)}")
    return policy, seconds


def _to_numpy(value: Any, type_: Type) -> Any:
    """A result with arrays and numpy scalars in the place of tensors, and lists in the place of `ClientValues`."""
    if isinstance(value, SiteValue):
        return value
    if isinstance(value, ClientValues) and isinstance(type_, FederatedType):
        return [None if v is None else _to_numpy(v, type_.member) for v in value]
    if isinstance(type_, FederatedType):
        return _to_numpy(value, type_.member)
    if isinstance(type_, StructType):
        return tuple([_to_numpy(v, t) for v, t in zip(value, type_.types, strict=True)])
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, tf.Tensor):
        return returned.show(value)
    # An array of rank 0 is a client's scalar that the plan returns unchanged.
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value

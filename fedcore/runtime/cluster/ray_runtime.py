"""`fc.runtime.ray`: the local runtime with clients on a Ray cluster.

Decision 0164.
"""

import functools
import os
from typing import TYPE_CHECKING, Any

from fedcore.errors import FedcoreError, brief
from fedcore.runtime.clients.faults import Drop
from fedcore.runtime.local import LocalRuntime, client_settings, local
from fedcore.runtime.secure.settings import Masked, settings_of
from fedcore.scalars import python_scalar, whole_number

if TYPE_CHECKING:
    import tensorflow as tf

CACHE_BYTES = 2**30
"""Default of `cache_bytes`."""


def ray(
    address: str | None = None,
    num_workers: int | None = None,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    *,
    server_device: "str | tf.config.LogicalDevice | None" = None,
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
    cache_bytes: int = CACHE_BYTES,
    target: str | None = None,
    secure_aggregation: str | Masked | None = None,
) -> LocalRuntime:
    """The runtime over a Ray cluster: server stages run here, client stages on the cluster's workers.

    The bits are those of `fc.runtime.local()`, for any number of workers and nodes with the driver's instruction set
    and versions; `last_report().notes` says what differs. A worker that ends is replaced, and its clients are computed
    by another one. With `num_workers=None` the cluster's nodes may come and go between the stages.

    Clients' arrays travel once to each worker, which keeps them by digest. Clients of `client_data.cohort(ids)` are
    opened on the workers if the data are in files. See docs/scaling.md.

    Args:
        address: address of a cluster, such as `"auto"` or `"10.0.0.1:6379"`. Default: the variable RAY_ADDRESS; else a
            cluster on this machine, which ends with the runtime. A process that has called `ray.init` stays with its
            cluster.
        num_workers: number of workers. Default: as many as the nodes have room for, and at least one.
        cpus_per_worker: cores that Ray reserves for a worker.
        gpus_per_worker: GPUs that Ray reserves for a worker; a worker with a GPU computes on it.
        on_client_failure, client_timeout_s: as for `fc.runtime.local`. The deadline holds on the workers.
        memory_bytes: as for `fc.runtime.local`, for each worker. Default: three quarters of the memory of its node, or
            control group, times the part of its cores that the worker reserves.
        cache_bytes: bytes of clients' arrays that each worker keeps.
        secure_aggregation: as for `fc.runtime.local`. Workers send the partial of each client to this process, which
            masks it: this simulates the protocol, and hides nothing from the cluster.
        server_device, block_size, vectorize, xla, low_rank, compute_dtype, intra_op_threads, deterministic,
            default_num_clients: as for `fc.runtime.local`. Workers have the driver's number of intra-op threads.
        target: as for `fc.runtime.local`. Workers run the driver's plans, whatever machines they are on.
    Raises:
        FedcoreError: a setting is out of its range, the extra `ray` is not installed, or there is no cluster.
    Example:
        >>> with fc.use(fc.runtime.ray(num_workers=4)): ...
    """
    if num_workers is not None:
        num_workers = whole_number("num_workers", num_workers, at_least=1)
    cpus = _amount("cpus_per_worker", cpus_per_worker)
    gpus = _amount("gpus_per_worker", gpus_per_worker)
    if not cpus and not gpus:
        raise FedcoreError("cpus_per_worker and gpus_per_worker are both 0: a worker needs one of them")
    if memory_bytes is not None:
        memory_bytes = whole_number("memory_bytes", memory_bytes, at_least=1)
    cache_bytes = whole_number("cache_bytes", cache_bytes, at_least=0)
    policy, timeout_s = client_settings(on_client_failure, client_timeout_s)
    secure = settings_of(secure_aggregation)
    try:
        from fedcore.runtime.cluster import connection
    except ImportError as error:
        raise FedcoreError("fc.runtime.ray needs Ray: pip install 'fedcore[ray]'") from error
    from fedcore.runtime.cluster.executor import RayClientsExecutor
    from fedcore.runtime.cluster.members import Settings

    disconnect = connection.connect(address, max(os.cpu_count() or 1, int((num_workers or 1) * cpus)))
    settings = Settings(
        num_workers, cpus, gpus, policy, secure is not None, timeout_s, memory_bytes, deterministic, cache_bytes
    )
    make = functools.partial(
        local,
        server_device,
        block_size=block_size,
        vectorize=vectorize,
        xla=xla,
        low_rank=low_rank,
        compute_dtype=compute_dtype,
        intra_op_threads=intra_op_threads,
        deterministic=deterministic,
        default_num_clients=default_num_clients,
        target=target,
    )
    try:
        return make(clients_executor=RayClientsExecutor(settings, secure, disconnect))
    except BaseException:
        disconnect()
        raise


def _amount(name: str, value: Any) -> float:
    """The number of a resource, which may be a fraction. Raises FedcoreError if it is no number, or negative."""
    number = python_scalar(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < float("inf"):
        raise FedcoreError(f"{name} is a number, 0 or more, not {brief(value)}")
    return number

"""`fc.backends.native`: the local runtime, installed as the tutorials do it."""

from collections.abc import Sequence

from fedcore import context
from fedcore.runtime.device import default_devices
from fedcore.runtime.local import LocalRuntime, default_workers, local
from fedcore.scalars import whole_number


def set_local_python_execution_context(
    server_tf_device=None,
    client_tf_devices: Sequence = (),
    clients_per_thread: int = 1,
    max_fanout: int = 100,
    default_num_clients: int | None = None,
) -> None:
    """Installs a local runtime for the whole process.

    Args:
        server_tf_device: a `tf.config.LogicalDevice` or its name. Default: the first GPU, else the first CPU.
        client_tf_devices: those that clients run on. Default: all GPUs, else all CPUs.
        clients_per_thread: n divides the calls in flight on each device by n, down to one; memory goes with them.
        max_fanout: of TFF's tree of executors, which is not there; 2 or more, and changes nothing.
        default_num_clients: as `fc.runtime.local`. Default: a call that needs it is an error; TFF has no clients then.
    Raises:
        FedcoreError: a setting that cannot be.
    Example:
        >>> gpus = tf.config.list_logical_devices('GPU')
        >>> fc.backends.native.set_local_python_execution_context(client_tf_devices=gpus, clients_per_thread=2)
    """
    clients_per_thread = whole_number("clients_per_thread", clients_per_thread, at_least=1)
    whole_number("max_fanout", max_fanout, at_least=2)
    devices = list(client_tf_devices) or default_devices()
    workers = max(1, default_workers(len(devices)) // clients_per_thread)
    context.set_runtime(local(server_tf_device, devices, workers, default_num_clients=default_num_clients))


set_local_execution_context = set_local_python_execution_context


def create_async_local_cpp_execution_context(
    default_num_clients: int | None = None,
    max_concurrent_computation_calls: int = -1,
    stream_structs: bool = False,
) -> LocalRuntime:
    """A local runtime, for `fc.program.NativeFederatedContext`.

    Args:
        default_num_clients: as `fc.runtime.local`.
        max_concurrent_computation_calls, stream_structs: of TFF's executors, which are not there; change nothing.
    Example:
        >>> context = fc.backends.native.create_async_local_cpp_execution_context()
        >>> fc.framework.set_default_context(fc.program.NativeFederatedContext(context))
    """
    return local(default_num_clients=default_num_clients)


__all__ = [
    "create_async_local_cpp_execution_context",
    "set_local_execution_context",
    "set_local_python_execution_context",
]

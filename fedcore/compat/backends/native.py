"""`fc.backends.native`: the local runtime, installed as the tutorials do it."""

from collections.abc import Sequence

from fedcore import context
from fedcore.errors import FedcoreError
from fedcore.runtime.device import default_devices
from fedcore.runtime.local import default_workers, local


def set_local_python_execution_context(
    server_tf_device=None,
    client_tf_devices: Sequence = (),
    clients_per_thread: int = 1,
    max_fanout: int = 100,
) -> None:
    """Installs a local runtime for the whole process.

    Args:
        server_tf_device: a `tf.config.LogicalDevice` or its name. Default: the first GPU, else the first CPU.
        client_tf_devices: those that clients run on. Default: all GPUs, else all CPUs.
        clients_per_thread: n divides the calls in flight on each device by n, down to one; memory goes with them.
        max_fanout: of TFF's tree of executors, which is not there; 2 or more, and changes nothing.
    Raises:
        FedcoreError: a setting that cannot be.
    Example:
        >>> gpus = tf.config.list_logical_devices('GPU')
        >>> fc.backends.native.set_local_python_execution_context(client_tf_devices=gpus, clients_per_thread=2)
    """
    for name, given, least in (("clients_per_thread", clients_per_thread, 1), ("max_fanout", max_fanout, 2)):
        if not isinstance(given, int) or isinstance(given, bool) or given < least:
            raise FedcoreError(f"{name} is a whole number, {least} or more, not {given!r}")
    devices = list(client_tf_devices) or default_devices()
    workers = max(1, default_workers(len(devices)) // clients_per_thread)
    context.set_runtime(local(server_tf_device, devices, workers))


set_local_execution_context = set_local_python_execution_context

__all__ = ["set_local_execution_context", "set_local_python_execution_context"]

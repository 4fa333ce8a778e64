"""`fc.backends.native`: the local runtime, installed as the tutorials do it."""

from collections.abc import Awaitable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedcore import context
from fedcore.computation import Computation, invoke_async
from fedcore.errors import TypeMismatch, brief
from fedcore.ir import Module
from fedcore.runtime import Report
from fedcore.runtime.devices.device import default_devices
from fedcore.runtime.local import LocalRuntime, default_workers, local
from fedcore.scalars import whole_number
from fedcore.tff_names import tff_names

if TYPE_CHECKING:
    import tensorflow as tf


def set_local_python_execution_context(
    server_tf_device: "str | tf.config.LogicalDevice | None" = None,
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


def transform_to_native_form(
    comp: Computation, transform_math_to_tf: bool = False, grappler_config: object = None
) -> Computation:
    """The computation, compiled: a call runs its plan as it is, and `fc.save` stores the plan.

    Args:
        transform_math_to_tf: changes nothing: all arithmetic of a plan is in graphs.
        grappler_config: changes nothing: TensorFlow optimises graphs when it loads them.
    Raises:
        TypeMismatch: `comp` is no computation with types.
    Example:
        >>> compiled = fc.backends.native.transform_to_native_form(process.next)
        >>> compiled.module.stage
        'planned'
    """
    if not isinstance(comp, Computation):
        raise TypeMismatch(f"{brief(comp)} is no computation with types")
    return Computation(comp.to_module("planned"), comp.__name__)


def desugar_and_transform_to_native(comp: Computation) -> Computation:
    """Equivalent to `transform_to_native_form`, which replaces derived intrinsics too."""
    return transform_to_native_form(comp)


def create_sync_local_cpp_execution_context(
    default_num_clients: int | None = None,
    max_concurrent_computation_calls: int = -1,
    stream_structs: bool = False,
) -> LocalRuntime:
    """A local runtime.

    Args:
        default_num_clients: as `fc.runtime.local`. Default: a call that needs it is an error; TFF has no clients then.
        max_concurrent_computation_calls: calls in flight on each device. Default, and for numbers below 1: the cores
            divided by the devices.
        stream_structs: of TFF's executors, which are not there; changes nothing.
    Raises:
        FedcoreError: a setting that cannot be.
    Example:
        >>> context = fc.backends.native.create_sync_local_cpp_execution_context(default_num_clients=3)
        >>> fc.framework.set_default_context(context)
    """
    calls = whole_number("max_concurrent_computation_calls", max_concurrent_computation_calls)
    return local(workers_per_device=calls if calls > 0 else None, default_num_clients=default_num_clients)


def set_sync_local_cpp_execution_context(
    default_num_clients: int | None = None,
    max_concurrent_computation_calls: int = -1,
    stream_structs: bool = False,
) -> None:
    """Installs `create_sync_local_cpp_execution_context` for the whole process."""
    context.set_runtime(
        create_sync_local_cpp_execution_context(default_num_clients, max_concurrent_computation_calls, stream_structs)
    )


class AwaitedCalls:
    """A runtime whose calls are awaited: each returns an awaitable, which runs the call on another runtime.

    Guarantees:
      - A call runs when it is awaited, and does not block the event loop.
      - The awaited result is the result on the other runtime, of the seed of the call.
    """

    compiles = False  # the runtime below compiles
    defers = True
    plan_options: Mapping[str, object] = MappingProxyType({})

    def __init__(self, runtime: context.Runtime) -> None:
        self._runtime = runtime

    @property
    def default_num_clients(self) -> int | None:
        return getattr(self._runtime, "default_num_clients", 0)

    def run(self, module: Module, arguments: list, report: Report) -> Awaitable:
        return self._call(module, arguments, report.seed)

    async def _call(self, module: Module, arguments: list, seed: int) -> Any:
        with context.use(self._runtime):
            return await invoke_async(Computation(module), *arguments, seed=seed)

    def close(self) -> None:
        self._runtime.close()


def set_async_local_cpp_execution_context(
    default_num_clients: int | None = None,
    max_concurrent_computation_calls: int = -1,
    stream_structs: bool = False,
) -> None:
    """Installs a local runtime for the whole process, on which calls are awaited: `await computation(argument)`.

    The arguments are those of `create_sync_local_cpp_execution_context`.
    """
    context.set_runtime(
        AwaitedCalls(
            create_async_local_cpp_execution_context(
                default_num_clients, max_concurrent_computation_calls, stream_structs
            )
        )
    )


def create_async_local_cpp_execution_context(
    default_num_clients: int | None = None,
    max_concurrent_computation_calls: int = -1,
    stream_structs: bool = False,
) -> LocalRuntime:
    """A local runtime, for `fc.program.NativeFederatedContext`.

    The arguments are those of `create_sync_local_cpp_execution_context`, and the runtime is the same: a call of it is
    awaited by `fc.invoke_async`.

    Example:
        >>> context = fc.backends.native.create_async_local_cpp_execution_context()
        >>> fc.framework.set_default_context(fc.program.NativeFederatedContext(context))
    """
    return create_sync_local_cpp_execution_context(
        default_num_clients, max_concurrent_computation_calls, stream_structs
    )


__all__ = [
    "AwaitedCalls",
    "create_async_local_cpp_execution_context",
    "create_sync_local_cpp_execution_context",
    "desugar_and_transform_to_native",
    "set_async_local_cpp_execution_context",
    "set_local_execution_context",
    "set_local_python_execution_context",
    "set_sync_local_cpp_execution_context",
    "transform_to_native_form",
]

__getattr__ = tff_names("fedcore.backends.native")

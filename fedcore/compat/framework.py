"""`fc.framework`: sizes of what crosses between server and clients, and data backends, by TFF's names."""

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fedcore.compat.backends.native import create_sync_local_cpp_execution_context as local_cpp_executor_factory
from fedcore.compat.data_backend import (
    CreateDataDescriptor,
    DataBackend,
    DataDescriptor,
    DataExecutor,
    EagerTFExecutor,
    local_executor_factory,
)
from fedcore.compiler.disclosures import disclosures, has_secure_sums
from fedcore.computation import Computation
from fedcore.computation.computation import type_of
from fedcore.context import Runtime, current_runtime, use
from fedcore.context import set_runtime as set_default_context
from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.intrinsics.crossings import Crossing
from fedcore.ir import Module
from fedcore.runtime.reports.report import Report
from fedcore.tff_names import tff_names
from fedcore.types import Type


@attrs.frozen
class SizeInfo:
    """Traffic of the calls so far that sent anything, such as the rounds of training.

    Args:
        broadcast_history: for each call the tensors that the server sent: `type`, `clients`, and `bits` over all of
            these; `tensor` names each.
        aggregate_history: those that the clients sent.
        broadcast_bits: after each call the sum of all bits until then: the last is the whole run's, in bits. A bool
            counts 1 bit, a string 8 a byte.
        aggregate_bits: likewise.
    """

    broadcast_history: tuple[tuple[Crossing, ...], ...] = ()
    aggregate_history: tuple[tuple[Crossing, ...], ...] = ()
    broadcast_bits: tuple[int, ...] = ()
    aggregate_bits: tuple[int, ...] = ()

    def after(self, report: Report) -> "SizeInfo":
        """With one more call."""
        broadcasts, merges = (tuple(c for c in report.crossings if c.kind == kind) for kind in ("broadcast", "merge"))
        return SizeInfo(
            (*self.broadcast_history, broadcasts),
            (*self.aggregate_history, merges),
            (*self.broadcast_bits, report.broadcast_bits + (self.broadcast_bits or (0,))[-1]),
            (*self.aggregate_bits, report.aggregate_bits + (self.aggregate_bits or (0,))[-1]),
        )


class SizingEnvironment:
    """A runtime that passes calls on to another, and keeps what crossed in each.

    Guarantees:
      - Sizes are exact, over all clients, for every tensor and call; calls from several threads are all counted.
      - A call that fails counts nothing.
    """

    compiles = True

    def __init__(self, runtime: Runtime) -> None:
        if not runtime.compiles:
            raise FedcoreError(f"{type(runtime).__name__} runs no plans, which say what crosses: take fc.runtime.local")
        self._runtime = runtime
        self._sizes = SizeInfo()
        self._lock = threading.Lock()

    @property
    def default_num_clients(self) -> int | None:
        return getattr(self._runtime, "default_num_clients", 0)

    @property
    def plan_options(self) -> Mapping[str, object]:
        return self._runtime.plan_options

    def run(self, module: Module, arguments: list, report: Report) -> Any:
        result = self._runtime.run(module, arguments, report)
        if report.crossings:
            with self._lock:
                self._sizes = self._sizes.after(report)
        return result

    def close(self) -> None:
        self._runtime.close()

    def get_size_info(self) -> SizeInfo:
        """The traffic of the calls that have ended."""
        with self._lock:
            return self._sizes


def sizing_executor_factory() -> SizingEnvironment:
    """The current runtime, with its sizes kept; not installed."""
    return SizingEnvironment(current_runtime())


def set_sizing_environment() -> SizingEnvironment:
    """Installs the current runtime as one that keeps what crosses, for the whole process.

    Raises:
        FedcoreError: the current runtime is the reference, which has no plans.
    Example:
        >>> env = fc.framework.set_sizing_environment()
        >>> state, metrics = process.next(state, clients)
        >>> env.get_size_info().broadcast_bits[-1]
    """
    environment = sizing_executor_factory()
    set_default_context(environment)
    return environment


class ContextStack:
    """The installed runtime, by the methods of TFF's stack of contexts."""

    @property
    def current(self) -> Runtime:
        """The runtime that a call would run on."""
        return current_runtime()

    def set_default_context(self, ctx: Runtime) -> None:
        """`fc.set_runtime`: installs a runtime for the whole process."""
        set_default_context(ctx)

    def install(self, ctx: Runtime) -> contextlib.AbstractContextManager:
        """`fc.use`: a runtime for the body of a `with` statement."""
        return use(ctx)


_CONTEXT_STACK = ContextStack()


def get_context_stack() -> ContextStack:
    """The installed runtime.

    Example:
        >>> fc.framework.get_context_stack().set_default_context(fc.runtime.local(workers_per_device=1))
        >>> with fc.framework.get_context_stack().install(fc.runtime.reference()):
        ...     state = process.initialize()
    """
    return _CONTEXT_STACK


def infer_type(arg: Any) -> Type | None:
    """The type of a value, of anything with a `type_signature`, or of values in Python's containers; None of None.

    Example:
        >>> print(fc.framework.infer_type({'a': 1, 'b': [2.0]}))
        <a=int32,b=list<float32>>
    """
    if arg is None:
        return None
    return arg.type_signature if hasattr(arg, "type_signature") else type_of(arg)


def computation_contains_secure_aggregation(comp: Computation) -> bool:
    """Whether clients send values in secure sums, such as `fc.federated_secure_sum`.

    Raises:
        TypeMismatch: `comp` is no computation with types.
    """
    return has_secure_sums(_module_of(comp))


def computation_contains_unsecure_aggregation(comp: Computation) -> bool:
    """Whether values that depend on clients' data reach the server outside of secure sums.

    `fedcore verify --secure` names them, with their lines. Sums of what all clients send alike, such as a count of the
    clients, do not depend on their data; TFF tells them too.

    Raises:
        TypeMismatch: `comp` is no computation with types.
    """
    return bool(disclosures(_module_of(comp)))


def _module_of(comp: Computation) -> Module:
    """The module of a computation.

    Raises:
        TypeMismatch: `comp` is another object, such as a function without types.
    """
    if not isinstance(comp, Computation):
        raise TypeMismatch(f"{brief(comp)} is no computation with types")
    return comp.module


def ExecutionContext(executor_fn: Runtime) -> Runtime:
    """The runtime itself: TFF wraps one to install it."""
    return executor_fn


SyncExecutionContext = ExecutionContext


__all__ = [
    "Computation",
    "ContextStack",
    "CreateDataDescriptor",
    "DataBackend",
    "DataDescriptor",
    "DataExecutor",
    "EagerTFExecutor",
    "ExecutionContext",
    "SizeInfo",
    "SizingEnvironment",
    "SyncExecutionContext",
    "computation_contains_secure_aggregation",
    "computation_contains_unsecure_aggregation",
    "get_context_stack",
    "infer_type",
    "local_cpp_executor_factory",
    "local_executor_factory",
    "set_default_context",
    "set_sizing_environment",
    "sizing_executor_factory",
]


if TYPE_CHECKING:  # names of TFF, which `tff_names` finds
    from fedcore.computation import PolymorphicComputation as PolymorphicComputation

    ConcreteComputation = Computation
    TypeNotAssignableError = TypesNotEquivalentError = UnexpectedTypeError = TypeMismatch
else:
    __getattr__ = tff_names("fedcore.framework")

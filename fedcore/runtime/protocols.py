"""The boundaries to other runtimes: protocols that a runtime, or a part of the local one, fulfils.

Runtime            runs a whole program: its own notion of servers, clients and devices
ClientsExecutor    runs the client stages of a plan, beside the local runtime's server
SliceExecutor      runs slices of clients, below `SlicedClientsExecutor`: a device, a process, another machine
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from fedcore.errors import TypeMismatch, brief
from fedcore.ir import Module
from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.report import Report
from fedcore.runtime.stopping import Stop


class Runtime(Protocol):
    """Runs programs; installed by `fc.use` and `fc.set_runtime`.

    A class that derives from this one has `plan_options` and `close`.

    Attributes:
        compiles: it takes planned modules; else traced ones.
        plan_options: options of the pass `plan`, for the plans that it takes. Not needed unless it compiles.
        default_num_clients: may be absent. Where it is None, calls without client arguments whose result depends on
            the number of clients are refused.
    """

    compiles: bool

    @property
    def plan_options(self) -> Mapping[str, object]:
        return MappingProxyType({})

    def run(self, module: Module, arguments: list, report: Report):
        """The result of a module, in the Python containers that its type names.

        Args:
            arguments: as the user gave them, in the order of the parameters of `module.main`.
            report: of the call; `report.seed` is the call's seed.
        """

    def close(self) -> None:
        """Ends the runtime's threads and processes."""


class ClientsExecutor(Protocol):
    """Runs the client stages of plans, for `fc.runtime.local(clients_executor=...)`.

    `fc.runtime.SlicedClientsExecutor` is one over any pool of slice executors. Another one may use the same pieces:
    `DeviceSliceExecutor.prepare(work, report, stop)` has the `zero` and the `merge` of partials, `MergeTree` fixes the
    order of merges, and `FaultPolicy` is the treatment of clients that fail.
    """

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        """Runs a client stage.

        Args:
            report: gets the number of clients, the clients that were dropped, and counts of graph calls.
            stop: says when the call is to end early.
        Returns:
            The merged partial as a nested tuple of tensors, None where the stage has no fold (`work.zero` is None);
            and for each client the value that the stage returns, None for a client that was dropped. The list is
            empty unless `work.keeps`, or the stage has no fold.
        """

    def close(self) -> None:
        """Ends the executor's threads and processes."""


class SliceExecutor(Protocol):
    """Runs slices of clients in one place, for `fc.runtime.SlicedClientsExecutor`.

    Attributes:
        name: of the place, in reports and recordings.
    """

    name: str

    def prepare(self, work: ClientWork, report: Report, stop: Stop) -> Callable[[ClientSlice], SliceResult]:
        """A function that runs slices of a stage, in any thread.

        It raises what a client raises: the caller finds the client and drops it or ends the call. `work` pickles
        without the cohorts, a slice and its result pickle whole.
        """

    def close(self) -> None:
        """Ends the executor's threads and processes."""


def check_runtime(function: str, given) -> None:
    """Refuses an object that is no runtime.

    Raises:
        TypeMismatch: with the members that are missing, or the call, where that is certain.
    """
    fix = f"; write {function}(seed={given})" if isinstance(given, int) and function == "fc.use" else ""
    members = ["run", "close", "compiles", *["plan_options"] * bool(getattr(given, "compiles", False))]
    _check(f"{function} takes a runtime", "fc.runtime.local()", given, Runtime, members, fix)


def check_clients_executor(given) -> None:
    """Refuses an object that is no `ClientsExecutor`.

    Raises:
        TypeMismatch: with the members that are missing, or the call, where that is certain.
    """
    needs = "fc.runtime.local: clients_executor takes a clients executor"
    _check(needs, "fc.runtime.SlicedClientsExecutor(...)", given, ClientsExecutor, ["run", "close"])


def check_slice_executor(given) -> None:
    """Refuses an object that is no `SliceExecutor`.

    Raises:
        TypeMismatch: with the members that are missing, or the call, where that is certain.
    """
    needs = "fc.runtime.SlicedClientsExecutor takes slice executors"
    _check(needs, "fc.runtime.DeviceSliceExecutor()", given, SliceExecutor, ["prepare", "close", "name"])


def _check(needs: str, such_as: str, given, protocol: type, members: list[str], fix: str = "") -> None:
    missing = [_shown(protocol, name) for name in members if _lacks(given, name, protocol)]
    if isinstance(given, type) or (len(missing) == len(members) and callable(given)):
        name = getattr(given, "__qualname__", type(given).__name__)
        raise TypeMismatch(f"{needs}, but is given the function `{name}`: call it, {name}()")
    if len(missing) == len(members):
        raise TypeMismatch(f"{needs}, such as {such_as}, not {brief(given)}{fix}")
    if missing:
        listed = " and ".join([", ".join(missing[:-1])] * (len(missing) > 1) + missing[-1:])
        raise TypeMismatch(f"{needs}, but {type(given).__name__} lacks {listed}; see fc.runtime.{protocol.__name__}")


def _lacks(given, name: str, protocol: type) -> bool:
    if not hasattr(given, name):
        return True
    own, declared = getattr(type(given), name, None), getattr(protocol, name, None)
    if name != "close" and inspect.isfunction(declared) and own is declared:
        return True  # derived from the protocol, which has no implementation
    return inspect.isfunction(declared) and not callable(getattr(given, name))


def _shown(protocol: type, name: str) -> str:
    return f"{name}()" if inspect.isfunction(getattr(protocol, name, None)) else name

"""Protocols of a runtime and of the replaceable parts of the local runtime.

Runtime            runs a whole program: its own notion of servers, clients and devices
ClientsExecutor    runs the client stages of a plan; the local runtime runs the server stages
SliceExecutor      runs slices of clients for a `SlicedClientsExecutor`: on a device, in a process, on another machine

Decision 0100.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.ir import Module
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop


class Runtime(Protocol):
    """Runs programs; installed by `fc.use` and `fc.set_runtime`.

    A derived class inherits `plan_options` (empty) and `close` (does nothing).

    Attributes:
        compiles: whether `run` takes planned modules. If False, `run` takes traced modules.
        plan_options: options of the pass `plan`, for the plans that `run` takes. Needed only if `compiles` is True.
        default_num_clients: optional. If it is None, a call without client arguments is refused where its result
            depends on the number of clients.
        defers: optional. If it is True, `run` returns references to a result that is computed later.
    """

    compiles: bool

    @property
    def plan_options(self) -> Mapping[str, object]:
        return MappingProxyType({})

    def run(self, module: Module, arguments: list, report: Report) -> Any:
        """The result of a module, in the Python containers of its type.

        Args:
            arguments: the user's arguments, not converted, in the order of the parameters of `module.main`.
            report: the call's report; `report.seed` is the call's seed.
        """

    def close(self) -> None:
        """Ends the runtime's threads and processes."""


class ClientsExecutor(Protocol):
    """Runs the client stages of plans, for `fc.runtime.local(clients_executor=...)`.

    Write a `SliceExecutor` instead, unless clients hold their own data. `fc.runtime.SlicedClientsExecutor` implements
    this protocol over any pool of slice executors. Other implementations may use its pieces:
    `DeviceSliceExecutor.prepare(work, report, stop)` has the `zero` and the `merge` of partials, `MergeTree` fixes the
    order of merges, and `FaultPolicy` handles clients that fail.
    """

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        """Runs a client stage.

        Args:
            report: gets the number of clients, the clients that were dropped, and counts of graph calls.
            stop: is cancelled when the call must end early.
        Returns:
            (partial, kept values). The partial is the merged partial as a nested tuple of tensors; None if the stage
            has no fold (`work.zero` is None). The list of kept values has for each client the value that the stage
            returns, None for a client that was dropped; it is empty if the stage has a fold and `work.keeps` is False.
        """

    def close(self) -> None:
        """Ends the executor's threads and processes."""


class SliceExecutor(Protocol):
    """Runs slices of clients in one place, for `fc.runtime.SlicedClientsExecutor`.

    `fc.testing.check_slice_executor` checks one. Most executors send slices to a `DeviceSliceExecutor` elsewhere.

    A slice:
      - `places` is the capacity of the slice. It may be many times `len(clients)`: by default, a cohort of 40 clients
        is one slice of 512 places.
      - An element of `clients` is None if the client is left out: it failed, or the slice looks for a client that
        failed. `present` lists the other clients. No slice without present clients is run.
      - A slice may be divided only into whole blocks, in the order of the clients; else the bits change.
        `clients.divided(work.block, count)` and `clients.parts(work.block, most)` divide so, and leave out parts
        without clients, which must not be run. `clients.joined(parts, results, stage.merge)` joins the results, with
        `stage = DeviceSliceExecutor().prepare(work, report, stop)`. A block has 8 clients by default, or 1 where
        clients are not vectorised (`fc.runtime.local(block_size=...)`).
      - After an error the clients run again: alone, and then without those that failed. So a slice must have no
        effect that a second run repeats.

    Attributes:
        name: name of the place, in reports and recordings.
    """

    name: str

    def prepare(self, work: ClientWork, report: Report, stop: Stop) -> Callable[[ClientSlice], SliceResult]:
        """A function that runs slices of a stage, in any thread.

        The function raises any error of a client: the caller finds the client, and drops it or ends the call. `work`
        pickles without its cohorts; a slice and its result pickle completely.

        The result has the partial of the slice's clients (None if `work.zero` is None), and in `kept` a value for each
        present client if `work.zero` is None or `work.keeps` is True.
        """

    def close(self) -> None:
        """Ends the executor's threads and processes."""


class ProtocolBroken(TypeMismatch):
    """An executor returned an object of the wrong type, or ran a slice without clients. It is no client's fault."""


class WorkerEnded(FedcoreError):
    """The worker that computed a run of slices has ended. Whether it is its clients' fault is not known."""


def prepare_checked(
    executor: SliceExecutor, work: ClientWork, report: Report, stop: Stop
) -> Callable[[ClientSlice], SliceResult]:
    """The function of `executor.prepare`, whose results are checked.

    Raises:
        ProtocolBroken: `prepare` returns no function, or (when it is called) the function returns no correct result.
    """
    name, see = f"{type(executor).__name__}.prepare", "see fc.runtime.SliceExecutor"
    prepare: Callable[..., Any] = executor.prepare
    run = prepare(work, report, stop)
    if not callable(run):
        wants = "prepare(work, report, stop) -> Callable[[ClientSlice], SliceResult]"
        raise ProtocolBroken(f"{name} returns no function; {see}\n  wants  {wants}\n  has    {brief(run)}")

    def run_checked(clients: ClientSlice) -> SliceResult:
        try:
            result = run(clients)
        except ProtocolBroken as error:
            raise ProtocolBroken(f"the function of {name}: {error}") from error
        mismatch = _find_mismatch(work, clients, result)
        if mismatch is not None:
            problem, wants, has = mismatch
            raise ProtocolBroken(
                f"the function of {name} returns {problem}; {see}\n  wants  {wants}\n  has    {brief(has)}"
            )
        return result

    return run_checked


def _find_mismatch(work: ClientWork, clients: ClientSlice, result: object) -> tuple[str, str, object] | None:
    """(problem, what is wanted, what is there) of a wrong result of a slice, for a message; None if it is right."""
    if not isinstance(result, SliceResult):
        return "no SliceResult", "(ClientSlice) -> SliceResult", result
    if result.partial is None and work.zero is not None:
        return f"no partial, but @{work.stage} has a fold", "SliceResult(partial=nested tuple of tensors)", result
    if (work.keeps or work.zero is None) and result.kept.keys() != set(clients.present):
        wants = f"kept: a value for each of the clients {brief(clients.present)}"
        return f"other kept values than @{work.stage} has", wants, list(result.kept)
    return None


def checked_run(executor: ClientsExecutor, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
    """The result of `executor.run`.

    Raises:
        ProtocolBroken: it is no pair of a partial and a list.
    """
    result = executor.run(work, report, stop)
    is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], list | tuple)
    if is_pair and (result[0] is not None or work.zero is None):
        return result
    problem = f"no partial, but @{work.stage} has a fold" if is_pair else "no pair of a partial and kept values"
    raise ProtocolBroken(
        f"{type(executor).__name__}.run returns {problem}; see fc.runtime.ClientsExecutor\n"
        f"  wants  run(work, report, stop) -> (partial, list of kept values)\n  has    {brief(result)}"
    )


def check_runtime(function: str, runtime: object) -> None:
    """Refuses an object that is no runtime.

    Raises:
        TypeMismatch: lists the missing members, or suggests a fix.
    """
    fix = f"; write {function}(seed={runtime})" if isinstance(runtime, int) and function == "fc.use" else ""
    members = ["run", "close", "compiles", *["plan_options"] * bool(getattr(runtime, "compiles", False))]
    _check(f"{function} takes a runtime", "fc.runtime.local()", runtime, Runtime, members, fix)


def check_clients_executor(value: object) -> None:
    """Refuses an object that is no `ClientsExecutor`.

    Raises:
        TypeMismatch: lists the missing members, or suggests a fix.
    """
    needs = "fc.runtime.local: clients_executor takes a clients executor"
    if not isinstance(value, type) and callable(getattr(value, "prepare", None)) and not hasattr(value, "run"):
        raise TypeMismatch(
            f"{needs}, but {type(value).__name__} is a slice executor: wrap it, fc.runtime.SlicedClientsExecutor([...])"
        )
    _check(needs, "fc.runtime.SlicedClientsExecutor(...)", value, ClientsExecutor, ["run", "close"])


def check_slice_executor(value: object) -> None:
    """Refuses an object that is no `SliceExecutor`.

    Raises:
        TypeMismatch: lists the missing members, or suggests a fix.
    """
    needs = "fc.runtime.SlicedClientsExecutor takes slice executors"
    _check(needs, "fc.runtime.DeviceSliceExecutor()", value, SliceExecutor, ["prepare", "close", "name"])


def _check(needs: str, such_as: str, candidate: object, protocol: type, members: list[str], fix: str = "") -> None:
    """Raises TypeMismatch if an object lacks members of a protocol.

    Args:
        needs: the begin of the message: the function, and the object that it takes.
        such_as: an example of such an object.
        fix: end of the message if the object has none of the members.
    """
    missing = [_member_text(protocol, name) for name in members if _lacks(candidate, name, protocol)]
    if isinstance(candidate, type) or (len(missing) == len(members) and callable(candidate)):
        name = getattr(candidate, "__qualname__", type(candidate).__name__)
        raise TypeMismatch(f"{needs}, but is given the function `{name}`: call it, {name}()")
    if len(missing) == len(members):
        raise TypeMismatch(f"{needs}, such as {such_as}, not {brief(candidate)}{fix}")
    if missing:
        listed = " and ".join([", ".join(missing[:-1])] * (len(missing) > 1) + missing[-1:])
        raise TypeMismatch(
            f"{needs}, but {type(candidate).__name__} lacks {listed}; see fc.runtime.{protocol.__name__}"
        )


def _lacks(candidate: object, name: str, protocol: type) -> bool:
    """Whether an object does not implement a member of a protocol."""
    if not hasattr(candidate, name):
        return True
    defined, declared = getattr(type(candidate), name, None), getattr(protocol, name, None)
    if name != "close" and inspect.isfunction(declared) and defined is declared:
        return True  # inherited from the protocol, which implements `close` only
    return inspect.isfunction(declared) and not callable(getattr(candidate, name))


def _member_text(protocol: type, name: str) -> str:
    """The name of a member in messages, such as `run()` for a method."""
    return f"{name}()" if inspect.isfunction(getattr(protocol, name, None)) else name

"""The installed runtime: compiles modules, keeps their plans and runs them. It alone knows compiler and runtime."""

import contextlib
import contextvars
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from fedcore.compiler import LOWERING, compile_module, run_passes
from fedcore.compiler.stored_plans import stored_plans
from fedcore.ir import Module, verify
from fedcore.runtime.recording import Recording, record_compilation, trace_directory
from fedcore.runtime.report import Report

MAX_PLANS = 256


class Runtime(Protocol):
    """What runs modules: planned ones if it `compiles`, else traced ones."""

    compiles: bool

    def run(self, module: Module, arguments: list, report: Report): ...

    def close(self) -> None: ...


class PlanCache:
    """The plans of the `max_entries` traced modules used last, by their source digest.

    Guarantees:
      - Equal programs of different lines have plans of their own: errors and reports name the right ones.
      - One compilation a module, however many threads ask at once.
    """

    def __init__(self, max_entries: int = MAX_PLANS):
        self._plans: OrderedDict[str, Module] = OrderedDict()
        self._max_entries = max_entries
        self._lock = threading.RLock()
        self._recorded: set[tuple[str, Path]] = set()

    def get(self, digest: str, module: Module, *, recorded_in: Path | None = None) -> Module:
        """The plan, compiled now if it is new; with `recorded_in`, what each pass did is written there."""
        with self._lock:
            if recorded_in is not None and (digest, recorded_in) not in self._recorded:
                self._recorded.add((digest, recorded_in))
                self._plans[digest] = _compile_recorded(module, recorded_in)
            if digest in self._plans:
                self._plans.move_to_end(digest)
                return self._plans[digest]
            self._plans[digest] = plan = _compiled(digest, module)
            while len(self._plans) > self._max_entries:
                self._plans.popitem(last=False)
            return plan


def _compiled(digest: str, module: Module) -> Module:
    """The plan, from the directory that FEDCORE_CACHE names where it is there."""
    stored = stored_plans()
    if stored is None:
        return verify(compile_module(module))
    plan = stored.get(digest)
    if plan is None:
        plan = verify(compile_module(module))
        stored.put(digest, plan)
    return plan


def _compile_recorded(module: Module, directory: Path) -> Module:
    passes = ((one.name, after) for one, after in run_passes(module))
    return verify(record_compilation(directory, module.main.name, module, passes))


_plans = PlanCache()
_default: Runtime | None = None
_default_lock = threading.Lock()
_used: contextvars.ContextVar[tuple[Runtime, int | None] | None] = contextvars.ContextVar(
    "fedcore_runtime", default=None
)
_last_report: contextvars.ContextVar[Report | None] = contextvars.ContextVar("fedcore_report", default=None)


def set_runtime(runtime: Runtime | None) -> None:
    """Installs a runtime for the whole process; None goes back to a local one, made when first needed."""
    global _default
    with _default_lock:
        _default = runtime


def current_runtime() -> Runtime:
    """The runtime in use: that of the innermost `use`, else the installed one, else a new local one."""
    used = _used.get()
    if used is not None:
        return used[0]
    global _default
    with _default_lock:
        if _default is None:
            from fedcore.runtime.local import local

            _default = local()
        return _default


@contextlib.contextmanager
def use(runtime: Runtime | None = None, *, seed: int | None = None) -> Iterator[Runtime]:
    """Runs what is called inside with `runtime` (or the current one), and with `seed` where it is given.

    Example:
        >>> with fc.use(fc.runtime.reference(), seed=7):
        ...     total = add_up([1, 2, 3])
    """
    chosen = runtime or current_runtime()
    token = _used.set((chosen, seed))
    try:
        yield chosen
    finally:
        _used.reset(token)


def last_report() -> Report | None:
    """What the newest call in this thread (or task) did."""
    return _last_report.get()


def note_report(report: Report | None) -> None:
    """Makes the report of a call that another thread ran for this task the newest one here."""
    _last_report.set(report)


def plan_of(module: Module) -> Module:
    """The plan of a traced module, from the cache where it is there."""
    return _plans.get(module.source_digest(), module)


def lowered(module: Module) -> Module:
    """A traced module with its derived intrinsics written in core operations."""
    return compile_module(module, LOWERING)


def invoke(module: Module, arguments: list, *, seed: int | None = None):
    """Runs a traced module on arguments in the order of its parameters.

    Args:
        seed: of this call. Default: that of `use`, else a drawn one, which the report tells.
    """
    runtime = current_runtime()
    used = _used.get()
    if seed is None:
        seed = used[1] if used is not None and used[1] is not None else random.SystemRandom().getrandbits(63)
    report = Report(seed=seed)
    directory = trace_directory()
    if directory is not None:
        return _recorded(directory, runtime, module, arguments, report)
    began = time.perf_counter()
    to_run = plan_of(module) if runtime.compiles else module
    try:
        return runtime.run(to_run, arguments, report)
    finally:
        report.seconds = time.perf_counter() - began
        _last_report.set(report)


def _recorded(directory: Path, runtime: Runtime, module: Module, arguments: list, report: Report):
    """`invoke` under FEDCORE_TRACE: the same call, with its files written when it ends."""
    recording = report.recording = Recording(directory, module.main.name, module.source_digest())
    plan, error = None, None
    began = time.perf_counter()
    try:
        with recording.sampling():
            if runtime.compiles:
                with recording.span("compile", module.main.name):
                    plan = _plans.get(module.source_digest(), module, recorded_in=directory)
            return runtime.run(plan or module, arguments, report)
    except BaseException as raised:
        error = raised
        raise
    finally:
        report.seconds = time.perf_counter() - began
        _last_report.set(report)
        recording.write(report, plan, error)

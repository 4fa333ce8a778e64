"""The installed runtime: compiles modules, caches their plans and runs them. Joins the compiler and the runtimes."""

import contextlib
import contextvars
import functools
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from fedcore.collection_pause import without_collection
from fedcore.compiler import DEFAULT_PIPELINE, LOWERING, compile_module, parse_pipeline, pipeline_with, run_passes
from fedcore.compiler.host_target import default_target
from fedcore.compiler.pinned_plans import PinnedPlans
from fedcore.compiler.stored_plans import stored_plans
from fedcore.errors import FedcoreError, TypeMismatch, VerifyError
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.graphs.tensors.plain_graphs import eager_in_plain_graphs
from fedcore.ir import Module, Operation, Ref, verify
from fedcore.ir.first_use import in_a_thread
from fedcore.ir.registry import declarations
from fedcore.lru_cache import LruCache
from fedcore.runtime.clients.client_watch import ClientRecorder, active_watch, round_of, traced_clients
from fedcore.runtime.clients.clients_being_read import (
    slow_clients as slow_clients,  # for the progress bar of trainings
)
from fedcore.runtime.clients.non_finite import (
    NON_FINITE_CLIENTS as NON_FINITE_CLIENTS,  # for learning: it imports no runtime
)
from fedcore.runtime.clients.non_finite import note_non_finite
from fedcore.runtime.clients.protocols import Runtime, check_runtime
from fedcore.runtime.devices.forked import check_not_forked
from fedcore.runtime.local import local
from fedcore.runtime.reports.compilations import CompilationLog, is_wasteful
from fedcore.runtime.reports.recording import Recording, record_compilation, trace_directory
from fedcore.runtime.reports.report import Report
from fedcore.scalars import seed_number
from fedcore.seeds import fold_in
from fedcore.slow_steps import slow_step
from fedcore.types import FederatedType, StructType, Type, contains

MAX_PLANS = 256


class PlanCache:
    """LRU cache of plans by the plan key of the traced module and the pipeline, with at most `max_entries` plans.

    Guarantees:
      - Equal programs from different source lines have separate plans, so that errors and reports name the right lines.
      - Models whose layers' names differ in numbers, `dense` and `dense_2`, share one compilation; a plan has the names
        of its module.
      - A program is compiled again after an intrinsic, a lowering, a batching rule or a pass is declared.
      - Threads that ask for a module at once share one compilation. A thread waits for its own module only.
    """

    def __init__(self, max_entries: int = MAX_PLANS) -> None:
        self._plans: LruCache[tuple, Module] = LruCache(max_entries)

    def get(
        self,
        module: Module,
        pipeline: str = DEFAULT_PIPELINE,
        *,
        ready_plan: Module | None = None,
        recorded_in: Path | None = None,
        compiled: Callable[[float], object] = bool,
    ) -> Module:
        """The plan, compiled now unless it is cached.

        Args:
            ready_plan: a plan to use instead of the compiler's: a pinned plan, or the module itself if it is a plan.
            recorded_in: a directory for the record of each pass; a plan is compiled once for each directory.
            compiled: gets the seconds of a compilation. Default: `bool`, which does nothing with them.
        """
        origin = pipeline if ready_plan is None else f"given {ready_plan.digest()}"
        # The files of a record are named after the source digest.
        program = module.plan_key() if recorded_in is None else module.source_digest()
        key = (program, origin, default_target(), declarations(), recorded_in)

        def compute() -> Module:
            if ready_plan is not None and recorded_in is None:
                return ready_plan
            began = time.perf_counter()
            if recorded_in is None:
                plan = _compile(module, pipeline)
            else:
                plan = _compile_recorded(module, pipeline, ready_plan, recorded_in)
            compiled(time.perf_counter() - began)
            return plan

        plan = self._plans.get(key, compute)
        names = module.element_names
        if ready_plan is not None or plan.element_names == names:
            return plan
        return self._plans.get((*key, str(names)), lambda: plan.with_element_names(names))

    def cached(self) -> list[Module]:
        """The plans in the cache."""
        return self._plans.values()


def _compile(module: Module, pipeline: str) -> Module:
    """The plan: read from the directory that FEDCORE_CACHE names, or else compiled and stored there.

    Compiled in a thread: passes build functions, and a computation that is called while its thread builds one becomes
    a part of it. In the caller's own thread a signal handler could call one there.
    """
    prints = any(graph.prints is not None for graph in module.graphs)  # a file has no prints
    stored = None if prints else stored_plans()
    plan = None if stored is None else stored.get(module, pipeline)
    if plan is None:
        with without_collection(), slow_step(f"planning {module.main.name}"):
            plan = in_a_thread(lambda: _check_plan(compile_module(module, pipeline), module, pipeline))
        if stored is not None:
            stored.put(module, plan, pipeline)
    return plan


def _compile_recorded(module: Module, pipeline: str, ready_plan: Module | None, directory: Path) -> Module:
    """The plan, compiled with a record of each pass; for a ready plan the record has the plan alone."""
    name = module.main.name
    if ready_plan is not None:
        return verify(
            record_compilation(directory, name, module, iter([] if ready_plan is module else [("pinned", ready_plan)]))
        )
    passes = ((pass_.name, result) for pass_, result in run_passes(module, pipeline))
    return _check_plan(record_compilation(directory, name, module, passes), module, pipeline)


def _check_plan(plan: Module, module: Module, pipeline: str) -> Module:
    """The result of a pipeline, checked to be a valid plan.

    Raises:
        FedcoreError: the result is no plan (the message names the pipeline), or is not valid (it names the pass).
    """
    if plan.stage != "planned":
        raise FedcoreError(
            f"the pipeline {pipeline} leaves a {plan.stage} module, which no runtime takes: "
            "end it with planning, as in lowering,planning"
        )
    try:
        return verify(plan)
    except VerifyError:
        list(run_passes(module, pipeline, verify_each=True))
        raise


_plans = PlanCache()
_compilations = CompilationLog()
_default: Runtime | None = None
_default_lock = threading.RLock()  # a signal handler may run while its thread holds the lock
_last_report: contextvars.ContextVar[Report | None] = contextvars.ContextVar("fedcore_report", default=None)


@attrs.frozen
class _CallSeeds:
    """The seeds of the calls in a context: the context's seed folded with 0, 1, ….

    Guarantees:
      - Each number is taken once, by any number of threads.
    """

    seed: int
    numbers: Iterator[int] = attrs.field(factory=itertools.count)

    def take(self) -> int:
        return fold_in(self.seed, next(self.numbers))

    def with_next_taken(self) -> "_CallSeeds":
        """These seeds for a later caller: its first number is taken now, its further numbers when it calls."""
        return _CallSeeds(self.seed, itertools.chain([next(self.numbers)], self.numbers))


@attrs.frozen
class _InUse:
    """The settings of a `use`.

    Args:
        outer: the settings of the enclosing `use`, which hold again when this `use` ends.
    """

    runtime: Runtime
    seeds: _CallSeeds | None
    pins: PinnedPlans | None
    pipeline: str
    outer: "_InUse | None"


_in_use: contextvars.ContextVar[_InUse | None] = contextvars.ContextVar("fedcore_in_use", default=None)


def set_runtime(runtime: Runtime | None) -> None:
    """Installs a runtime for the whole process; None installs a default local runtime, made when first needed.

    Raises:
        TypeMismatch: `runtime` is no runtime, such as `fc.runtime.local` without the call.
    """
    global _default
    if runtime is not None:
        check_runtime("fc.set_runtime", runtime)
    with _default_lock:
        _default = runtime


def current_runtime() -> Runtime:
    """The runtime of the innermost `use`; else the installed runtime; else a new local runtime."""
    used = _in_use.get()
    if used is not None:
        return used.runtime
    global _default
    with _default_lock:
        if _default is None:
            runtime = in_a_thread(local)
            _default = _default or runtime
        return _default


class _Use(contextlib.ContextDecorator):
    """The context manager that `use` returns. It may be entered several times, also nested and in several threads."""

    def __init__(
        self, runtime: Runtime | None, seed: int | None, pins: PinnedPlans | None, pipeline: str | None
    ) -> None:
        self._runtime = runtime
        self._seed = seed
        self._pins = pins
        self._pipeline = pipeline

    def __enter__(self) -> Runtime:
        outer = _in_use.get()
        runtime = current_runtime() if self._runtime is None else self._runtime
        seeds = outer.seeds if outer is not None else None
        if self._seed is not None:
            seeds = _CallSeeds(self._seed)
        pins = self._pins or (outer.pins if outer is not None else None)
        pipeline = self._pipeline or (outer.pipeline if outer is not None else "default")
        _in_use.set(_InUse(runtime, seeds, pins, pipeline, outer))
        return runtime

    def __exit__(self, *error: object) -> None:
        used = _in_use.get()
        assert used is not None
        _in_use.set(used.outer)


def use(
    runtime: Runtime | None = None,
    *,
    seed: int | None = None,
    plans: str | os.PathLike | None = None,
    trusted: bool = False,
    pipeline: str | None = None,
) -> _Use:
    """Sets the runtime, the seed, the pinned plans and the pipeline of the calls in the `with` block.

    A nested `use` inherits each setting that it is not given. Calls in other threads do not see the settings, unless
    they run in a copy of this context (`contextvars.copy_context`).

    Args:
        runtime: runs the calls. Default: the current runtime.
        seed: the seed of this context. Call n of the block has the seed `fold_in(seed, n)`, n = 0, 1, …. So calls draw
            different numbers, and a repeated sequence of calls draws equal numbers. Awaited calls are numbered in the
            order in which their tasks begin. A call that is given a seed (`invoke(seed=)`, a learning process's `next`)
            has exactly this seed and takes no number. Entering the object again starts at 0. Default: the outer seed;
            without an outer seed, each call draws a seed.
        plans: a pinned plan (a file of `fedcore tune`), or a directory of pinned plans. A program with a pinned
            plan runs by it; other programs are compiled. Default: the path in FEDCORE_PLANS, if it is set.
        trusted: the graphs of `plans` may hold any operation, as for `fc.load(path, trusted=True)`.
        pipeline: the passes that compile a program, in the notation of `fedcore opt -p`. `default` stands for the
            default pipeline, `lowering` and `planning` for its two halves: 'default,mine' runs the user's pass `mine`
            on the plan, 'lowering,mine,planning' runs it before planning. The last module must be a plan. The runtime's
            options apply to the pass `plan`, unless the pipeline gives options to it. Pinned plans are not compiled.
            Default: 'default'.
    Raises:
        TypeMismatch: `runtime` is no runtime, such as `fc.runtime.local` without the call; `plans` is no path, or
            `pipeline` is no text.
        FedcoreError: `plans` is not a pinned plan, or holds operations that are not allowed; `pipeline` names an
            unknown pass or option. A call raises it too, if its pipeline gives no valid plan.
    Example:
        >>> with fc.use(fc.runtime.reference(), seed=7):
        ...     total = add_up([1, 2, 3])
        >>> with fc.use(plans='pinned.fed'):
        ...     state, metrics = process.next(state, clients)
    """
    if runtime is not None:
        check_runtime("fc.use", runtime)
    pins = None if plans is None else PinnedPlans.read(plans, trusted=trusted)
    if pipeline is not None:
        parse_pipeline(pipeline)
    return _Use(runtime, None if seed is None else seed_number("fc.use: seed", seed), pins, pipeline)


def number_this_call() -> None:
    """Takes the number of the next call in this context now; the context is a copy, in which the call runs later."""
    used = _in_use.get()
    if used is not None and used.seeds is not None:
        _in_use.set(attrs.evolve(used, seeds=used.seeds.with_next_taken()))


def last_report() -> Report | None:
    """The report of the newest call in this thread (or task); None if there was no call."""
    return _last_report.get()


def note_report(report: Report | None) -> None:
    """Sets the newest report of this task: the report of a call that another thread ran for it."""
    _last_report.set(report)


def plan_of(module: Module) -> Module:
    """The plan of a module for the runtime in use: the module itself if it is a plan, its pinned plan, or the
    compiler's plan.
    """
    used = _in_use.get()
    runtime = used.runtime if used is not None else _default
    return _plan_for(module, runtime.plan_options if runtime is not None and runtime.compiles else {})


def newest_plan() -> Module | None:
    """The plan of this thread's newest call; None if it has none, or if it is no longer cached."""
    report = last_report()
    return None if report is None else next((p for p in reversed(_plans.cached()) if p.digest() == report.plan), None)


def _plan_for(
    module: Module, options: Mapping[str, object], report: Report | None = None, recorded_in: Path | None = None
) -> Module:
    """The plan of a module; see `plan_of`.

    Args:
        options: the runtime's options of the pass `plan`.
        report: gets the digest of the plan, and a note about pinned plans.
        recorded_in: as for `PlanCache.get`.
    """
    used = _in_use.get()
    pins = (used.pins if used is not None else None) or _named_plans(os.environ.get("FEDCORE_PLANS", ""))
    ready_plan = module if module.stage == "planned" else None if pins is None else pins.get(module)
    pipeline = pipeline_with(options, used.pipeline if used is not None else "default")
    seconds: list[float] = []
    plan = _plans.get(module, pipeline, ready_plan=ready_plan, recorded_in=recorded_in, compiled=seconds.append)
    if report is not None:
        report.plan = plan.digest()
        if not seconds:
            _compilations.call(module)
        elif ready_plan is None:
            report.compilation = _compilations.add(module, seconds[0])
            if report.compilation is not None and is_wasteful(report.compilation, module):
                report.note(str(report.compilation))
        note = None if pins is None else pins.note(module)
        if note is not None:
            report.note(note)
    return plan


@functools.lru_cache(maxsize=8)
def _named_plans(path: str) -> PinnedPlans | None:
    """The pinned plans at the path in FEDCORE_PLANS; None if the path is empty."""
    return PinnedPlans.read(path) if path else None


def lower(module: Module) -> Module:
    """A traced module with its derived intrinsics written in core operations."""
    return compile_module(module, LOWERING)


@eager_in_plain_graphs()
def invoke(module: Module, arguments: list, *, seed: int | None = None) -> Any:
    """Runs a traced module on arguments in the order of its parameters.

    Args:
        seed: the seed of this call. Default: the next seed of `use`; without one, a drawn seed. The report has it.
    """
    check_not_forked()
    runtime = current_runtime()
    used = _in_use.get()
    if seed is not None:
        seed = seed_number("seed", seed)
    elif used is not None and used.seeds is not None:
        seed = used.seeds.take()
    else:
        seed = random.SystemRandom().getrandbits(63)
    if getattr(runtime, "default_num_clients", 0) is None and not _has_client_argument(module):
        _check_needs_no_clients(module)
    report = Report(seed=seed, watch=active_watch(), round=round_of(arguments))
    directory = trace_directory()
    if directory is not None:
        return _run_recorded(directory, runtime, module, arguments, report)
    began = time.perf_counter()
    to_run = _plan_for(module, runtime.plan_options, report) if runtime.compiles else module
    try:
        result = runtime.run(to_run, arguments, report)
        if not getattr(runtime, "defers", False):
            note_non_finite(module, result, report)
        return result
    finally:
        report.seconds = time.perf_counter() - began
        _last_report.set(report)


def _has_client_argument(module: Module) -> bool:
    """Whether an argument of a call tells the number of clients."""
    return any(_is_of_clients(p.type) for p in module.main.parameters)


def _is_of_clients(type_: Type) -> bool:
    """Whether the type contains a client value that is not all-equal."""
    if isinstance(type_, FederatedType):
        return type_.placement.name == "CLIENTS" and not type_.all_equal
    return isinstance(type_, StructType) and any(map(_is_of_clients, type_.types))


def _check_needs_no_clients(module: Module) -> None:
    """Refuses a call whose result depends on the number of clients, if no argument gives this number.

    Raises:
        TypeMismatch: names the first operation that needs the number.
    """
    op = _needing_count.get("needing count", [module], lambda: _first_needing_count(module))
    if op is None:
        return
    at = f"\n  at {op.location}" if op.location else ""
    raise TypeMismatch(
        f"{module.main.name}: {op.kind} needs the number of clients, which is unknown: no argument of the call "
        f"is a client value{at}\n  fix: fc.use(fc.runtime.local(default_num_clients=...)) gives the number"
    )


def _first_needing_count(module: Module) -> Operation | None:
    """The first operation whose result is a client value, or a server value computed from client values."""
    for function in module.functions:
        types = function.types()
        for op in function.operations:
            operands = [types[o.name] for o in op.operands if isinstance(o, Ref)]
            joins = _is_placed_at(op.type, "SERVER") and any(_is_placed_at(t, "CLIENTS") for t in operands)
            if joins or _is_of_clients(op.type):
                return op
    return None


def _is_placed_at(type_: Type, name: str) -> bool:
    """Whether a part of the type is at the placement of that name, also all-equal."""
    return contains(type_, lambda t: isinstance(t, FederatedType) and t.placement.name == name)


_needing_count: IdentityCache[Operation | None] = IdentityCache(MAX_PLANS)
"""Results of `_first_needing_count` for the modules that ran last."""


def _run_recorded(directory: Path, runtime: Runtime, module: Module, arguments: list, report: Report) -> Any:
    """`invoke` under FEDCORE_TRACE: runs the call, and writes its recording when it ends."""
    recording = report.recording = Recording(directory, module.main.name, module.source_digest())
    if report.watch is None and (clients := traced_clients()):
        recorder = report.watch = ClientRecorder(clients)
        recording.values = recorder.values
    plan, error = None, None
    began = time.perf_counter()
    try:
        with recording.sampling():
            if runtime.compiles:
                with recording.span("compile", module.main.name):
                    plan = _plan_for(module, runtime.plan_options, report, directory)
            result = runtime.run(plan or module, arguments, report)
        if not getattr(runtime, "defers", False):
            note_non_finite(module, result, report)
        return result
    except BaseException as raised:
        error = raised
        raise
    finally:
        report.seconds = time.perf_counter() - began
        _last_report.set(report)
        recording.write(report, error)

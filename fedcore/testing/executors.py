"""Checks the contracts of slice executors and clients executors: their results have the bits of the local runtime."""

import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.context import last_report
from fedcore.errors import ClientError
from fedcore.ir import Value
from fedcore.runtime import (
    ClientsExecutor,
    ClientSlice,
    ClientWork,
    LocalRuntime,
    Report,
    SlicedClientsExecutor,
    SliceExecutor,
    SliceResult,
    Stop,
)
from fedcore.runtime.clients.protocols import check_clients_executor as check_clients_members
from fedcore.runtime.clients.protocols import check_slice_executor as check_members
from fedcore.runtime.reports.result_difference import difference
from fedcore.runtime.stopping import stopped_by
from fedcore.testing.generated import Values
from fedcore.testing.laws import LawBroken, open_files
from fedcore.types import FederatedType, SequenceType

BLOCK = 4
"""Clients of a block."""

WIDTH = 2
"""Clients that one graph computes at once; so small that the largest cohort has several slices."""

COHORTS = (0, 1, 2, BLOCK, BLOCK + 1, 41)
"""Sizes of cohorts. The slices of the last one are not all full."""

ALONE = (0, 1, 2, 12)
"""Sizes of cohorts whose clients are each a block. In the last one, the order by name is not that by number."""

CALLS = 3
"""Calls after which no further threads may be left."""

TEXT_ENDS = (b"", b"\0", "é".encode(), b"\xff")
"""Ends of texts that are lost where they are taken for C strings or for UTF-8."""

STEPS = 3_000_000
"""Steps of a client that is stopped: it would run for some ten seconds."""

STOP_S = 1.0
"""Seconds after which it is stopped."""


def check_slice_executor(executor: SliceExecutor) -> None:
    """Checks that a slice executor computes the bits of `fc.runtime.local()`.

    Laws, for cohorts of 0, 1, 2, a block, a block and one, and 41 clients, of which the last slice is not full: sums of
    floats, values that clients keep, random numbers of two seeds, sums of sequences of several lengths and sizes of
    what clients send are those of the local runtime, also while another stage is prepared; large tensors, numbers of 64
    bits and bfloat16, huge ones, tensors without entries and texts of any bytes arrive with all their bits; clients
    that fail are dropped, and no others, and the slices that lack them have the same bits; the call's report counts
    the graph calls of the slices; calls leave no threads, no open files, and no slices in memory; a call that is
    stopped while clients run has no result, and stops no later call.

    Args:
        executor: runs one slice at a time. It is not closed.
    Raises:
        LawBroken: names the law and the number of clients, and shows the program and the difference.
        TypeMismatch: it is no slice executor.
    Example:
        >>> fc.testing.check_slice_executor(fc.runtime.DeviceSliceExecutor())
    """
    check_members(executor)
    name = type(executor).__name__
    interleaved = type(name, (_Interleaved,), {})(executor)  # errors name the class
    sliced = _LeftOpen([interleaved], on_client_failure=_POLICY)
    own = fc.runtime.local(block_size=BLOCK, vectorize=WIDTH, clients_executor=sliced)
    try:
        _check_all(name, own, BLOCK, list, drops=True)
        _check_memory(name, interleaved)
        _check_earlier_stops(name, own, interleaved)
        _check_stop(name, own, interleaved)
    finally:
        own.close()


def check_clients_executor(
    executor: ClientsExecutor, hold: Callable[[list], Iterable] = list, *, block_size: int = BLOCK
) -> None:
    """Checks that a clients executor computes the bits of `fc.runtime.local()`, on data that it or its clients hold.

    Laws: as for `check_slice_executor`, without the stop; for `block_size=1` with cohorts of 0, 1, 2 and 12 clients.
    Values that clients keep are also used in a later stage. A client that fails raises `ClientError`, or is dropped,
    and no others.

    Args:
        executor: is not closed.
        hold: gives client i of a call value i of a list, and returns the cohort that the call gets, such as a list of
            `fc.runtime.SiteValue`s. Default: the values are the cohort.
        block_size: clients of a block. 1 for clients that are computed in different places.
    Raises:
        LawBroken: names the law and the number of clients, and shows the program and the difference.
        TypeMismatch: it is no clients executor.
    Example:
        >>> sliced = fc.runtime.SlicedClientsExecutor([fc.runtime.DeviceSliceExecutor()])
        >>> fc.testing.check_clients_executor(sliced)
    """
    own = fc.runtime.local(block_size=block_size, vectorize=WIDTH, clients_executor=_Borrowed(executor))
    try:
        _check_all(type(executor).__name__, own, block_size, hold, drops=False)
    finally:
        own.close()


def _check_all(name: str, own: LocalRuntime, block: int, hold: Callable[[list], Iterable], *, drops: bool) -> None:
    """Checks each case.

    Args:
        drops: the executor must drop clients that fail; else it may raise.
    """
    for case, local in _cases(block):
        _check(name, case, own, local, hold, drops)
    _check_threads(name, own, hold, _case_of_two(block)[0])


_POLICY = fc.runtime.drop()


@attrs.frozen
class _Case:
    """A program of one client value that an executor runs.

    Args:
        values: the clients' values.
        failing: the indices of the clients that fail.
    """

    law: str
    program: fc.Computation
    values: list
    seed: int = 0
    failing: tuple[int, ...] = ()


@functools.cache
def _cases(block: int) -> tuple[tuple[_Case, tuple], ...]:
    """Each case with the result and the report of the local runtime."""
    local = fc.runtime.local(block_size=block, vectorize=WIDTH, workers_per_device=1, on_client_failure=_POLICY)
    try:
        return tuple((case, _run(case, case.values, local)) for case in _programs(COHORTS if block > 1 else ALONE))
    finally:
        local.close()


def _case_of_two(block: int) -> tuple[_Case, tuple]:
    return next(each for each in _cases(block) if len(each[0].values) == 2)


class _LeftOpen(SlicedClientsExecutor):
    """Leaves its slice executors open when it is closed."""

    def close(self) -> None:
        self.workers.close()


class _Borrowed(ClientsExecutor):
    """Leaves a clients executor open when it is closed."""

    def __init__(self, executor: ClientsExecutor) -> None:
        check_clients_members(executor)
        self._executor = executor

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        return self._executor.run(work, report, stop)

    def close(self) -> None:
        """Does nothing."""


class _Interleaved(SliceExecutor):
    """Runs a slice executor as calls in several threads do: prepares another stage between `prepare` and the run.

    The other stage is that of the `prepare` before. May also stop a call while it runs.

    Attributes:
        stop: is cancelled `STOP_S` after a slice has begun; None: no call is stopped.
        result: of a slice that ended after `stop` was cancelled; None if it raised or ended before.
        ended: is set when a slice that may be stopped has ended.
        stops: all that the executor's `prepare` got.
        slices: that it ran, as far as they are in memory.
    """

    def __init__(self, executor: SliceExecutor) -> None:
        self.name = executor.name
        self.stop: Stop | None = None
        self.result: SliceResult | None = None
        self.ended = threading.Event()
        self._executor = executor
        self._earlier: ClientWork | None = None
        self.stops: list[Stop] = []
        self.slices: list[weakref.ref] = []

    def prepare(self, work: ClientWork, report: Report, stop: Stop) -> Callable[[ClientSlice], SliceResult]:
        """Prepares the stage, then the stage before once more; returns the run of the first."""
        run = self._executor.prepare(work, report, stop)
        self.stops.append(stop)
        if self._earlier is not None:
            self.stops.append(Stop())
            self._executor.prepare(self._earlier, Report(), self.stops[-1])
        self._earlier = work
        return (
            functools.partial(self._run, run) if self.stop is None else functools.partial(self._stopped, run, self.stop)
        )

    def _run(self, run: Callable[[ClientSlice], SliceResult], clients: ClientSlice) -> SliceResult:
        self.slices.append(weakref.ref(clients))
        return run(clients)

    def _stopped(self, run: Callable[[ClientSlice], SliceResult], stop: Stop, clients: ClientSlice) -> SliceResult:
        """Runs a slice, and cancels its stop after `STOP_S`."""
        timer = threading.Timer(STOP_S, stop.cancel)
        timer.start()
        try:
            result = run(clients)
            self.result = result if stop.is_stopped else None
            return result
        finally:
            timer.cancel()
            self.ended.set()

    def close(self) -> None:
        """Does nothing."""


def _check_memory(name: str, executor: _Interleaved) -> None:
    """Checks that most slices, of calls that have ended, are no longer in memory."""
    gc.collect()
    left = sum(each() is not None for each in executor.slices)
    if left > len(executor.slices) // 2:
        what = f"of {len(executor.slices)} slices that it ran, {left} are in memory after their calls have ended"
        raise LawBroken(f"{name}: calls leave no slices in memory", what)


def _check_earlier_stops(name: str, own: LocalRuntime, executor: _Interleaved) -> None:
    """Cancels the stops of the calls that have ended, and makes a call."""
    for stop in executor.stops:
        stop.cancel()
    case, local = _case_of_two(BLOCK)
    law = "a call does not end by the stop of an earlier one"
    _check(name, attrs.evolve(case, law=law), own, local, list, drops=True)


def _check_stop(name: str, own: LocalRuntime, executor: _Interleaved) -> None:
    """Stops a call while its client runs, and waits until the executor's run has ended."""
    program, executor.stop = _many_steps(), Stop()
    try:
        with stopped_by(executor.stop), fc.use(own, pipeline="default"):
            program.invoke([np.float32(1)])
    except Exception:
        executor.ended.wait(60 * STOP_S)  # the call ends before a run that does not; `prepare` may have raised
    if executor.result is not None:
        what = f"its run gave {executor.result.partial}, {STOP_S} s after `stop` was cancelled: see fc.runtime.Stop"
        raise LawBroken(f"{name}: a call that is stopped has no result", what, program=program.module)


def _check_threads(name: str, own: LocalRuntime, hold: Callable[[list], Iterable], case: _Case) -> None:
    """Makes a call several times after the others, so that all threads and files that stay have been made."""
    threads, files = {*threading.enumerate()}, open_files()
    for _ in range(CALLS):
        _run(case, hold(case.values), own)
    if open_files() >= files + CALLS:
        what = f"{CALLS} calls left {open_files() - files} files open"
        raise LawBroken(f"{name}: calls leave no files open", what, program=case.program.module)
    left = [thread for thread in threading.enumerate() if thread not in threads]
    for thread in left:
        thread.join(1)
    left = [thread for thread in left if thread.is_alive()]
    if len(left) >= CALLS:
        what = f"{CALLS} calls left {', '.join(sorted(thread.name for thread in left))}"
        raise LawBroken(f"{name}: calls leave no threads", what, program=case.program.module)


def _check(name: str, case: _Case, own: LocalRuntime, local: tuple, hold: Callable, drops: bool) -> None:
    """Checks that a case has the result, the report and the dropped clients that it has in the local runtime.

    Args:
        own: the runtime with the executor that is checked.
        local: result and report of the local runtime.
        hold: as for `check_clients_executor`.
        drops: as for `_check_all`.
    """
    law = f"{name}: {case.law}, with {len(case.values)} clients"
    want, expected_report = local
    try:
        have, report = _run(case, hold(case.values), own)
    except Exception as error:
        if case.failing and not drops and isinstance(error, ClientError):
            return
        raise LawBroken(law, f"it raises {type(error).__name__}: {error}", program=case.program.module) from error
    pairs = [
        (_without_site_values(have, want), want, "the result"),
        (sorted(report.dropped), sorted(expected_report.dropped), "the list of dropped clients"),
        ([c.bits for c in report.crossings], [c.bits for c in expected_report.crossings], "the list of crossing bits"),
    ]
    for here, there, part in pairs:
        mismatch = difference(here, there, 0, part)
        if mismatch is not None:
            raise LawBroken(law, mismatch, program=case.program.module)
    counts = [r.graph_calls["blocks"] for r in (report, expected_report)]
    if counts[0] < counts[1] and not case.failing:
        what = f"the report counts {counts[0]} graph calls of slices, not {counts[1]} or more: report.include(theirs)"
        raise LawBroken(f"{name}: the report has the graph calls, with {len(case.values)} clients", what)


def _without_site_values(have: object, want: Any) -> object:
    """The result, with the wanted values where clients' values stay with the clients."""
    if isinstance(have, list) and isinstance(want, list) and len(have) == len(want):
        return [w if isinstance(h, fc.runtime.SiteValue) else h for h, w in zip(have, want, strict=True)]
    return tuple(map(_without_site_values, have, want)) if isinstance(have, tuple) else have


def _run(case: _Case, cohort: Iterable, runtime: LocalRuntime) -> tuple[Any, Report]:
    """The result of a case on a cohort, and the report of the call."""
    with fc.use(runtime, pipeline="default"):
        result, report = case.program.invoke(cohort, seed=case.seed), last_report()
        assert report is not None
        return result, report


def _programs(cohorts: Sequence[int]) -> Iterator[_Case]:
    numbers = np.random.default_rng(0).normal(size=max(cohorts)).astype(np.float32)
    float_programs = {law: fc.federated_computation(body, FLOATS) for law, body in FLOAT_PROGRAMS.items()}
    random_sum = fc.federated_computation(_random_sum, FLOATS)
    sum_of_sequences, text, sum_of_quotients = _sum_of_sequences(), _text(), _sum_of_quotients()
    for clients in cohorts:
        floats = list(numbers[:clients])
        for law, program in float_programs.items():
            yield _Case(law, program, floats)
        for seed in (0, 1):
            yield _Case("random numbers depend on the call's seed and the client's index", random_sum, floats, seed)
        sequences = [list(numbers[: i % 5]) for i in range(clients)]
        yield _Case("a sum of sequences has the local bits", sum_of_sequences, sequences)
        arrays = Values(clients, [clients], "large").value(_arrays_type(clients))
        yield _Case("large tensors and numbers of many bits arrive as they are", _away_from_sum(clients), arrays)
        letters = [chr(ord("a") + i % 26).encode() * (i % 3) + TEXT_ENDS[i % 4] for i in range(clients)]
        yield _Case("clients are folded in order, and the sizes of what they send are reported", text, letters)
    for clients, failing in ((2, {1: 0}), (max(cohorts), {1: 0, BLOCK + 2: np.nan}), (max(cohorts), {BLOCK + 2: 0})):
        values = [np.float32(failing.get(i, 1 + abs(x))) for i, x in enumerate(numbers[:clients])]
        yield _Case("clients that fail are dropped, and no others", sum_of_quotients, values, failing=(*failing,))


FLOATS = FederatedType("float32", fc.CLIENTS)


def _cubes(xs: Value) -> Value:
    return fc.federated_map(fc.tf_computation(lambda x: x * x * x, "float32"), xs)


def _sum_and_each(xs: Value) -> tuple[Value, Value]:
    cubes = _cubes(xs)
    return fc.federated_sum(cubes), cubes


def _deviation(xs: Value) -> Value:
    """The sum of the distances of the clients' values from their sum."""
    away = fc.tf_computation(lambda x, centre: tf.abs(x - centre), "float32", "float32")
    centre = fc.federated_broadcast(fc.federated_sum(xs))
    return fc.federated_sum(fc.federated_map(away, (xs, centre)))


def _random_sum(xs: Value) -> Value:
    return fc.federated_sum(fc.federated_map(fc.tf_computation(lambda x: x + tf.random.uniform([]), "float32"), xs))


def _last(xs: Value) -> Value:
    """The last client's value; the partial is the number of clients and the last value."""
    accumulate = fc.tf_computation(lambda s, x: (s[0] + 1, x), ("int32", "float32"), "float32")

    @fc.tf_computation(("int32", "float32"), ("int32", "float32"))
    def merge(left: tuple[tf.Tensor, tf.Tensor], right: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return left[0] + right[0], tf.where(right[0] > 0, right[1], left[1])

    return fc.federated_aggregate(xs, (0, 0.0), accumulate, merge, lambda s: s[1])


FLOAT_PROGRAMS: dict[str, Callable[[Value], Any]] = {
    "a sum has the local bits": lambda xs: fc.federated_sum(_cubes(xs)),
    "kept values have the local bits": _sum_and_each,
    "kept values reach a later stage": lambda xs: _deviation(_cubes(xs)),
    "partials merge in the order of the clients": _last,
    "values that are broadcast reach the clients": _deviation,
}
"""Law -> the body of a program whose clients have floats."""


def _arrays_type(clients: int) -> FederatedType:
    """Client values of 64 bits, of a dtype that is not numpy's, without entries, and for two clients of some MiB."""
    size = 1 << 19 if clients == 2 else 3
    arrays = {name: (dtype, (9,)) for name, dtype in (("f", "float64"), ("i", "int64"), ("b", "bfloat16"))}
    return FederatedType({"large": ("float32", (size,)), **arrays, "empty": ("float32", (0, 3))}, fc.CLIENTS)


def _away_from_sum(clients: int) -> fc.Computation:
    """The sum of the clients' distances from their sum, and each of them."""

    def away(xs: Value) -> tuple[Value, Value]:
        total = fc.federated_broadcast(fc.federated_sum(xs))
        distances = fc.federated_map(lambda x, t: fc.generic_minus(x, t), (xs, total))
        return fc.federated_sum(distances), distances

    return fc.federated_computation(away, _arrays_type(clients))


def _many_steps() -> fc.Computation:
    @fc.tf_computation("float32")
    def loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < STEPS, lambda i, x: (i + 1, tf.sin(x)), (0, x))[1]

    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(loop, xs)), FLOATS)


def _sum_of_sequences() -> fc.Computation:
    sequences = FederatedType(SequenceType("float32"), fc.CLIENTS)
    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(fc.sequence_sum, xs)), sequences)


def _text() -> fc.Computation:
    joined = fc.tf_computation(lambda left, right: tf.strings.join([left, right]), "str", "str")
    return fc.federated_computation(
        lambda xs: fc.federated_aggregate(xs, "", joined, joined, lambda text: text), FederatedType("str", fc.CLIENTS)
    )


def _sum_of_quotients() -> fc.Computation:
    @fc.tf_computation("float32")
    def quotient(x: tf.Tensor) -> tf.Tensor:  # 0 fails in the graph, and NaN in the finite check
        return x * tf.cast(12 // tf.cast(tf.where(x == 0, x, 1), tf.int32), tf.float32)

    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(quotient, xs)), FLOATS)

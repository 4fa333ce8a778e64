"""Checks the contracts of slice executors and clients executors: their results have the bits of the local runtime."""

import functools
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
    ClientWork,
    LocalRuntime,
    Report,
    SlicedClientsExecutor,
    SliceExecutor,
    Stop,
)
from fedcore.runtime.clients.protocols import check_clients_executor as check_clients_members
from fedcore.runtime.clients.protocols import check_slice_executor as check_members
from fedcore.runtime.reports.result_difference import difference
from fedcore.testing.laws import LawBroken
from fedcore.types import FederatedType, SequenceType

BLOCK = 4
"""Clients of a block."""

WIDTH = 2
"""Clients that one graph computes at once; so small that the largest cohort has several slices."""

COHORTS = (0, 1, 2, BLOCK, BLOCK + 1, 41)
"""Sizes of cohorts. The slices of the last one are not all full."""

ALONE = (0, 1, 2, 7)
"""Sizes of cohorts whose clients are each a block."""


def check_slice_executor(executor: SliceExecutor) -> None:
    """Checks that a slice executor computes the bits of `fc.runtime.local()`.

    Laws, for cohorts of 0, 1, 2, a block, a block and one, and 41 clients, of which the last slice is not full: sums of
    floats, values that clients keep, random numbers of two seeds, sums of sequences of several lengths and sizes of
    what clients send are those of the local runtime; clients that fail are dropped, and no others, and the slices that
    lack them have the same bits; the call's report counts the graph calls of the slices.

    Args:
        executor: runs one slice at a time. It is not closed.
    Raises:
        LawBroken: names the law and the number of clients, and shows the program and the difference.
        TypeMismatch: it is no slice executor.
    Example:
        >>> fc.testing.check_slice_executor(fc.runtime.DeviceSliceExecutor())
    """
    check_members(executor)
    sliced = _LeftOpen([executor], on_client_failure=_POLICY)
    own = fc.runtime.local(block_size=BLOCK, vectorize=WIDTH, clients_executor=sliced)
    _check_all(type(executor).__name__, own, BLOCK, list, drops=True)


def check_clients_executor(
    executor: ClientsExecutor, hold: Callable[[list], Iterable] = list, *, block_size: int = BLOCK
) -> None:
    """Checks that a clients executor computes the bits of `fc.runtime.local()`, on data that it or its clients hold.

    Laws: as for `check_slice_executor`; for `block_size=1` with cohorts of 0, 1, 2 and 7 clients. Values that clients
    keep are also used in a later stage. A client that fails raises `ClientError`, or is dropped, and no others.

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
    _check_all(type(executor).__name__, own, block_size, hold, drops=False)


def _check_all(name: str, own: LocalRuntime, block: int, hold: Callable[[list], Iterable], *, drops: bool) -> None:
    """Checks each case.

    Args:
        drops: the executor must drop clients that fail; else it may raise.
    """
    try:
        for case, local in _cases(block):
            _check(name, case, own, local, hold, drops)
    finally:
        own.close()


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


def _check(name: str, case: _Case, own: LocalRuntime, local: tuple, hold: Callable, drops: bool) -> None:
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
    with fc.use(runtime, pipeline="default"):
        result, report = case.program.invoke(cohort, seed=case.seed), last_report()
        assert report is not None
        return result, report


def _programs(cohorts: Sequence[int]) -> Iterator[_Case]:
    numbers = np.random.default_rng(0).normal(size=max(cohorts)).astype(np.float32)
    float_programs = [
        ("a sum has the local bits", _sum()),
        ("kept values have the local bits", _sum_and_each()),
        ("kept values reach a later stage", _deviation_of_cubes()),
        ("partials merge in the order of the clients", _last()),
        ("values that are broadcast reach the clients", _deviation()),
    ]
    sum_of_sequences, text, random_sum, sum_of_quotients = (
        _sum_of_sequences(),
        _text(),
        _random_sum(),
        _sum_of_quotients(),
    )
    for clients in cohorts:
        floats = list(numbers[:clients])
        for law, program in float_programs:
            yield _Case(law, program, floats)
        for seed in (0, 1):
            yield _Case("random numbers depend on the call's seed and the client's index", random_sum, floats, seed)
        sequences = [list(numbers[: i % 5]) for i in range(clients)]
        yield _Case("a sum of sequences has the local bits", sum_of_sequences, sequences)
        letters = [chr(ord("a") + i % 26) * (i % 3) for i in range(clients)]
        yield _Case("clients are folded in order, and the sizes of what they send are reported", text, letters)
    for clients in (2, max(cohorts)):
        failing = {1: 0, BLOCK + 2: np.nan}
        values = [np.float32(failing.get(i, 1 + abs(x))) for i, x in enumerate(numbers[:clients])]
        yield _Case("clients that fail are dropped, and no others", sum_of_quotients, values, failing=(*failing,))


FLOATS = FederatedType("float32", fc.CLIENTS)


def _sum() -> fc.Computation:
    cube = fc.tf_computation(lambda x: x * x * x, "float32")
    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(cube, xs)), FLOATS)


def _sum_and_each() -> fc.Computation:
    cube = fc.tf_computation(lambda x: x * x * x, "float32")

    def both(xs: Value) -> tuple[Value, Value]:
        cubes = fc.federated_map(cube, xs)
        return fc.federated_sum(cubes), cubes

    return fc.federated_computation(both, FLOATS)


def _deviation_of_cubes() -> fc.Computation:
    """The sum of the distances of the clients' cubes from a number that depends on all cubes."""
    cube = fc.tf_computation(lambda x: x * x * x, "float32")
    away = fc.tf_computation(lambda x, centre: tf.abs(x - centre), "float32", "float32")

    def deviation(xs: Value) -> Value:
        cubes = fc.federated_map(cube, xs)
        centre = fc.federated_broadcast(fc.federated_sum(cubes))
        return fc.federated_sum(fc.federated_map(away, (cubes, centre)))

    return fc.federated_computation(deviation, FLOATS)


def _random_sum() -> fc.Computation:
    noisy = fc.tf_computation(lambda x: x + tf.random.uniform([]), "float32")
    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(noisy, xs)), FLOATS)


def _last() -> fc.Computation:
    """The last client's value; the partial is the number of clients and the last value."""
    accumulate = fc.tf_computation(lambda s, x: (s[0] + 1, x), ("int32", "float32"), "float32")

    @fc.tf_computation(("int32", "float32"), ("int32", "float32"))
    def merge(left: tuple[tf.Tensor, tf.Tensor], right: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return left[0] + right[0], tf.where(right[0] > 0, right[1], left[1])

    return fc.federated_computation(
        lambda xs: fc.federated_aggregate(xs, (0, 0.0), accumulate, merge, lambda s: s[1]), FLOATS
    )


def _deviation() -> fc.Computation:
    away = fc.tf_computation(lambda x, centre: tf.abs(x - centre), "float32", "float32")

    def deviation(xs: Value) -> Value:
        centre = fc.federated_broadcast(fc.federated_sum(xs))
        return fc.federated_sum(fc.federated_map(away, (xs, centre)))

    return fc.federated_computation(deviation, FLOATS)


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

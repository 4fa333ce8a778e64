"""Checks the contract of a slice executor: its results have the bits of the local runtime."""

import functools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.context import last_report
from fedcore.runtime import LocalRuntime, SlicedClientsExecutor, SliceExecutor
from fedcore.runtime.protocols import check_slice_executor as check_members
from fedcore.testing.laws import LawBroken, difference
from fedcore.types import FederatedType, SequenceType

BLOCK = 4
"""Clients of a block."""

WIDTH = 2
"""Clients that one graph computes at once; so small that the largest cohort has several slices."""

COHORTS = (0, 1, 2, BLOCK, BLOCK + 1, 41)
"""Sizes of cohorts. The slices of the last one are not all full."""


def check_slice_executor(executor: SliceExecutor) -> None:
    """Checks that a slice executor computes the bits of `fc.runtime.local()`.

    Laws, for cohorts of 0, 1, 2, a block, a block and one, and 41 clients, of which the last slice is not full: sums of
    floats, values that clients keep, sums of sequences of several lengths and sizes of what clients send are those of
    the local runtime; clients that fail are dropped, and no others, and the slices that lack them have the same bits.

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
    try:
        for law, program, cohort, local in _cases():
            _check(f"{type(executor).__name__}: {law}", program, cohort, own, local)
    finally:
        own.close()


_POLICY = fc.runtime.drop()


@functools.cache
def _cases() -> tuple[tuple[str, fc.Computation, list, tuple], ...]:
    """Laws, each with a program, a cohort, and the result and the report of the local runtime."""
    local = fc.runtime.local(block_size=BLOCK, vectorize=WIDTH, workers_per_device=1, on_client_failure=_POLICY)
    try:
        return tuple((law, program, cohort, _run(program, cohort, local)) for law, program, cohort in _programs())
    finally:
        local.close()


class _LeftOpen(SlicedClientsExecutor):
    """Leaves its slice executors open when it is closed."""

    def close(self) -> None:
        self.workers.close()


def _check(law: str, program: fc.Computation, cohort: list, own: LocalRuntime, local: tuple) -> None:
    law = f"{law}, with {len(cohort)} clients"
    want, wanted = local
    try:
        have, report = _run(program, cohort, own)
    except Exception as error:
        raise LawBroken(law, f"it raises {type(error).__name__}: {error}", program=program.module) from error
    pairs = [
        (have, want, "the result"),
        (sorted(report.dropped), sorted(wanted.dropped), "the list of dropped clients"),
        ([c.bits for c in report.crossings], [c.bits for c in wanted.crossings], "the list of crossing bits"),
    ]
    for here, there, name in pairs:
        found = difference(here, there, 0, name)
        if found is not None:
            raise LawBroken(law, found, program=program.module)


def _run(program: fc.Computation, cohort: list, runtime: LocalRuntime):
    with fc.use(runtime, pipeline="default"):
        return program.invoke(cohort, seed=0), last_report()


def _programs() -> Iterator[tuple[str, fc.Computation, list]]:
    """Laws, each with a program of one client value, and a cohort."""
    numbers = np.random.default_rng(0).normal(size=max(COHORTS)).astype(np.float32)
    of_floats = [
        ("a sum has the local bits", _sum()),
        ("kept values have the local bits", _sum_and_each()),
        ("random numbers depend on the call's seed and the client's index", _random_sum()),
        ("partials merge in the order of the clients", _last()),
        ("values that are broadcast reach the clients", _deviation()),
    ]
    sum_of_sequences, text, sum_of_quotients = _sum_of_sequences(), _text(), _sum_of_quotients()
    for clients in COHORTS:
        for law, program in of_floats:
            yield law, program, list(numbers[:clients])
        sequences = [list(numbers[: i % 5]) for i in range(clients)]
        yield "a sum of sequences has the local bits", sum_of_sequences, sequences
        letters = [chr(ord("a") + i % 26) * (i % 3) for i in range(clients)]
        yield "clients are folded in order, and the sizes of what they send are reported", text, letters
    for clients in (2, max(COHORTS)):
        faulty = [np.float32({1: 0, BLOCK + 2: np.nan}.get(i, 1 + abs(x))) for i, x in enumerate(numbers[:clients])]
        yield "clients that fail are dropped, and no others", sum_of_quotients, faulty


FLOATS = FederatedType("float32", fc.CLIENTS)


def _sum() -> fc.Computation:
    cube = fc.tf_computation(lambda x: x * x * x, "float32")
    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(cube, xs)), FLOATS)


def _sum_and_each() -> fc.Computation:
    cube = fc.tf_computation(lambda x: x * x * x, "float32")

    def both(xs):
        cubes = fc.federated_map(cube, xs)
        return fc.federated_sum(cubes), cubes

    return fc.federated_computation(both, FLOATS)


def _random_sum() -> fc.Computation:
    noisy = fc.tf_computation(lambda x: x + tf.random.uniform([]), "float32")
    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(noisy, xs)), FLOATS)


def _last() -> fc.Computation:
    """The last client's value; the partial is the number of clients and the last value."""
    accumulate = fc.tf_computation(lambda s, x: (s[0] + 1, x), ("int32", "float32"), "float32")

    @fc.tf_computation(("int32", "float32"), ("int32", "float32"))
    def merge(left, right):
        return left[0] + right[0], tf.where(right[0] > 0, right[1], left[1])

    return fc.federated_computation(
        lambda xs: fc.federated_aggregate(xs, (0, 0.0), accumulate, merge, lambda s: s[1]), FLOATS
    )


def _deviation() -> fc.Computation:
    away = fc.tf_computation(lambda x, centre: tf.abs(x - centre), "float32", "float32")

    def deviation(xs):
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
    def quotient(x):  # 0 fails in the graph, and NaN in the finite check
        return x * tf.cast(12 // tf.cast(tf.where(x == 0, x, 1), tf.int32), tf.float32)

    return fc.federated_computation(lambda xs: fc.federated_sum(fc.federated_map(quotient, xs)), FLOATS)

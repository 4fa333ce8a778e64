"""Each policy of client stages alone: on a stage that adds clients' numbers in Python."""

import operator

import attrs
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import ClientError, FedcoreError
from fedcore.graphs.batched.batched_value import NoBatchingRule
from fedcore.runtime import ClientSlice, FaultPolicy, Report, SliceResult, Stop
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.deadlines import deadline
from fedcore.runtime.clients.finite_check import NotFinite, checked_finite
from fedcore.runtime.clients.fitting_slices import FittingSlices
from fedcore.runtime.clients.memory import DeviceMemory
from fedcore.runtime.clients.reader import TooLate
from fedcore.runtime.stopping import Stopped

NO_MEMORY = tf.errors.ResourceExhaustedError(None, None, "full")


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total(xs):
    return fc.federated_sum(xs)


@pytest.fixture(scope="module")
def work():
    """A vectorised stage with block=8."""
    plan = total.to_module("planned")
    return ClientWork(plan, plan.digest(), "zero", "clients", "join", (), (), (range(1),), keeps=False, seed=0)


def numbers(first, places, values):
    return ClientSlice(first, places, tuple(None if v is None else (v,) for v in values))


def add(clients):
    """The fold; what it is given stands in the partial, in order."""
    return SliceResult([value for (value,) in clients.values], {i: i for i in clients.present})


def fitting(work, run, one_by_one=lambda clients, *, batched: add(clients), report=None, memory=None):
    """The policy of slices, over functions that run a slice together, and one block client by client."""
    memory, report = memory or DeviceMemory(1), report or Report()
    return FittingSlices(work, memory, run, one_by_one, operator.add, "CPU:0", report, lambda clients: clients.places)


# Memory.


def test_a_slice_that_does_not_fit_runs_in_halves_and_later_ones_begin_so(work):
    asked, report = [], Report()

    def run(clients):
        asked.append(clients.places)
        if clients.places > 16:
            raise NO_MEMORY
        return add(clients)

    slices = fitting(work, run, report=report)
    assert slices(numbers(0, 64, range(64))) == SliceResult(list(range(64)), {i: i for i in range(64)})
    assert asked == [64, 32, 16, 16, 16, 16]
    asked.clear()
    assert slices(numbers(64, 64, range(40))).partial == list(range(40))
    assert asked == [16, 16, 16]  # a half without clients does not run
    assert report.notes == [
        "CPU:0 ran out of memory: @clients runs there in calls of 32 clients",
        "CPU:0 ran out of memory: @clients runs there in calls of 16 clients",
    ]


def test_a_block_that_does_not_fit_runs_client_by_client(work):
    def full(clients):
        raise NO_MEMORY

    ran, memory = [], DeviceMemory(1)

    def one_by_one(clients, *, batched):
        ran.append((clients.places, batched))
        return add(clients)

    assert fitting(work, full, one_by_one, memory=memory)(numbers(0, 16, range(12))).partial == list(range(12))
    assert ran == [(8, True), (8, True)]
    assert memory.clients(work.key, 8) == 0


def test_a_client_of_a_loop_that_does_not_fit_alone_fails(work):
    plan = work.module
    stage = plan.function("clients")
    loop = attrs.evolve(stage, attributes={"strategy": "loop", "block": 1})
    module = attrs.evolve(plan, functions=tuple(loop if f is stage else f for f in plan.functions))

    def full(clients):
        raise NO_MEMORY

    with pytest.raises(tf.errors.ResourceExhaustedError):
        fitting(attrs.evolve(work, module=module), full)(numbers(0, 1, [5]))


def test_slices_that_do_not_shrink_fail_also_where_they_are_vectorised(work):
    """At a site another graph would tell that its memory was short, by other last bits."""

    def full(clients):
        raise NO_MEMORY

    memory = DeviceMemory(1, shrinks=False)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        fitting(work, full, memory=memory)(numbers(0, 16, range(12)))
    assert memory.clients(work.key, 16) == 16


def test_a_graph_call_runs_again_with_fewer_beside_it_until_it_is_alone():
    memory, limits = DeviceMemory(4), []

    def full():
        raise NO_MEMORY

    with pytest.raises(tf.errors.ResourceExhaustedError):
        memory.run(full, Stop(), limits.append)
    assert limits == [2, 1]
    assert memory.run(lambda: 7, Stop(), limits.append) == 7


# No batching rule.


def test_clients_without_a_batching_rule_run_one_by_one_and_are_tried_once(work):
    work, tried, report = attrs.evolve(work), [], Report()

    def vectorised(clients):
        tried.append(clients.first)
        raise NoBatchingRule("Foo", "there is no rule")

    slices = fitting(work, vectorised, report=report)
    assert slices(numbers(0, 8, [1, 2])).partial == [1, 2]
    assert slices(numbers(8, 8, [3])).partial == [3]
    assert tried == [0]
    assert report.notes == ["@clients runs client by client: Foo is not vectorised over clients: there is no rule"]


def test_clients_whose_layouts_differ_run_one_by_one_and_other_blocks_still_vectorised(work):
    from fedcore.data import columns_of

    def column(*shape):
        return columns_of(np.ones(shape, np.float32), fc.SequenceType(fc.TensorType("float32", shape[1:])))

    def together(clients):
        return SliceResult([("vectorised", clients.first, clients.places)])

    def one_by_one(clients, *, batched):
        assert not batched
        return SliceResult([("one by one", clients.first, clients.places)])

    report = Report()
    slices = fitting(attrs.evolve(work), together, one_by_one, report)
    alike, mixed = [column(2, 3), column(5, 3)], [column(2, 3), column(5, 4)]
    assert slices(numbers(0, 8, mixed)).partial == [("one by one", 0, 8)]
    assert slices(numbers(0, 8, alike)).partial == [("vectorised", 0, 8)]
    slice_of_blocks = [*alike, *[None] * 6, *mixed, *[None] * 6, *alike]
    assert slices(numbers(0, 32, [*slice_of_blocks, *[None] * 14])).partial == [
        ("vectorised", 0, 8),
        ("one by one", 8, 8),
        ("vectorised", 16, 16),
    ]
    assert not report.notes


def test_clients_that_fail_side_by_side_run_in_halves_once_and_those_that_fail_alone_without_rules(work):
    """Client 13 fails where other clients are in its call, client 3 wherever batching rules compute it."""
    ran, report = [], Report()

    def fail_with(number, clients):
        if number in [value for (value,) in clients.values]:
            raise tf.errors.InvalidArgumentError(None, None, "a value of another client")

    def together(clients):
        ran.append(("together", clients.places))
        fail_with(3, clients)
        fail_with(13, clients)
        return add(clients)

    def one_by_one(clients, *, batched):
        ran.append(("one by one", batched))
        if batched:
            fail_with(3, clients)
        return add(clients)

    assert fitting(work, together, one_by_one, report)(numbers(0, 16, range(16))).partial == list(range(16))
    blocks = [[("together", 8), ("one by one", True), ("one by one", False)], [("together", 8), ("one by one", True)]]
    assert ran == [("together", 16), *blocks[0], *blocks[1]]
    ran.clear()
    assert fitting(work, together, one_by_one, report)(numbers(0, 16, [None, 3])).partial == [3]  # the only client
    assert ran == [("together", 16), ("together", 8), ("one by one", False)]
    assert report.notes == [
        "@clients: clients failed side by side; they ran in smaller calls",
        "@clients ran client by client: its clients together raised InvalidArgumentError",
    ]


@fc.tf_computation("float32", "float32")
def plus(a, b):
    return a + b


@fc.tf_computation
def third():
    return tf.constant(1 / 3)


@fc.tf_computation("float32")
def same(x):
    return tf.identity(x)


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total_from_a_third(xs):
    return fc.federated_aggregate(xs, third(), plus, plus, same)


@pytest.mark.parametrize("computation", [total, total_from_a_third], ids=["from zero", "from a third"])
def test_sums_without_batching_rules_are_those_of_the_stage_in_slices_of_any_size(computation):
    """Also where a block is no power of two: clients are added up in a block, from one zero, then blocks merge."""
    with fc.use(fc.runtime.local(block_size=3, vectorize=2)):
        plan = computation.to_module("planned")
    assert plan.function("clients").attributes["block"] == 3
    (fold,) = [op for op in plan.main.operations if op.kind == "fold"]
    zero, clients = [operand.name for operand in fold.operands if operand.name in plan.symbols()]
    (merge,) = [op for op in plan.main.operations if op.kind == "merge"]
    join = merge.operands[0].name
    work = ClientWork(plan, plan.digest(), zero, clients, join, (), (), (range(1),), keeps=False, seed=0)
    work.without_rules.add(())
    report = Report()
    stage = fc.runtime.DeviceSliceExecutor("CPU:0").prepare(work, report, Stop())
    values = list(np.random.default_rng(0).normal(size=12).astype(np.float32))  # their tree of 12 has other bits
    halves = [stage(numbers(first, 6, values[first : first + 6])).partial for first in (0, 6)]
    merged = stage.merge(*halves)
    whole = stage(numbers(0, 12, values)).partial
    assert report.graph_calls["blocks"] == 24  # a call for each client
    side_by_side = fc.runtime.DeviceSliceExecutor("CPU:0").prepare(attrs.evolve(work), Report(), Stop())
    batched = side_by_side(numbers(0, 12, values)).partial
    assert whole.numpy().tobytes() == merged.numpy().tobytes()
    np.testing.assert_allclose(whole, batched, rtol=1e-6)  # side by side, a third is added last
    assert computation is total_from_a_third or whole.numpy().tobytes() == batched.numpy().tobytes()


# The finite check.


def summed(clients):
    return SliceResult((tf.add_n([tf.constant(v, tf.float32) for (v,) in clients.values]),))


def test_only_floats_that_are_not_finite_fail_the_check():
    assert checked_finite(summed)(numbers(0, 2, [1.0, 2.0])).partial[0] == 3
    with pytest.raises(NotFinite):
        checked_finite(summed)(numbers(0, 2, [1.0, float("nan")]))
    with pytest.raises(NotFinite):
        checked_finite(lambda clients: SliceResult(None, {0: tf.constant([float("inf")])}))(numbers(0, 1, [1.0]))
    whole = SliceResult((tf.constant(2**31 - 1), b"nan", tf.constant("nan")))
    assert checked_finite(lambda clients: whole)(numbers(0, 1, [1.0])) is whole


# Faults.


def test_finite_clients_whose_sum_is_not_stay():
    report = Report()
    largest = float(np.finfo(np.float32).max)
    result = FaultPolicy(fc.runtime.drop(), report).survivors(checked_finite(summed), numbers(0, 2, [largest, largest]))
    assert np.isinf(result.partial[0])
    assert report.dropped == {}


def test_the_client_that_fails_is_found_and_left_out():
    def run(clients):
        if 13 in [value for (value,) in clients.values]:
            raise ValueError("thirteen")
        return add(clients)

    report = Report()
    policy = FaultPolicy(fc.runtime.drop(), report)
    assert policy.survivors(run, numbers(8, 4, [11, 12, 13, 14])).partial == [11, 12, 14]
    assert report.dropped == {10: "ValueError: thirteen"}
    assert policy.survivors(run, numbers(12, 4, [13])) is None
    with pytest.raises(ClientError, match="client 10 failed: ValueError: thirteen"):
        FaultPolicy(None, Report()).survivors(run, numbers(8, 4, [11, 12, 13, 14]))


# The deadline.


def stopped_within(stop, seconds, stops):
    """A graph call that runs until it is stopped, by `stops` or by its deadline."""
    with deadline(stop, seconds) as within:
        stops()
        while not within.is_stopped:
            pass
        raise Stopped("the call was stopped")


def test_a_deadline_is_told_apart_from_a_stopped_call():
    with pytest.raises(TooLate, match=r"the graph did not end within 0\.01 s"):
        stopped_within(Stop(), 0.01, lambda: None)
    stop = Stop()
    with pytest.raises(Stopped, match="the call was stopped"):
        stopped_within(stop, 60, stop.cancel)


# Parts of slices.


def test_parts_are_whole_blocks_in_order_and_none_is_empty():
    part = numbers(32, 32, [*range(11), None, None, None, None, None, *range(3)]).parts(block=4, most=8)
    assert [(p.first, p.places, len(p.clients), p.present) for p in part] == [
        (32, 8, 8, list(range(32, 40))),
        (40, 8, 8, [40, 41, 42]),
        (48, 8, 3, [48, 49, 50]),
    ]
    whole = numbers(0, 8, [None, 7])
    assert whole.parts(block=4, most=100) == [whole]
    assert [p.places for p in numbers(0, 24, range(24)).parts(block=6, most=11)] == [6, 6, 6, 6]
    assert ClientSlice(0, 8, ()).parts(block=4, most=4) == []


def test_a_slice_of_few_clients_is_divided_where_its_clients_are():
    def present(places, clients, count, block=8):
        return [p.present for p in numbers(0, places, clients).divided(block, count)]

    assert present(512, range(40), 2) == [list(range(32)), list(range(32, 40))]
    assert present(512, range(10), 2) == [list(range(8)), [8, 9]]
    assert present(512, range(5), 2) == [list(range(5))]  # a single block
    assert present(24, range(24), 2, block=6) == [list(range(12)), list(range(12, 24))]
    assert present(24, range(24), 3) == [list(range(24))]  # three blocks have no halves
    assert present(0, (), 2) == []


@pytest.mark.parametrize(("places", "block", "most"), [(8, 8, 4), (24, 8, 8), (8, 3, 8), (1, 1, 0)])
def test_parts_of_broken_blocks_are_refused(places, block, most):
    text = f"a slice of {places} places has no parts of whole blocks of {block} with at most {most} clients"
    with pytest.raises(FedcoreError, match=text):
        numbers(0, places, range(places)).parts(block, most)


def test_joined_parts_merge_in_the_tree_of_the_whole_slice():
    """Also where parts are left out: the first, the fourth, the seventh and the eighth."""
    clients = numbers(16, 16, [None, None, *range(4), None, None, *range(4, 8)])
    parts = clients.parts(block=2, most=2)
    results = [SliceResult(str(part.values[0][0]), {i: i for i in part.present}) for part in parts]
    joined = clients.joined(parts, results, lambda left, right: f"({left} {right})")
    assert joined.partial == "((0 2) (4 6))"
    assert list(joined.kept) == clients.present


def test_parts_without_a_fold_are_joined_without_a_merge():
    clients = numbers(0, 4, range(4))
    parts = clients.parts(block=2, most=2)
    kept = [SliceResult(None, {i: i}, {i: np.int64([i])}) for i in (0, 2)]
    assert clients.joined(parts, kept, None) == SliceResult(None, {0: 0, 2: 2}, {0: np.int64([0]), 2: np.int64([2])})

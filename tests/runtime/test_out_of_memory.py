"""Devices that run out of memory, or have a budget: less runs at once, the bits stay."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
from local_runtimes import shared_runtime
from separate_process import in_process

import fedcore as fc
from fedcore import context
from fedcore.errors import ClientError, ExecutionError, FedcoreError
from fedcore.testing.faults import out_of_memory

VALUE = ("float32", (300,))
CLIENT_BYTES = 1200
VALUES = fc.FederatedType(VALUE, fc.CLIENTS)
LARGE = 1 << 15


@fc.tf_computation(VALUE)
def spread(x):
    return tf.tan(x) / 3.0, tf.reduce_max(x)


@fc.federated_computation(VALUES)
def average_and_largest(xs):
    pairs = fc.federated_map(spread, xs)
    return fc.federated_mean(pairs[0]), fc.federated_max(pairs[1])


@fc.tf_computation(VALUE)
def many(x):
    return tf.tile(x, [LARGE // 300])


@fc.federated_computation(VALUES)
def large_sum(xs):
    return fc.federated_sum(fc.federated_map(many, xs))


@fc.tf_computation
def third():
    return tf.fill([300], np.float32(1.0 / 3.0))


@fc.tf_computation(VALUE, VALUE)
def plus(a, b):
    return a + b


@fc.tf_computation(VALUE)
def same(x):
    return tf.identity(x)


@fc.federated_computation(VALUES)
def sum_from_a_third(xs):
    return fc.federated_aggregate(xs, third(), plus, plus, same)


@fc.tf_computation(VALUE)
def halves(x):
    return x / 2.0


@fc.federated_computation(VALUES)
def sum_and_values(xs):
    mine = fc.federated_map(halves, xs)
    return fc.federated_sum(mine), mine


@fc.federated_computation(VALUES)
def values_alone(xs):
    return fc.federated_map(halves, xs)


@fc.tf_computation(VALUE, VALUE)
def half_and_next(total, x):
    return total / 2.0 + x


@fc.federated_computation(VALUES)
def sum_and_rows(xs):
    rows = fc.federated_collect(fc.federated_map(halves, xs), 2)
    return fc.federated_sum(xs), fc.federated_map(lambda r: fc.sequence_reduce(r, third(), half_and_next), rows)


def cohort(count: int) -> list[np.ndarray]:
    draws = np.random.default_rng(count)
    return [(draws.normal(size=300) * 1e3).astype(np.float32) for _ in range(count)]


def bits(result) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(result)]


@functools.cache
def with_all_memory(computation, count: int, **settings) -> list[bytes]:
    """The result for so many clients."""
    with fc.use(shared_runtime(workers_per_device=1, **settings)):
        return bits(computation(cohort(count)))


def test_half_as_many_calls_run_at_once_where_they_do_not_fit():
    clients = cohort(64)
    runtime = fc.runtime.local(workers_per_device=4, vectorize=False)
    with fc.use(runtime), out_of_memory(runtime, "CPU:0", calls=[5]) as failed:
        result = average_and_largest(clients)
        assert failed == [5]
        assert context.last_report().notes == [
            "/device:CPU:0 ran out of memory: at most 2 of its calls run at once now"
        ]
        assert bits(result) == with_all_memory(average_and_largest, len(clients), vectorize=False)
        assert context.last_report().notes == []
    runtime.close()


def _soak(*values):
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize("fits", [1, 12])
@pytest.mark.parametrize(
    ("vectorize", "block"),
    [(4, "auto"), (4, 16), (4, 1), (False, 16), (False, 3), *(_soak("auto", block) for block in ("auto", 16, 1))],
)
@pytest.mark.parametrize("computation", [average_and_largest, sum_from_a_third], ids=lambda c: c.__name__)
def test_calls_are_cut_until_they_fit_and_the_bits_stay(computation, vectorize, block, fits):
    clients = cohort(45)
    settings = {"vectorize": vectorize, "block_size": block}
    runtime = fc.runtime.local(workers_per_device=1, **settings)
    # A stacked client runs beside a copy, and is given the partial; so is a merge, twice.
    capacity = max(fits * CLIENT_BYTES, 2 * CLIENT_BYTES) + 4 * CLIENT_BYTES
    with fc.use(runtime), out_of_memory(runtime, "CPU:0", capacity_bytes=capacity) as failed:
        result = computation(clients)
        cut = len(failed)
        again = computation(clients)
    runtime.close()
    assert bits(result) == with_all_memory(computation, len(clients), **settings)
    assert bits(again) == bits(result)
    assert len(failed) == cut  # what fits was learned
    assert bool(cut) == (block != 3)


@pytest.mark.parametrize("block", ["auto", 16])
def test_large_leaves_keep_their_bits_when_clients_run_one_by_one(block):
    clients = cohort(20)
    runtime = fc.runtime.local(workers_per_device=1, block_size=block)
    with fc.use(runtime):
        plan = context.plan_of(large_sum.module).function("clients").attributes
        sizes = (plan["call"] // plan["block"]).bit_length()  # from a whole call down to one block
        with out_of_memory(runtime, "CPU:0", calls=range(sizes)) as failed:
            result = large_sum(clients)
    assert "in calls of 1 client" in context.last_report().notes[-1]
    runtime.close()
    assert len(failed) == sizes
    assert bits(result) == with_all_memory(large_sum, len(clients), block_size=block)


@pytest.mark.parametrize(
    ("settings", "memory_bytes", "says"),
    [
        ({"vectorize": 16}, 200_000, "groups of 4 clients in the place of 16"),
        ({"vectorize": 16}, 100_000, "calls of 16 clients in the place of 128"),
        ({"vectorize": 16}, 20_000, "calls of 1 client in the place of 128"),
        ({"vectorize": False, "block_size": 16}, 40_000, "loops of 2 clients in the place of 4"),
    ],
)
def test_calls_fit_into_the_memory_budget_and_the_bits_stay(settings, memory_bytes, says):
    clients = cohort(45)
    runtime = fc.runtime.local(workers_per_device=1, memory_bytes=memory_bytes, **settings)
    with fc.use(runtime):
        result = average_and_largest(clients)
        report = context.last_report()
    runtime.close()
    assert any(says in note and "to fit into" in note for note in report.notes)
    assert 0 < report.memory["clients"].needed_bytes <= memory_bytes == report.memory["clients"].budget_bytes
    assert bits(result) == with_all_memory(average_and_largest, len(clients), **settings)


def test_a_budget_without_room_for_one_client_is_an_error_with_what_it_needs():
    runtime = fc.runtime.local(memory_bytes=2_000)
    with fc.use(runtime), pytest.raises(ExecutionError) as caught:
        average_and_largest(cohort(5))
    runtime.close()
    says = r"@clients needs (\S+) KiB if clients run one after .* memory_bytes allows 2\.0 KiB: .* memory_bytes=(\d+),"
    needs = re.match(says, str(caught.value))
    assert needs is not None
    runtime = fc.runtime.local(memory_bytes=int(needs[2]))
    with fc.use(runtime):
        average_and_largest(cohort(5))
        assert str(context.last_report().memory["clients"]).startswith(f"{needs[1]} KiB of {needs[1]} KiB: ")
    runtime.close()


def test_without_a_budget_calls_are_as_planned():
    runtime = fc.runtime.local()
    with fc.use(runtime):
        average_and_largest(cohort(45))
        (memory,) = context.last_report().memory.values()
    runtime.close()
    assert (memory.why, memory.is_limited) == ("the plan's width", False)


def test_the_report_says_how_calls_were_cut():
    runtime = fc.runtime.local(workers_per_device=1)
    capacity = 12 * CLIENT_BYTES
    with fc.use(runtime), out_of_memory(runtime, "CPU:0", capacity_bytes=capacity):
        average_and_largest(cohort(100))
    notes = context.last_report().notes
    runtime.close()
    assert notes
    for note in notes:
        assert re.fullmatch(r"/device:CPU:0 ran out of memory: @clients runs there in calls of \d+ clients?", note)


@pytest.mark.parametrize("computation", [values_alone, sum_and_rows])
def test_values_of_clients_come_back_from_clients_one_by_one(computation):
    clients = cohort(10)
    runtime = fc.runtime.local(workers_per_device=1)
    with fc.use(runtime), out_of_memory(runtime, "CPU:0", capacity_bytes=7 * CLIENT_BYTES) as failed:
        result = computation(clients)
    runtime.close()
    assert failed
    assert bits(result) == with_all_memory(computation, len(clients))


@pytest.mark.parametrize("block", [4, "auto"])
def test_values_that_are_kept_come_back_from_cut_calls(block):
    clients = cohort(10)
    settings = {"block_size": block, "vectorize": False}
    runtime = fc.runtime.local(workers_per_device=1, **settings)
    with fc.use(runtime), out_of_memory(runtime, "CPU:0", capacity_bytes=3 * CLIENT_BYTES) as failed:
        result = sum_and_values(clients)
    runtime.close()
    assert bool(failed) == (block == 4)
    assert bits(result) == with_all_memory(sum_and_values, len(clients), **settings)


@pytest.mark.parametrize("vectorize", ["auto", False])
def test_a_client_that_does_not_fit_alone_is_named_in_tensorflows_error_too(vectorize):
    runtime = fc.runtime.local(workers_per_device=2, vectorize=vectorize)
    with fc.use(runtime):
        with out_of_memory(runtime, "CPU:0", capacity_bytes=CLIENT_BYTES // 2):
            with pytest.raises(tf.errors.ResourceExhaustedError, match=r"client \d+ failed: call .* fails") as caught:
                average_and_largest(cohort(5))
            assert isinstance(caught.value, ClientError)
        mean, _ = average_and_largest(cohort(5))
        assert np.isfinite(mean).all()
    runtime.close()


@pytest.mark.parametrize("vectorize", ["auto", False])
def test_a_client_that_does_not_fit_alone_is_left_out_where_failures_are(vectorize):
    rows = fc.SequenceType("float32")

    @fc.tf_computation("float32", "float32")
    def add(a, b):
        return a + b

    @fc.federated_computation(fc.FederatedType(rows, fc.CLIENTS))
    def total(data):
        return fc.federated_sum(fc.federated_map(lambda one: fc.sequence_reduce(one, 0.0, add), data))

    clients = [fc.data.ClientDataset.from_columns(np.ones(10_000 if i == 3 else 10, np.float32)) for i in range(9)]
    runtime = fc.runtime.local(workers_per_device=2, vectorize=vectorize, on_client_failure=fc.runtime.drop())
    with fc.use(runtime), out_of_memory(runtime, "CPU:0", capacity_bytes=20_000):
        assert total(clients) == 80.0
    assert list(context.last_report().dropped) == [3]
    runtime.close()


def test_a_device_without_clients_is_refused():
    runtime = fc.runtime.local()
    with (
        pytest.raises(FedcoreError, match=r"the runtime runs clients on \['/device:CPU:0'\], not on 'CPU:7'"),
        out_of_memory(runtime, "CPU:7"),
    ):
        pass
    runtime.close()


FOUR = """
import hashlib, random, threading
import numpy as np, tensorflow as tf
import fedcore as fc
from fedcore import context
from fedcore.runtime.devices.device import DeviceExecutor
from fedcore.testing.faults import Faults, act, out_of_memory

random.seed(3)
call = DeviceExecutor.call

def shuffled(self, function, tensors, stop):
    out = call(self, function, tensors, stop)
    threading.Event().wait(random.random() * 0.005)
    return out

DeviceExecutor.call = shuffled
VALUE = ("float32", (3,))
FLAGGED = fc.FederatedType((VALUE, "int32"), fc.CLIENTS)

@fc.tf_computation((VALUE, "int32"))
def acts(client):
    return act(client[1], tf.tan(client[0]) / 3.0)

@fc.federated_computation(FLAGGED)
def average(clients):
    return fc.federated_mean(fc.federated_map(acts, clients))

draws = np.random.default_rng(0)
values = [(draws.normal(size=3) * 1e3).astype(np.float32) for _ in range(150)]

def digest(result):
    return hashlib.sha256(result.tobytes()).hexdigest()

def stack(devices, workers, vectorize):
    names = [f"CPU:{i}" for i in range(devices)]
    return fc.runtime.local(
        client_devices=names, workers_per_device=workers, vectorize=vectorize,
        on_client_failure=fc.runtime.drop(max_retries=0),
    )
"""


@pytest.mark.slow
def test_one_of_four_devices_runs_out_of_memory_in_the_midst_of_a_round():
    told = in_process(
        FOUR
        + """
# Fewer calls at once, 4, 2, 1; where clients are stacked, then smaller ones.
for vectorize, calls in (("auto", [0, 1, 2, 3]), (False, [0, 4])):
    found, runtime = set(), stack(4, 4, vectorize)
    clients = list(zip(values, [np.int32(0)] * 150))
    with fc.use(runtime):
        found.add(digest(average(clients)))
        with out_of_memory(runtime, "CPU:2", calls=calls) as failed:
            found.add(digest(average(clients)))
        tell([len(found), len(failed), context.last_report().notes, len(context.last_report().dropped)])
    runtime.close()
""",
        cpus=4,
    )
    for (digests, failed, notes, dropped), calls in zip(told, (4, 2), strict=True):
        assert (digests, failed, dropped) == (1, calls, 0)
        assert all(note.startswith("/device:CPU:2 ran out of memory: ") for note in notes)
        assert notes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "places"), [("raise", [(1, 1), (2, 3), (4, 8)]), _soak("nan", [(1, 1), (1, 8), (2, 3), (4, 1), (4, 8)])]
)
def test_neither_devices_nor_workers_nor_the_order_show_in_the_survivors_bits(kind, places):
    told = in_process(
        FOUR
        + f"""
faults = Faults(2, {kind!r}, 0.3)
clients = list(zip(values, faults.flags(150)))
for vectorize in ("auto", False):
    found = set()
    for devices, workers in {places}:
        runtime = stack(devices, workers, vectorize)
        with fc.use(runtime):
            found.add(digest(average(clients)))
            assert sorted(context.last_report().dropped) == faults.clients(150)
        runtime.close()
    tell(len(found))
""",
        cpus=4,
    )
    assert told == [1, 1]

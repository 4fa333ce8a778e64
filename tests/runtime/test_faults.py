"""Clients that fail: named, or left out of a result that is the survivors' to the bit."""

import asyncio
import gc
import math
import re
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from local_runtimes import local_runtime

import fedcore as fc
from fedcore import context
from fedcore.errors import ClientError, FedcoreError, TypeMismatch
from fedcore.testing.faults import Faults, InjectedFault, act

BLOCK = 8
VALUE = ("float32", (3,))
FLAGGED = fc.FederatedType((VALUE, "int32"), fc.CLIENTS)
FLOATS = fc.FederatedType("float32", fc.CLIENTS)
STEPS = fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS)


@fc.tf_computation((VALUE, "int32"))
def acts(client):
    return act(client[1], client[0])


@fc.tf_computation((VALUE, "int32"))
def acts_or_hangs(client):
    return act(client[1], client[0], hangs=True)


@fc.federated_computation(FLAGGED)
def average(clients):
    return fc.federated_mean(fc.federated_map(acts, clients))


@fc.federated_computation(FLAGGED)
def looped_average(clients):
    return fc.federated_mean(fc.federated_map(acts_or_hangs, clients))


@fc.federated_computation(FLOATS)
def total(xs):
    return fc.federated_sum(xs)


@fc.tf_computation("float32", "float32")
def add(a, b):
    return a + b


@fc.federated_computation(STEPS)
def total_of_steps(data):
    return fc.federated_sum(fc.federated_map(lambda steps: fc.sequence_reduce(steps, 0.0, add), data))


FRACTIONS = [0.1, pytest.param(0.3, marks=pytest.mark.soak)]
STAGES = {"stacked": (average, {"vectorize": "auto"}), "looped": (looped_average, {"vectorize": False})}


def values(count: int) -> list[np.ndarray]:
    draws = np.random.default_rng(count)
    return [(draws.normal(size=3) * 1e3).astype(np.float32) for _ in range(count)]


def survivors_mean(clients: list, dropped: list[int], block: int = BLOCK) -> np.ndarray:
    """By hand: blocks in the order of their clients, then the tree over blocks; what is absent adds nothing."""
    partials: list = []
    for first in range(0, len(clients), block):
        partial = None
        for i in range(first, min(first + block, len(clients))):
            if i not in dropped:
                partial = clients[i] if partial is None else partial + clients[i]
        partials.append(partial)
    while len(partials) > 1:
        pairs = [partials[i : i + 2] for i in range(0, len(partials), 2)]
        partials = [merged(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return partials[0] / np.float32(len(clients) - len(dropped))


def merged(left, right):
    if left is None or right is None:
        return right if left is None else left
    return left + right


def runtime_of(**settings):
    return local_runtime(**{"on_client_failure": fc.runtime.drop(), "workers_per_device": 2, **settings})


def test_the_stages_of_these_tests_run_as_they_say():
    for name, strategy in (("stacked", "vectorised"), ("looped", "loop")):
        assert STAGES[name][0].to_module("planned").function("clients").attributes["strategy"] == strategy


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_the_result_is_the_survivors_to_the_bit(stage, kind, fraction):
    computation, settings = STAGES[stage]
    faults = Faults(5, kind, fraction)
    clients = values(70)
    with runtime_of(block_size=BLOCK, **settings):
        result = computation(list(zip(clients, faults.flags(70), strict=True)))
    assert sorted(context.last_report().dropped) == faults.clients(70)
    assert result.tobytes() == survivors_mean(clients, faults.clients(70)).tobytes()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("kind", ["raise", "nan", "misshapen"])
def test_faults_of_the_data_are_left_out_like_those_of_the_graph(stage, kind, fraction):
    computation, settings = STAGES[stage]
    faults = Faults(6, kind, fraction)
    clients = values(70)
    with runtime_of(block_size=BLOCK, **settings):
        result = computation(faults.cohort([(x, np.int32(0)) for x in clients]))
    assert sorted(context.last_report().dropped) == faults.clients(70)
    assert result.tobytes() == survivors_mean(clients, faults.clients(70)).tobytes()


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_graphs_that_hang_are_ended_and_left_out(fraction):
    faults = Faults(7, "hang", fraction)
    clients = values(12)
    with runtime_of(block_size=4, vectorize=False, client_timeout_s=0.3):
        result = looped_average(list(zip(clients, faults.flags(12), strict=True)))
    assert context.last_report().dropped == dict.fromkeys(faults.clients(12), "the graph did not end within 0.3 s")
    assert result.tobytes() == survivors_mean(clients, faults.clients(12), block=4).tobytes()


def test_one_of_many_stacked_clients_takes_too_long():
    def client(index):
        steps = np.arange(3, dtype=np.float32)
        return fc.data.ClientDataset.from_columns(steps).repeat(200_000 if index == 2 else 1)

    assert total_of_steps.to_module("planned").function("clients").attributes["strategy"] == "vectorised"
    with runtime_of(client_timeout_s=0.3, on_client_failure=fc.runtime.drop(max_retries=0)):
        assert total_of_steps([client(i) for i in range(6)]) == 15.0
    assert context.last_report().dropped == {2: "the graph did not end within 0.3 s"}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_data_that_block_in_python_are_left_out_and_their_thread_named(stage, fraction):
    computation, settings = STAGES[stage]
    faults = Faults(8, "hang", fraction)
    clients = values(20)
    drop = fc.runtime.drop(max_retries=0)
    try:
        with runtime_of(block_size=BLOCK, client_timeout_s=0.5, on_client_failure=drop, **settings):
            result = computation(faults.cohort([(x, np.int32(0)) for x in clients]))
        dropped = context.last_report().dropped
        assert sorted(dropped) == faults.clients(20)
        for reason in dropped.values():
            found = re.search(r"not there within 0.5 s, and the thread (fedcore-data-\d+) still waits", reason)
            assert found
            assert any(t.name == found[1] and t.daemon for t in threading.enumerate())
        assert result.tobytes() == survivors_mean(clients, faults.clients(20)).tobytes()
    finally:
        faults.release()


def test_the_same_seed_makes_the_same_clients_fail():
    assert Faults(3, "nan", 0.25).clients(40) == Faults(3, "raise", 0.25).clients(40)
    assert len(Faults(3, "nan", 0.25).clients(40)) == 10
    assert Faults(3, "nan", 0.25).clients(40) != Faults(4, "nan", 0.25).clients(40)


def test_the_datasets_of_clients_can_be_made_to_fail():
    def client(index):
        return fc.data.ClientDataset.from_columns(np.full(4, index, np.float32)).shuffle(4)

    clients = [client(i) for i in range(10)]
    for kind in ("nan", "misshapen", "raise"):
        faults = Faults(1, kind, 0.2)
        with runtime_of():
            want = sum(4.0 * i for i in range(10) if i not in faults.clients(10))
            assert total_of_steps(faults.cohort(clients)) == want
        assert sorted(context.last_report().dropped) == faults.clients(10)


@pytest.mark.parametrize("stage", STAGES)
def test_where_all_of_a_call_fail_its_neighbours_stand(stage):
    computation, settings = STAGES[stage]
    clients = values(24)
    flags = [np.int32(1 if 8 <= i < 16 else 0) for i in range(24)]
    with runtime_of(block_size=BLOCK, **settings):
        result = computation(list(zip(clients, flags, strict=True)))
    assert result.tobytes() == survivors_mean(clients, list(range(8, 16))).tobytes()


@pytest.mark.slow
def test_a_model_is_averaged_without_the_clients_whose_data_are_bad():
    def model_fn():
        return fc.learning.from_keras_model(
            keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=(tf.TensorSpec((None, 6), tf.float32), tf.TensorSpec((None,), tf.int32)),
        )

    def client(seed):
        draws = np.random.default_rng(seed)
        columns = (draws.normal(size=(20, 6)).astype(np.float32), draws.integers(0, 3, 20).astype(np.int32))
        return fc.data.ClientDataset.from_columns(columns).shuffle(20).batch(4)

    sgd = fc.learning.optimizers.build_sgdm
    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, sgd(0.1), sgd(1.0))
    state = process.initialize()
    found = {}
    for kind in ("nan", "raise", "misshapen"):
        with runtime_of():
            faults = Faults(9, kind, 0.3)
            output = process.next(state, faults.cohort([client(i) for i in range(20)]))
            non_finite = output.metrics["client_work"]["train"]["num_non_finite_clients"]
            dropped = sorted(context.last_report().dropped)
        bad = faults.clients(20)
        assert (non_finite, dropped) == ((len(bad), []) if kind == "nan" else (0, bad))
        found[kind] = [np.asarray(w).tobytes() for w in process.get_model_weights(output.state).trainable]
        assert all(np.isfinite(w).all() for w in process.get_model_weights(output.state).trainable)
    assert found["nan"] == found["raise"] == found["misshapen"]


@pytest.mark.soak
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_the_survivors_bits_of_many_cohorts(stage, kind):
    computation, settings = STAGES[stage]
    with runtime_of(block_size=BLOCK, **settings):
        for seed in range(30):
            count = 50 + 97 * seed
            faults = Faults(seed, kind, (0.02, 0.1, 0.3)[seed % 3])
            clients = values(count)
            result = computation(list(zip(clients, faults.flags(count), strict=True)))
            assert sorted(context.last_report().dropped) == faults.clients(count)
            assert result.tobytes() == survivors_mean(clients, faults.clients(count)).tobytes()


def test_an_infinite_deadline_is_none(recwarn):
    with runtime_of(client_timeout_s=math.inf):
        assert total([1.0, 2.0]) == 3.0
    assert not recwarn.list  # such as of an exception in the thread of a timer


def test_no_quorum_of_survivors_names_clients_whose_errors_have_no_message():
    report = fc.runtime.Report(dropped={0: "", 1: "b: late\nand more"})
    with pytest.raises(ClientError, match=r"2 of 2 clients failed, .*\n  client 0\n  client 1: b: late$"):
        fc.runtime.FaultPolicy(fc.runtime.drop(), report).check_quorum(2)


def test_no_quorum_of_survivors_is_an_error_and_the_stack_goes_on():
    clients = [(x, np.int32(i < 7)) for i, x in enumerate(values(12))]
    with runtime_of(on_client_failure=fc.runtime.drop(min_fraction=0.5, max_retries=0)):
        with pytest.raises(ClientError) as caught:
            average(clients)
        assert str(caught.value) == (
            "7 of 12 clients failed, but min_fraction=0.5 of them must not fail\n"
            "  client 0: Integer division by zero\n"
            "  client 1: Integer division by zero\n"
            "  client 2: Integer division by zero\n"
            "  and 4 more"
        )
        assert average(clients[6:]).shape == (3,)
        assert sorted(context.last_report().dropped) == [0]


def test_without_survivors_a_sum_is_that_of_no_clients():
    with runtime_of(on_client_failure=fc.runtime.drop(min_fraction=0)):
        assert total([np.float32(np.nan), np.float32(np.inf)]) == 0.0


def test_what_is_not_finite_is_a_value_like_others_by_default():
    assert np.isnan(total([1.0, float("nan")]))
    assert context.last_report().dropped == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_floats_of_every_size_are_looked_at(dtype):
    sum_ = fc.federated_computation(lambda xs: fc.federated_sum(xs), fc.FederatedType((dtype, (2,)), fc.CLIENTS))
    numpy = tf.as_dtype(dtype).as_numpy_dtype
    clients = [np.array([1.0, x], numpy) for x in (1.0, np.inf, 2.0, np.nan)]
    with runtime_of():
        assert np.asarray(sum_(clients), np.complex128).tolist() == [2.0, 3.0]
    assert sorted(context.last_report().dropped) == [1, 3]


def test_finite_values_whose_sum_is_not_are_kept():
    largest = np.finfo(np.float32).max
    with runtime_of():
        assert np.isinf(total([largest] * 3))
    assert context.last_report().dropped == {}


def test_a_stacked_client_that_fails_is_named():
    clients = [(x, np.int32(i == 41)) for i, x in enumerate(values(60))]
    with pytest.raises(ClientError, match="client 41 failed: Integer division by zero"):
        average(clients)


def test_a_client_that_hangs_is_named_soon_and_leaves_no_thread():
    flags = [np.int32(0), np.int32(2), np.int32(0)]
    before = set(threading.enumerate())
    with runtime_of(on_client_failure="raise", client_timeout_s=0.5):
        began = time.monotonic()
        with pytest.raises(ClientError, match=r"client 1 failed: the graph did not end within 0.5 s"):
            looped_average(list(zip(values(3), flags, strict=True)))
        took = time.monotonic() - began
        assert looped_average([(np.ones(3, np.float32), np.int32(0))]).tolist() == [1.0, 1.0, 1.0]
    assert took < 10
    assert not set(threading.enumerate()) - before


def test_values_per_client_have_none_for_those_that_are_left_out():
    mapped = fc.federated_computation(lambda cs: fc.federated_map(acts, cs), FLAGGED)
    clients = [(np.full(3, i, np.float32), np.int32(i == 1)) for i in range(4)]
    with runtime_of():
        result = mapped(clients)
    assert [None if x is None else x.tolist() for x in result] == [[0.0] * 3, None, [2.0] * 3, [3.0] * 3]


def test_who_is_left_out_of_one_stage_is_left_out_of_the_next():
    @fc.federated_computation(FLOATS)
    def squares_of_what_stands_out(xs):
        kept = fc.federated_map(lambda x: x * x, xs)
        mean = fc.federated_broadcast(fc.federated_mean(kept))
        return fc.federated_sum(fc.federated_map(lambda pair: pair[0] - pair[1], (kept, mean))), fc.federated_sum(xs)

    plan = squares_of_what_stands_out.to_module("planned")
    assert sum(op.kind in ("fold", "collect") for op in plan.main.operations) > 1
    with runtime_of():
        deviation, sum_ = squares_of_what_stands_out([1.0, float("nan"), 3.0])
    assert list(context.last_report().dropped) == [1]
    assert deviation == 0.0
    assert sum_ == 4.0


class Flaky:
    """A value that cannot be read the first time."""

    def __init__(self):
        self.reads = 0

    def __array__(self, dtype=None, copy=None):
        self.reads += 1
        if self.reads == 1:
            raise OSError("not now")
        return np.array(2.0, np.float32)


def test_a_client_that_fails_is_tried_again_as_often_as_asked():
    with runtime_of(on_client_failure=fc.runtime.drop(max_retries=1)):
        assert total([1.0, Flaky()]) == 3.0
    assert context.last_report().dropped == {}
    with runtime_of(on_client_failure=fc.runtime.drop(max_retries=0)):
        assert total([1.0, Flaky()]) == 1.0
    assert context.last_report().dropped == {1: "OSError: not now"}
    with pytest.raises(ClientError, match="client 1 failed: OSError: not now"):
        total([1.0, Flaky()])


def test_data_that_are_read_once_are_not_tried_again():
    reads = []

    def elements():
        reads.append(1)
        yield np.float32(1.0)
        raise InjectedFault

    with runtime_of(on_client_failure=fc.runtime.drop(max_retries=3)):
        assert total_of_steps([[1.0, 2.0], elements()]) == 3.0
    assert reads == [1]


def test_what_a_cohort_raises_for_a_client_is_that_clients_fault():
    def client(index):
        if index == 2:
            raise InjectedFault("no such file")
        return np.float32(index)

    with runtime_of():
        assert total(fc.Cohort(5, client)) == 8.0
        assert context.last_report().dropped == {2: "InjectedFault: no such file"}
    with pytest.raises(InjectedFault):
        total(fc.Cohort(5, client))


def test_misshapen_rows_fail_where_the_graph_meets_them():
    rows = fc.SequenceType(("float32", [None]))

    @fc.tf_computation(VALUE, ("float32", [None]))
    def add_row(total, row):
        return total + row

    @fc.federated_computation(fc.FederatedType(rows, fc.CLIENTS))
    def sum_of_rows(clients):
        zero = fc.generic_zero(VALUE)
        return fc.federated_sum(fc.federated_map(lambda rows: fc.sequence_reduce(rows, zero, add_row), clients))

    clients = [fc.data.ClientDataset.from_columns(np.ones((2, 5 if i == 3 else 3), np.float32)) for i in range(6)]
    with runtime_of():
        assert sum_of_rows(clients).tolist() == [10.0] * 3
    assert list(context.last_report().dropped) == [3]
    with pytest.raises(ClientError, match="client 3 failed: "):
        sum_of_rows(clients)


def blocked(until: threading.Event):
    yield np.float32(1.0)
    until.wait()
    yield np.float32(2.0)


def ended(name: str) -> bool:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(60)
    return not any(t.name == name for t in threading.enumerate())


def test_a_generator_that_blocks_past_the_deadline_is_named():
    until = threading.Event()
    with runtime_of(client_timeout_s=0.3):
        began = time.monotonic()
        with pytest.raises(ClientError) as caught:
            total(blocked(until))
        assert time.monotonic() - began < 10
        assert re.fullmatch(
            r"client 1 was not read from <generator object blocked at 0x\w+>: the data were not there within 0.3 s, "
            "and the thread fedcore-cohort still waits for them",
            str(caught.value),
        )
        assert total([1.0, 2.0]) == 3.0
    until.set()
    assert ended("fedcore-cohort")


def test_a_cohort_that_blocks_for_one_client_goes_on_with_the_next():
    until = threading.Event()

    def client(index):
        if index == 1:
            until.wait()
        return np.float32(index)

    try:
        with runtime_of(client_timeout_s=0.5):
            assert total(fc.Cohort(4, client)) == 5.0
        assert list(context.last_report().dropped) == [1]
    finally:
        until.set()


def test_a_cancelled_call_leaves_a_blocked_generator_behind_and_nothing_else():
    until = threading.Event()
    before = set(threading.enumerate())
    runtime = fc.runtime.local(workers_per_device=2)

    async def wait():
        with fc.use(runtime):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(fc.invoke_async(total, blocked(until)), 0.3)
            return await asyncio.gather(*(fc.invoke_async(total, [1.0, 2.0]) for _ in range(9)))

    assert asyncio.run(wait()) == [3.0] * 9
    runtime.close()
    left = {t.name for t in set(threading.enumerate()) - before if not t.name.startswith("fedcore-call")}
    assert left == {"fedcore-cohort"}
    until.set()
    assert ended("fedcore-cohort")


def test_what_failed_is_freed():
    with runtime_of():
        total([1.0, Flaky(), float("nan")])
    gc.collect()
    assert not [x for x in gc.get_objects() if isinstance(x, Flaky)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: {"on_client_failure": "ignore"}, "on_client_failure is 'raise' or fc.runtime.drop(), not 'ignore'"),
        (lambda: {"client_timeout_s": 0}, "client_timeout_s is a number of seconds greater than 0, not 0"),
        (lambda: {"client_timeout_s": True}, "client_timeout_s is a number of seconds greater than 0, not True"),
        (lambda: fc.runtime.drop(min_fraction=1.5), "min_fraction is a number from 0 to 1, not 1.5"),
        (lambda: fc.runtime.drop(max_retries=-1), "max_retries is a number of times, 0 or more, not -1"),
        (lambda: Faults(0, "sleep", 0.1), "the kind of a fault is one of raise, hang, nan, misshapen, not 'sleep'"),
        (lambda: Faults(0, "nan", 2), "fraction is a number from 0 to 1, not 2"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(FedcoreError, match=re.escape(message)):
        fc.runtime.local(**settings())


def test_a_client_of_the_wrong_type_is_a_mismatch_where_failures_are_raised():
    with pytest.raises(TypeMismatch, match=re.escape("xs[1] does not fit")):
        total([1.0, np.ones(2, np.float32)])


def test_a_call_that_fails_only_together_says_so():
    tried = []

    def run(clients):
        tried.append(len(clients.present))
        if len(clients.present) > 1:
            raise tf.errors.InternalError(None, None, "too many")
        return fc.runtime.SliceResult(None)

    policy = fc.runtime.FaultPolicy(fc.runtime.drop(max_retries=1), fc.runtime.Report())
    with pytest.raises(
        ClientError, match="the clients 4 to 6 failed together, though none of them fails alone: too many"
    ):
        policy.survivors(run, fc.runtime.ClientSlice(4, 8, ((), (), ())))
    assert tried == [3, 1, 1, 1, 3, 1, 1, 1]

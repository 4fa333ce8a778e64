import concurrent.futures
import re
import threading

import numpy as np
import psutil
import pytest
import tensorflow as tf
from participants import COHORTS

import fedcore as fc
from fedcore.data import columns_of
from fedcore.errors import ClientError, FedcoreError, TypeMismatch
from fedcore.runtime import Report
from fedcore.runtime.arguments import prepare
from fedcore.runtime.clients.sliced_executor import LocalClientsExecutor
from fedcore.runtime.devices.device import DeviceExecutor
from fedcore.runtime.plan_executor import PlanExecutor
from fedcore.runtime.stopping import Stop

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
SEQUENCES = fc.FederatedType(fc.SequenceType({"x": fc.TensorType("float32", (None, 3))}), fc.CLIENTS)


@fc.tf_computation("float32")
def tangent(x):
    return tf.tan(x) / 3.0


@fc.federated_computation(FLOATS)
def average(xs):
    return fc.federated_mean(fc.federated_map(tangent, xs))


@fc.federated_computation(FLOATS)
def total(xs):
    return fc.federated_sum(xs)


@fc.tf_computation({"x": fc.TensorType("float32", (None, 3))})
def row_sum(batch):
    return tf.reduce_sum(batch["x"], axis=0)


@fc.federated_computation(SEQUENCES)
def average_of_data(data):
    def of_client(sequence):
        return fc.sequence_reduce(
            sequence, fc.generic_zero(("float32", (3,))), lambda a, b: fc.generic_plus(a, row_sum(b))
        )

    return fc.federated_mean(fc.federated_map(of_client, data))


@pytest.fixture(scope="module")
def runtime():
    made = fc.runtime.local(workers_per_device=2)
    yield made
    made.close()


@pytest.fixture
def in_use(runtime):
    with fc.use(runtime):
        yield runtime


def readings(n):
    return [np.float32(x) for x in np.random.default_rng(n).normal(size=n) * 1e3]


@pytest.mark.parametrize("n", [1, 2, 7, 64])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_bits_are_those_of_one_worker(n, workers):
    def bits(count):
        runtime = fc.runtime.local(workers_per_device=count)
        try:
            with fc.use(runtime):
                return average(readings(n)).tobytes()
        finally:
            runtime.close()

    assert bits(workers) == bits(1)


def test_a_cohort_may_be_a_generator(in_use):
    assert total(float(i) for i in range(9)) == 36.0


def test_a_generator_is_read_once(in_use):
    drawn = []

    def cohort():
        for i in range(20):
            drawn.append(i)
            yield float(i)

    total(cohort())
    assert drawn == list(range(20))


class HeldDevice(DeviceExecutor):
    """Holds every call back until it is opened; tells of each that came."""

    def __init__(self):
        super().__init__("/device:CPU:0")
        self.opened = threading.Event()
        self.arrived = threading.Semaphore(0)

    def call(self, function, tensors, stop):
        self.arrived.release()
        assert self.opened.wait(60)
        return super().call(function, tensors, stop)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_more_clients_are_drawn_than_the_workers_hold(workers):
    plan = total.to_module("planned")
    call = plan.function("clients").attributes["call"]
    drawn, count = [], call * (workers + 2)

    def cohort():
        for i in range(count):
            drawn.append(i)
            yield float(i % 7)

    device = HeldDevice()
    clients = LocalClientsExecutor([device], workers)
    arguments = [prepare(cohort(), FLOATS, "xs", columns_of)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            PlanExecutor(DeviceExecutor("/device:CPU:0"), clients).run,
            plan,
            "digest",
            arguments,
            Report(seed=0),
            Stop(),
        )
        for _ in range(workers):
            assert device.arrived.acquire(timeout=60)
        held = len(drawn)
        device.opened.set()
        assert float(running.result(60)) == sum(i % 7 for i in range(count))
    clients.close()
    assert held == workers * call


def _with(runtime, computation, *arguments):
    with fc.use(runtime):
        return computation(*arguments)


class OwnError(Exception):
    pass


def test_an_error_of_the_users_generator_is_raised_as_it_is(in_use):
    def cohort():
        yield from [1.0, 2.0, 3.0]
        raise OwnError("no more clients")

    with pytest.raises(OwnError, match="no more clients"):
        total(cohort())


@pytest.mark.parametrize("index", [0, 3, 8])
def test_a_client_of_the_wrong_dtype_is_named(in_use, index):
    clients = [np.float32(i) for i in range(9)]
    clients[index] = np.int64(1)
    with pytest.raises(TypeMismatch, match=re.escape(f"xs[{index}] does not fit")):
        total(clients)


@fc.tf_computation("float32")
def checked(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, 100.0, "too large")]):
        return tf.identity(x)


@fc.federated_computation(FLOATS)
def checked_sum(xs):
    return fc.federated_sum(fc.federated_map(checked, xs))


def test_a_client_that_fails_is_named(in_use):
    with pytest.raises(ClientError, match=r"(?s)client 3 failed: .*too large"):
        checked_sum([1.0, 2.0, 3.0, 400.0, 5.0])


def test_a_lone_client_that_fails_is_named(in_use):
    with pytest.raises(ClientError, match="client 2 failed"):
        checked_sum([1.0, 2.0, 300.0])


def failing():
    yield 1.0
    raise OwnError


@pytest.mark.parametrize(
    ("computation", "cohort"),
    [
        (total, lambda: failing()),
        (total, lambda: [1.0, np.int64(2)]),
        (checked_sum, lambda: [1.0, 200.0]),
    ],
    ids=["the generator raises", "a wrong dtype", "the graph raises"],
)
def test_the_runtime_is_usable_after_a_failure(in_use, computation, cohort):
    with pytest.raises((OwnError, FedcoreError)):
        computation(cohort())
    assert total([1.0, 2.0, 3.0]) == 6.0


@pytest.mark.parametrize("one", [1.0, "abc", {"a": 1.0}], ids=repr)
def test_what_is_no_list_of_clients_is_refused(in_use, one):
    with pytest.raises(TypeMismatch, match=r"xs is a client value of type .*: give a list with one element per client"):
        total(one)


def test_unequally_many_clients_are_refused(in_use):
    both = fc.federated_computation(
        lambda xs, ys: fc.federated_sum(fc.federated_map(lambda x, y: x + y, (xs, ys))), FLOATS, FLOATS
    )
    with pytest.raises(TypeMismatch, match="equally many clients, but `xs` has 3 and `ys` has 2"):
        both([1.0, 2.0, 3.0], [1.0, 2.0])


def test_unequally_many_clients_are_refused_across_stages(in_use):
    both = fc.federated_computation(lambda xs, ys: (fc.federated_sum(xs), fc.federated_sum(ys)), FLOATS, FLOATS)
    with pytest.raises(TypeMismatch, match="equally many clients"):
        both([1.0, 2.0, 3.0], [1.0, 2.0])


def test_fewer_than_one_worker_is_refused():
    with pytest.raises(FedcoreError, match="workers_per_device is a whole number, 1 or more, not 0"):
        fc.runtime.local(workers_per_device=0)


def test_calls_from_several_threads_agree(in_use):
    want = average(readings(50)).tobytes()
    start = threading.Barrier(4)

    def call(_):
        start.wait(60)
        return _with(in_use, average, readings(50)).tobytes()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(call, range(4))) == {want}


def test_results_are_read_only_arrays(in_use):
    vectors = fc.federated_computation(lambda xs: fc.federated_sum(xs), fc.FederatedType(("float32", (2,)), fc.CLIENTS))
    result = vectors([np.ones(2, np.float32)] * 3)
    assert isinstance(result, np.ndarray)
    with pytest.raises(ValueError, match="read-only"):
        result[0] = 1.0


def test_a_closed_runtime_leaves_no_worker_thread():
    runtime = fc.runtime.local(workers_per_device=3)
    before = set(threading.enumerate())
    _with(runtime, total, [1.0] * 12)
    assert set(threading.enumerate()) - before
    runtime.close()
    assert not set(threading.enumerate()) - before


class ThreadSampler:
    """Counts this process's threads, again and again, while rounds run."""

    def __init__(self):
        self._process = psutil.Process()
        self._stopped = threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._sample)

    def _sample(self):
        while not self._stopped.wait(0.002):
            self.most = max(self.most, self._process.num_threads())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stopped.set()
        self._thread.join()


def client(index: int) -> fc.data.ClientDataset:
    rows = 4 + index % 5
    x = np.full((rows, 3), index, np.float32)
    return fc.data.ClientDataset.from_columns({"x": x}).shuffle(10).batch(2)


def test_the_threads_of_round_3_are_enough_for_every_cohort(in_use):
    candidates = [client(i) for i in range(500)]
    draws = np.random.default_rng(0)
    most = []
    with ThreadSampler() as sampler:
        for size in COHORTS:
            sampler.most = 0
            chosen = draws.choice(500, size, replace=False)
            result = average_of_data([candidates[i] for i in chosen])
            want = np.mean([i * (4 + i % 5) for i in chosen])
            np.testing.assert_allclose(result, np.full(3, want), rtol=1e-4)
            most.append(max(sampler.most, psutil.Process().num_threads()))
    assert len(most) == 45
    assert max(most[3:]) <= max(most[:3])


def test_the_size_of_the_cohort_makes_no_new_function(in_use):
    functions = in_use._clients.devices[0].functions
    clients = [client(5) for _ in range(300)]
    average_of_data(clients)  # several calls, whose partials are joined
    before = functions.keys()
    for size in (1, 2, 8, 9, 33, 77, 129, 200, 256, 300):
        average_of_data(clients[:size])
    assert before
    assert functions.keys() == before

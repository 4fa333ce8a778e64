"""The example's executor over processes gives what the local runtime gives: bits, metering, faults."""

import os
import pathlib
import signal
import sys

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc

pytestmark = pytest.mark.slow  # each process imports TensorFlow

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
ROWS = fc.SequenceType(fc.TensorType("float32", [2]))


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))  # the processes import the example by its name
    try:
        import process_pool

        yield process_pool
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def pool(example):
    runtime = example.process_pool(2, on_client_failure=fc.runtime.drop(max_retries=1))
    yield runtime
    runtime.close()


@fc.tf_computation(ROWS)
def positive_rows(rows):
    return rows.reduce(tf.zeros([0, 2]), lambda found, row: tf.concat([found, row[None]], 0) if row[0] > 0 else found)


@fc.tf_computation("float32", fc.TensorType("float32", [None, 2]))
def add_rows(total, rows):
    return total + tf.reduce_sum(rows)


@fc.tf_computation("float32", "float32")
def add(a, b):
    return a + b


@fc.tf_computation("float32")
def unchanged(x):
    return x


@fc.federated_computation(fc.FederatedType(ROWS, fc.CLIENTS))
def sum_and_rows(datasets):
    rows = fc.federated_map(positive_rows, datasets)
    return fc.federated_aggregate(rows, 0.0, add_rows, add, unchanged), rows, datasets


@fc.tf_computation("int32")
def checked(x):
    with tf.control_dependencies([tf.debugging.assert_greater(x, -1)]):
        return 1.0 / tf.cast(x, tf.float32)


@fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
def total_and_each(xs):
    each = fc.federated_map(checked, xs)
    return fc.federated_sum(each), each


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def average(xs):
    return fc.federated_mean(xs)


def both(pool, computation, *arguments):
    """What a call gives and reports in the processes, and on the local runtime."""
    found = []
    local = fc.runtime.local(on_client_failure=fc.runtime.drop(max_retries=1))
    for runtime in (pool, local):
        with fc.use(runtime):
            result = computation.invoke(*arguments, seed=3)
        found.append((result, fc.context.last_report()))
    local.close()
    return found


def test_fed_avg_in_processes_has_the_bits_of_the_local_runtime(example, pool):
    process, cohort = example.fed_avg(num_clients=20)
    states = []
    for runtime in (pool, fc.runtime.local()):
        with fc.use(runtime):
            state, metrics = example.train(process, cohort, rounds=2, clients=20)
        states.append((tf.nest.flatten(state.global_model_weights.trainable), metrics, fc.context.last_report()))
    (in_processes, metrics, report), (here, local_metrics, local_report) = states
    for a, b in zip(in_processes, here, strict=True):
        np.testing.assert_array_equal(a, b)
    assert metrics == local_metrics
    assert report.placements == {"clients": {"process 0": [(0, 15)], "process 1": [(16, 19)]}}
    assert report.crossings == local_report.crossings
    assert report.graph_calls["blocks"] == 2


def test_a_cohort_larger_than_the_processes_merges_as_the_local_one_does(pool):
    values = np.random.default_rng(7).normal(size=333).astype(np.float32)
    (in_processes, _), (here, _) = both(pool, average, list(values))
    assert in_processes == here


def test_no_clients_give_the_zero(pool):
    (in_processes, _), (here, _) = both(pool, total_and_each, [])
    assert in_processes == here == (0.0, [])


def test_clients_that_fail_in_a_process_are_dropped_and_said_alike(pool):
    (in_processes, report), (here, local_report) = both(pool, total_and_each, [1, -2, 4, 0, 5])
    assert in_processes == here
    assert in_processes[1][1] is None  # the assertion
    assert in_processes[1][3] is None  # 1 / 0
    assert report.dropped == local_report.dropped
    assert report.crossings == local_report.crossings


def test_clients_of_unequal_sizes_are_measured_alike(pool):
    rng = np.random.default_rng(3)
    clients = [
        fc.data.ClientDataset.from_columns(rng.normal(size=(n, 2)).astype(np.float32)).shuffle(9) for n in (3, 1, 8, 5)
    ]
    (in_processes, report), (here, local_report) = both(pool, sum_and_rows, clients)
    assert in_processes[0] == here[0]
    for a, b in zip(in_processes[1], here[1], strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(in_processes[2], here[2], strict=True):
        np.testing.assert_array_equal(list(a), list(b))
    assert report.crossings == local_report.crossings


def test_a_process_that_dies_is_a_fault_and_the_next_call_has_a_new_one(example, pool):
    (executor, _) = pool._clients.executors
    os.kill(executor._process.pid, signal.SIGKILL)
    executor._process.join()
    with fc.use(pool):
        assert average([1.0, 2.0, 3.0]) == 2.0

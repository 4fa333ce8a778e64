"""The Ray runtime on two raylets with object stores of their own, on loopback: bits, faults, data, messages."""

import os
import signal

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.runtime.local import LocalRuntime

pytestmark = pytest.mark.slow  # a cluster of several processes

STORE_BYTES = 100 * 2**20


@pytest.fixture(scope="module")
def machines():
    """A cluster of two raylets; the driver is connected to the first."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "node_ip_address": "127.0.0.2", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": STORE_BYTES})
    cluster.add_node(num_cpus=1, node_ip_address="127.0.0.2", object_store_memory=STORE_BYTES)
    ray.init(cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False, configure_logging=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def runtime(machines):
    made = fc.runtime.ray(on_client_failure=fc.runtime.drop(), block_size=4, vectorize=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def local():
    made = fc.runtime.local(workers_per_device=1, on_client_failure=fc.runtime.drop(), block_size=4, vectorize=2)
    yield made
    made.close()


@fc.tf_computation("float32")
def cube(x):
    return x * x * x


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def sum_and_each(xs):
    cubes = fc.federated_map(cube, xs)
    return fc.federated_sum(cubes), cubes


def run(runtime: LocalRuntime, computation, *arguments, seed=3):
    with fc.use(runtime):
        return computation.invoke(*arguments, seed=seed), fc.context.last_report()


def floats(clients: int) -> list:
    return list(np.random.default_rng(7).normal(size=clients).astype(np.float32))


def test_sums_and_client_values_have_the_local_bits_on_two_machines(runtime, local):
    (have, report), (want, wanted) = (run(r, sum_and_each, floats(333)) for r in (runtime, local))
    assert have == want
    assert report.crossings == wanted.crossings
    nodes = {name.split(" on ")[1] for name in report.placements["clients"]}
    assert len(nodes) == 2


@fc.tf_computation("int32")
def checked(x):
    with tf.control_dependencies([tf.debugging.assert_greater(x, -1)]):
        return 1.0 / tf.cast(x, tf.float32)


@fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
def total_and_each(xs):
    each = fc.federated_map(checked, xs)
    return fc.federated_sum(each), each


def test_clients_that_fail_on_a_worker_are_dropped_as_locally(runtime, local):
    (have, report), (want, wanted) = (run(r, total_and_each, [1, -2, 4, 0, 5, 6]) for r in (runtime, local))
    assert have == want
    assert have[1][1] is None
    assert report.dropped == wanted.dropped


def process_of(build, **options):
    def model_fn():
        import keras

        net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
        spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(net, input_spec=spec, loss=loss)

    return build(model_fn, **options)


def examples(clients: int) -> list:
    rng = np.random.default_rng(0)
    sizes = [3 + i % 5 for i in range(clients)]
    of_client = [(rng.normal(size=(n, 4)).astype(np.float32), rng.integers(3, size=n).astype(np.int32)) for n in sizes]
    return [fc.data.ClientDataset.from_columns(columns).batch(2) for columns in of_client]


def test_rounds_of_federated_averaging_have_the_local_bits_and_ship_each_array_once(runtime, local):
    process = process_of(
        fc.learning.algorithms.build_weighted_fed_avg,
        client_optimizer_fn=fc.learning.optimizers.build_sgdm(learning_rate=0.1),
    )
    cohort, states = examples(20), []
    for stack in (runtime, local):
        with fc.use(stack):
            state = process.initialize.invoke(seed=0)
            for _ in range(2):
                state, _ = process.next(state, cohort)
        states.append(tf.nest.flatten(state))
    for have, want in zip(*states, strict=True):
        np.testing.assert_array_equal(have, want)


# Faults.


def process_ids(runtime) -> dict:
    import ray

    return {m: int(ray.get(m.actor.describe.remote())["process"]) for m in runtime._clients.members.ready}


def test_a_worker_that_is_killed_is_replaced_and_its_clients_are_computed_elsewhere(runtime, local):
    members = process_ids(runtime)
    member = next(iter(members))
    want, _ = run(local, sum_and_each, floats(80))
    os.kill(members[member], signal.SIGKILL)
    have, report = run(runtime, sum_and_each, floats(80))
    assert have == want
    assert any(f"{member.name} ended while it computed" in note for note in report.notes)
    assert member not in runtime._clients.members.ready

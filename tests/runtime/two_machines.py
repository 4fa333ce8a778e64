"""A Ray cluster of two raylets with object stores of their own, on loopback; small programs for it."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.runtime.local import LocalRuntime
from fedcore.runtime.stopping import Stop

HOST = "127.0.0.2"
STORE_BYTES = 100 * 2**20
DROP = {"on_client_failure": fc.runtime.drop(), "block_size": 4, "vectorize": 2}


@contextlib.contextmanager
def two_machines(cpus: int) -> Iterator:
    """The cluster; the driver is connected to its first raylet.

    Args:
        cpus: cores that each raylet offers.
    """
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cpus, "node_ip_address": HOST, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        add_machine(cluster, cpus)
        ray.init(cluster.address, _node_ip_address=HOST, log_to_driver=False, configure_logging=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_machine(cluster, cpus: int) -> None:
    cluster.add_node(num_cpus=cpus, node_ip_address=HOST, object_store_memory=STORE_BYTES)


def wait_for_workers(runtime: LocalRuntime, number: int) -> None:
    """Waits until so many workers are ready."""
    members, until = runtime._clients.members, time.monotonic() + 120
    while len(members.look(Stop())) < number and time.monotonic() < until:
        time.sleep(0.5)
    assert len(members.ready) == number


def process_ids(runtime: LocalRuntime) -> dict:
    """The process of each worker that is ready; waits until one is."""
    import ray

    return {m: int(ray.get(m.actor.describe.remote())["process"]) for m in runtime._clients.members.look(Stop())}


def machines_of(report: fc.runtime.Report) -> set[str]:
    """The nodes on which clients ran."""
    return {name.split(" on ")[1] for name in report.placements["clients"]}


def run(runtime: LocalRuntime, computation, *arguments, seed=3):
    with fc.use(runtime):
        return computation.invoke(*arguments, seed=seed), fc.context.last_report()


# Programs.


@fc.tf_computation("float32")
def cube(x):
    return x * x * x


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def sum_and_each(xs):
    cubes = fc.federated_map(cube, xs)
    return fc.federated_sum(cubes), cubes


@fc.tf_computation("float32", "float32")
def half_and_next(total, x):
    return total / 2.0 + x


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def each(xs):
    return fc.federated_map(cube, xs)


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def rows(xs):
    collected = fc.federated_collect(fc.federated_map(cube, xs), 300)
    return fc.federated_map(lambda cubes: fc.sequence_reduce(cubes, 0.0, half_and_next), collected)


def floats(clients: int) -> list:
    return list(np.random.default_rng(7).normal(size=clients).astype(np.float32))


def process_of(build: Callable, **options) -> fc.learning.LearningProcess:
    def model_fn():
        import keras

        net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
        spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(net, input_spec=spec, loss=loss)

    return build(model_fn, **options)


def fed_avg(**options) -> fc.learning.LearningProcess:
    sgd = fc.learning.optimizers.build_sgdm(learning_rate=0.1)
    return process_of(fc.learning.algorithms.build_weighted_fed_avg, client_optimizer_fn=sgd, **options)


def examples(clients: int) -> list[fc.data.ClientDataset]:
    rng = np.random.default_rng(0)
    sizes = [3 + i % 5 for i in range(clients)]
    of_client = [(rng.normal(size=(n, 4)).astype(np.float32), rng.integers(3, size=n).astype(np.int32)) for n in sizes]
    return [fc.data.ClientDataset.from_columns(columns).batch(2) for columns in of_client]


def rounds(process: fc.learning.LearningProcess, cohorts: Iterable) -> list:
    """The leaves of the last state and of each round's metrics."""
    state, found = process.initialize.invoke(seed=0), []
    for cohort in cohorts:
        state, metrics = process.next(state, cohort)
        found.append(metrics)
    return tf.nest.flatten((state, found))


def assert_same_bits(have: list, want: list) -> None:
    for left, right in zip(map(np.asarray, have), map(np.asarray, want), strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()

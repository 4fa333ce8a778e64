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

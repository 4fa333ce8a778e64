"""Packed client data is kept for clients that come again, and goes with those that do not."""

import gc

import numpy as np
import tensorflow as tf

import fedcore as fc

DATA = fc.FederatedType(fc.SequenceType(("float32", (None,))), fc.CLIENTS)


@fc.tf_computation("float32", ("float32", (None,)))
def add(total, batch):
    return total + tf.reduce_sum(batch)


@fc.federated_computation(DATA)
def total(data):
    return fc.federated_sum(fc.federated_map(lambda rows: fc.sequence_reduce(rows, 0.0, add), data))


@fc.federated_computation(DATA, fc.FederatedType("float32", fc.CLIENTS))
def weighted_total(data, weights):
    sums = fc.federated_map(lambda rows: fc.sequence_reduce(rows, 0.0, add), data)
    return fc.federated_sum(
        fc.federated_map(fc.tf_computation(lambda s, w: s * w, "float32", "float32"), (sums, weights))
    )


def client(index: int) -> fc.data.ClientDataset:
    return fc.data.ClientDataset.from_columns(np.full(4, index % 7, np.float32)).batch(2)


def test_a_cohort_that_comes_again_is_kept_packed(runtime):
    packed = runtime._clients.devices[0].packed
    clients = [client(i) for i in range(300)]
    first = total(clients)
    assert len(packed) == 0
    assert total(clients) == first
    kept = len(packed)
    assert kept > 0
    assert total(clients) == first
    assert len(packed) == kept


def test_a_packed_cohort_serves_computations_with_other_arguments(runtime):
    clients, weights = [client(i) for i in range(20)], [np.float32(i % 3) for i in range(20)]
    for _ in range(4):
        assert total(clients) == sum(4 * (i % 7) for i in range(20))
        assert weighted_total(clients, weights) == sum(4 * (i % 7) * (i % 3) for i in range(20))


def test_a_list_whose_elements_change_is_another_cohort(runtime):
    clients = [client(1) for _ in range(20)]
    for _ in range(3):
        assert total(clients) == 80
    before, clients[5] = clients[5], client(3)
    assert total(clients) == 88
    clients[5] = before
    assert total(clients) == 80
    clients[0], clients[1:] = client(2), []
    assert total(clients) == 8


def test_cohorts_that_differ_leave_nothing_packed_behind(runtime):
    clients = [client(i) for i in range(60)]
    for first in range(30):
        total(clients[first : first + 30])
    assert len(runtime._clients.devices[0].packed) == 0


def test_generated_clients_leave_nothing_packed_behind(runtime):
    packed = runtime._clients.devices[0].packed
    most = []

    def cohort():
        for i in range(2000):
            most.append(len(packed))
            yield client(i)

    assert total(cohort()) == sum(4 * (i % 7) for i in range(2000))
    gc.collect()
    assert len(packed) == 0
    assert max(most) <= 4  # columns and rows of the calls in flight

"""Packed client data is kept for clients that come again, and goes with those that do not."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.columns import Columns
from fedcore.graphs.packing import PackedColumns
from fedcore.types import TensorType

DATA = fc.FederatedType(fc.SequenceType(("float32", (None,))), fc.CLIENTS)


@fc.tf_computation("float32", ("float32", (None,)))
def add(total, batch):
    return total + tf.reduce_sum(batch)


@fc.federated_computation(DATA)
def total(data):
    return fc.federated_sum(fc.federated_map(lambda rows: fc.sequence_reduce(rows, 0.0, add), data))


def client(index: int) -> fc.data.ClientDataset:
    return fc.data.ClientDataset.from_columns(np.full(4, index % 7, np.float32)).batch(2)


def columns(rows: int = 4) -> Columns:
    return Columns(TensorType("float32"), [np.zeros(rows, np.float32)])


@pytest.fixture
def runtime():
    made = fc.runtime.local(workers_per_device=1)
    with fc.use(runtime=made):
        yield made
    made.close()


def test_clients_that_come_again_are_packed_once(runtime):
    packed = runtime._clients.devices[0].packed
    clients = [client(i) for i in range(300)]
    first = total(clients)
    kept = len(packed)
    assert kept > 0
    assert total(clients) == first
    assert len(packed) == kept


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


def test_an_entry_goes_with_the_first_of_its_columns():
    packed, a, b = PackedColumns(1000), columns(), columns()
    packed.get("columns", [a, b], lambda: (np.zeros(2, np.float32),))
    packed.get("columns", [b], lambda: (np.zeros(2, np.float32),))
    assert (len(packed), packed._bytes) == (2, 16)
    del a
    gc.collect()
    assert (len(packed), packed._bytes) == (1, 8)


def test_columns_that_end_while_the_lock_is_held_are_dropped_by_the_next_call():
    packed, a, b = PackedColumns(1000), columns(), columns()
    packed.get("columns", [a], lambda: (np.zeros(2, np.float32),))
    with packed._lock:
        del a
        gc.collect()
    packed.get("columns", [b], lambda: (np.ones(1, np.float32),))
    assert (len(packed), packed._bytes) == (1, 4)


def test_those_used_last_are_kept_within_the_bytes():
    packed, several = PackedColumns(16), [columns() for _ in range(3)]
    made = []

    def make(i):
        return lambda: made.append(i) or (np.zeros(2, np.float32),)

    for i in (0, 1, 0, 2, 0, 1):
        packed.get("columns", [several[i]], make(i))
    assert made == [0, 1, 2, 1]
    packed.get("columns", several, lambda: (np.zeros(5, np.float32),))
    assert (len(packed), packed._bytes) == (2, 16)

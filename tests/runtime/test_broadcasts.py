"""What is broadcast enters the object store once, and stays on the workers while rounds have it."""

import gc
import pickle
import types

import numpy as np
import tensorflow as tf

from fedcore.runtime.client_slice import ClientSlice
from fedcore.runtime.cluster.broadcasts import MAX_STAGES, Broadcasts
from fedcore.runtime.cluster.messages import Bundle
from fedcore.runtime.cluster.shipping import pack, pack_clients, unpack
from fedcore.runtime.cluster.worker import Worker

BASE, HEAD, OTHER = ({name: np.zeros(1, np.float32)} for name in ("base", "head", "other"))


class Store:
    """Objects by number; the weak references tell which of them are held."""

    def __init__(self):
        self.objects = []

    def put(self, arrays: dict) -> int:
        self.objects.append(arrays)
        return len(self.objects) - 1


def test_arrays_that_the_last_round_had_are_not_put_again():
    store = Store()
    broadcasts = Broadcasts(store.put)
    first = broadcasts.bundles(("plan", "train"), BASE | HEAD)
    assert [bundle.digests for bundle in first] == [("base", "head")]
    second = broadcasts.bundles(("plan", "train"), BASE | OTHER)
    assert second[0] is first[0]
    assert [sorted(arrays) for arrays in store.objects] == [["base", "head"], ["other"]]


def test_stages_share_arrays():
    store = Store()
    broadcasts = Broadcasts(store.put)
    (of_training,) = broadcasts.bundles(("plan", "train"), BASE)
    (of_evaluation,) = broadcasts.bundles(("other plan", "evaluate"), BASE)
    assert of_training is of_evaluation
    assert len(store.objects) == 1


def test_arrays_of_earlier_stages_are_let_go():
    store = Store()
    broadcasts = Broadcasts(store.put)
    broadcasts.bundles(("plan", "first"), BASE)
    for stage in range(MAX_STAGES):
        broadcasts.bundles(("plan", str(stage)), OTHER)
    gc.collect()
    assert broadcasts.bundles(("plan", "first"), BASE)[0].reference == 2
    assert [*map(list, store.objects)] == [["base"], ["other"], ["base"]]


def parcel_of(*tensors: tf.Tensor):
    return pack(tensors, names_arrays=True)


def test_large_tensors_are_named_by_their_content():
    large, small = tf.range(1000), tf.range(3)
    parcel = parcel_of(large, small, tf.identity(large))
    assert len(parcel.names) == 1
    back = unpack(parcel, arrays=parcel.arrays)
    for have, want in zip(back, (large, small, large), strict=True):
        np.testing.assert_array_equal(have, want)
    assert back[0] is not back[2]
    assert unpack(parcel, tensor={parcel.names[0]: small}.__getitem__)[0] is small


def test_a_worker_fetches_tensors_that_no_stage_of_its_has():
    base, head, other = parcel_of(tf.range(1000)), parcel_of(tf.range(2000)), parcel_of(tf.range(3000))
    objects = [{**base.arrays, **head.arrays}, other.arrays]
    bundles = tuple(Bundle(i, tuple(arrays)) for i, arrays in enumerate(objects))
    fetched: list = []

    def get(references):
        fetched.extend(references)
        return [objects[reference] for reference in references]

    worker = Worker(get, 1, None, False, None, None, 1, False, 10_000, pickle.loads)
    sent = types.SimpleNamespace(broadcasts=bundles)
    first = worker._broadcast_tensors(sent, base)
    assert fetched == [0]
    both = worker._broadcast_tensors(sent, types.SimpleNamespace(names=[*base.names, *other.names]))
    assert fetched == [0, 1]
    assert both[base.names[0]] is first[base.names[0]]
    np.testing.assert_array_equal(both[other.names[0]], tf.range(3000))
    del first, both
    gc.collect()
    worker._broadcast_tensors(sent, base)
    assert fetched == [0, 1, 0]


def test_ids_travel_in_the_pickle_and_arrays_by_digest():
    ids = ClientSlice(8, 4, (("a",), (3,), None))
    assert not pack_clients(ids).names
    assert unpack(pack_clients(ids)) == ids
    arrays = pack_clients(ClientSlice(0, 2, ((np.arange(500.0),), ("a",))))
    assert len(arrays.names) == 1


def test_slices_without_clients_keep_their_place_in_the_tree():
    worker = Worker(lambda references: references, 1, None, False, None, None, 1, False, 10_000, pickle.loads)
    run = ClientSlice(16, 16, tuple(None if 4 <= i < 8 else (i,) for i in range(11)))
    slices = worker._slices(run, block=4, size=4)
    assert [s and s.first for s in slices] == [16, None, 24]
    assert worker._slices(run, block=4, size=4) is slices

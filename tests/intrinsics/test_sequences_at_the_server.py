"""Sequences at the server: sent to clients as their columns, and made sequences again there."""

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.intrinsics.rows import columns_of_sequence, sequence_from_rows

INTS = fc.SequenceType(np.int32)
GROUPS = fc.SequenceType((fc.TensorType(np.float32, [None, 2]), fc.TensorType(np.int32, [None])))


@fc.tf_computation(INTS, np.int32)
def total(elements, start):
    return elements.reduce(start, lambda a, b: a + b)


@fc.tf_computation(GROUPS, np.int32)
def weighted(batches, start):
    def add(a, batch):
        return a + tf.cast(tf.reduce_sum(batch[0]), tf.int32) * tf.size(batch[1])

    return batches.reduce(start, add)


def at(placement, type_):
    return fc.FederatedType(type_, placement)


@fc.federated_computation(at(fc.SERVER, INTS), at(fc.CLIENTS, np.int32))
def summed(shared, xs):
    return fc.federated_sum(fc.federated_map(total, (fc.federated_broadcast(shared), xs)))


def group(n):
    return np.ones([n, 2], np.float32), np.ones([n], np.int32)


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        ([1, 2, 3], 42),
        ([], 30),
        (tf.data.Dataset.from_tensor_slices(np.int32([1, 2])).repeat(2).shuffle(9), 42),
        (fc.data.ClientDataset.from_columns(np.int32([1, 2, 3])), 42),
    ],
)
def test_a_sequence_is_broadcast(shared, expected):
    assert summed(shared, [10, 20]) == expected


def test_a_sequence_is_broadcast_in_the_reference():
    with fc.use(fc.runtime.reference()):
        assert summed([1, 2, 3], [10, 20]) == 42


def test_what_crosses_are_the_columns_of_a_sequence():
    summed([1, 2, 3], [10, 20])
    assert fc.context.last_report().broadcast_bits == 2 * 3 * 32


def test_batches_of_several_sizes_are_broadcast():
    @fc.federated_computation(at(fc.SERVER, GROUPS), at(fc.CLIENTS, np.int32))
    def at_clients(shared, xs):
        return fc.federated_map(weighted, (fc.federated_broadcast(shared), xs))

    expected = [2 * 2 * 2 + 2 * 3 * 3 + x for x in (1, 2)]
    assert at_clients([group(2), group(3)], [1, 2]) == expected
    with fc.use(fc.runtime.reference()):
        assert at_clients([group(2), group(3)], [1, 2]) == expected


def test_a_sequence_is_sent_beside_tensors():
    type_ = fc.to_type(OrderedDict(elements=INTS, factor=np.int32))
    scaled = fc.tf_computation(type_, np.int32)(lambda v, x: total(v["elements"], 0) * v["factor"] + x)

    @fc.federated_computation(at(fc.SERVER, type_), at(fc.CLIENTS, np.int32))
    def at_clients(shared, xs):
        return fc.federated_map(scaled, (fc.federated_broadcast(shared), xs))

    assert at_clients(OrderedDict(elements=[1, 2], factor=5), [0, 1]) == [15, 16]


def test_a_sequence_that_the_server_made_is_broadcast():
    doubled = fc.tf_computation(INTS)(lambda elements: elements.map(lambda x: 2 * x))
    last = fc.tf_computation(INTS)(lambda elements: elements.reduce(0, lambda _, x: x))

    @fc.federated_computation(at(fc.SERVER, INTS), at(fc.CLIENTS, np.int32))
    def at_clients(shared, xs):
        sent = fc.federated_broadcast(fc.federated_map(doubled, shared))
        start = fc.federated_broadcast(fc.federated_map(last, shared))
        return fc.federated_map(lambda s, a, x: total(s, a) + x, (sent, start, xs))

    assert at_clients([1, 2], [0, 100]) == [8, 108]


def test_a_sequence_that_is_not_placed_reaches_clients():
    @fc.federated_computation(INTS, at(fc.CLIENTS, np.int32))
    def at_clients(shared, xs):
        return fc.federated_map(lambda x: total(shared, x), xs)

    assert at_clients([1, 2], [0, 100]) == [3, 103]


def test_clients_train_on_batches_of_the_server():
    @fc.federated_computation(at(fc.SERVER, GROUPS), at(fc.CLIENTS, np.int32))
    def trained(shared, xs):
        own = fc.federated_map(
            fc.tf_computation(lambda d, x: d, GROUPS, np.int32), (fc.federated_broadcast(shared), xs)
        )
        return fc.federated_map(lambda batches: weighted(batches, 0), own)

    assert trained([group(2)], [1, 2]) == [8, 8]


def test_a_sequence_that_is_the_same_for_all_clients_is_not_returned():
    both = fc.federated_computation(lambda s: fc.federated_broadcast(s), at(fc.SERVER, INTS))
    with pytest.raises(FedcoreError, match=r"int32\* that is the same for all clients, .*: return it at the server"):
        both([1, 2])


def test_rows_are_counted_behind_an_empty_struct():
    assert sequence_from_rows.meaning(((), np.arange(2))) == [((), 0), ((), 1)]
    element = fc.to_type(OrderedDict(a=(), b=fc.TensorType(np.int32, [None])))
    _, splits = columns_of_sequence.meaning(
        [((), np.arange(3))], grouped=True, operand_types=(fc.SequenceType(element),)
    )
    assert splits.tolist() == [0, 3]

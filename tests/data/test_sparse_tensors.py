"""Sparse tensors are structs of three tensors, and sparse tensors again in the user's functions."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.context import last_report

SPEC = tf.SparseTensorSpec([None, 3], tf.float32)
ROWS = np.array([[0, 1, 0], [2, 0, 3], [0, 0, 0]], np.float32)


def sparse(rows) -> tf.SparseTensor:
    return tf.sparse.from_dense(np.asarray(rows, np.float32))


def batches(rows, size: int = 2) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(sparse(rows)).batch(size)


def test_the_type_of_a_sparse_tensor_is_that_of_its_spec():
    assert fc.to_type(sparse(ROWS)) == fc.to_type(SPEC)
    parts = "indices=int64[?,2],values=float32[?],dense_shape=int64[2]"
    assert str(fc.to_type(SPEC)) == f"tensorflow.python.framework.sparse_tensor.SparseTensor<{parts}>"


def test_a_computation_takes_and_returns_sparse_tensors():
    @fc.tf_computation(SPEC)
    def doubled(x):
        assert isinstance(x, tf.SparseTensor)
        return x * 2.0

    result = doubled(sparse(ROWS))
    assert isinstance(result, tf.SparseTensor)
    np.testing.assert_array_equal(tf.sparse.to_dense(result), 2 * ROWS)


@fc.tf_computation(fc.SequenceType(SPEC))
def column_sums(batches):
    assert batches.element_spec == tf.SparseTensorSpec([None, None], tf.float32)
    zero = tf.sparse.from_dense(tf.zeros([3]))
    total = batches.reduce(
        zero, lambda total, batch: tf.sparse.add(total, tf.sparse.reduce_sum(batch, 0, output_is_sparse=True))
    )
    return tf.ensure_shape(tf.sparse.to_dense(total), [3])


@fc.federated_computation(fc.FederatedType(fc.SequenceType(SPEC), fc.CLIENTS))
def all_sums(data):
    return fc.federated_sum(fc.federated_map(column_sums, data))


def test_clients_reduce_sparse_batches_to_a_sparse_state():
    assert all_sums([batches(ROWS), batches(ROWS[1:], 1)]).tolist() == [4, 1, 6]
    assert all_sums([batches(ROWS[2:])]).tolist() == [0, 0, 0]


def test_repeated_and_shuffled_sparse_batches_are_read_from_columns():
    data = batches(ROWS).repeat(2).shuffle(4)
    assert all_sums([data]).tolist() == [4, 2, 6]
    assert not [note for note in last_report().notes if "iterated" in note]


def test_a_map_over_sparse_batches_gives_sparse_batches():
    @fc.tf_computation(fc.SequenceType(SPEC))
    def total(batches):
        halved = batches.map(lambda batch: (batch * 0.5, tf.size(batch.values)))
        assert isinstance(halved.element_spec[0], tf.SparseTensorSpec)
        return halved.reduce(
            0.0, lambda before, pair: before + tf.sparse.reduce_sum(pair[0]) * tf.cast(pair[1], tf.float32)
        )

    assert total(batches(ROWS)) == pytest.approx(3 * 3.0)


def test_a_function_that_returns_a_dataset_may_be_a_tf_function():
    @tf.function
    def shifted(numbers, by):
        return numbers.map(lambda x: x + by)

    @fc.tf_computation(fc.SequenceType("int32"), "int32")
    def total(numbers, by):
        return shifted(numbers, by).reduce(0, lambda before, x: before + x)

    assert total([1, 2, 3], 10) == 36


def test_an_iterator_tells_whether_there_is_another_element():
    @fc.tf_computation(fc.SequenceType("int32"))
    def first_two(numbers):
        iterator = iter(numbers)
        first = iterator.get_next()
        second, third = iterator.get_next_as_optional(), iterator.get_next_as_optional()
        return first, second.get_value(), second.has_value(), third.has_value()

    assert first_two([4, 5]) == (4, 5, True, False)

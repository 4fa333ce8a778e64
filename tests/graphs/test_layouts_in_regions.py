"""The elements of a client's sequence in a region are those in a TensorFlow graph."""

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

import fedcore as fc
from fedcore.graphs.batched.client_lane import call_graph
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.tensors.values import flatten

NUMBERS = fc.data.ClientDataset.from_columns((np.arange(28, dtype=np.float32).reshape(7, 4), np.arange(7)))
SQUARES = [np.full((n, n), n, np.int32) for n in (1, 3, 2, 3)]
RAGGED = fc.data.ClientDataset(
    Columns.from_elements(
        fc.TensorType("int32", (None, None)),
        [np.concatenate(list(map(np.ravel, SQUARES)))],
        [np.array([s.shape for s in SQUARES])],
    )
)


def scaled(x, y):
    return x * 0.5, y + 1


def doubled_or_moved(x, y):
    return tf.cond(tf.reduce_sum(x) > 30, lambda: x * 2, lambda: x - 1), y


def each_row_turned(x, y):
    return tf.map_fn(lambda row: row[::-1], x), y


DATASETS = {
    "rows": NUMBERS,
    "batches": NUMBERS.batch(3),
    "mapped rows": NUMBERS.map(scaled),
    "batches of mapped rows": NUMBERS.map(scaled).batch(3),
    "batches of rows by a branch": NUMBERS.map(doubled_or_moved).batch(3),
    "mapped batches": NUMBERS.batch(3).map(scaled),
    "batches by a branch": NUMBERS.batch(3).map(doubled_or_moved),
    "batches by a loop": NUMBERS.batch(3).map(each_row_turned),
    "ragged elements": RAGGED,
    "ragged batches": RAGGED.batch(1),
    "mapped ragged elements": RAGGED.map(lambda x: x + 1),
}


@pytest.mark.parametrize("name", DATASETS)
def test_an_element_has_the_bits_of_tensorflows_graph(name):
    columns = DATASETS[name].columns
    order, layout = columns.read(0), columns.layout
    tensors = [*columns.arrays, order.rows, *([] if order.sizes is None else [order.sizes])]
    arrays = [np.asarray(t) for t in tensors]
    shapes = {i: tuple(s.shape) for i, s in enumerate(layout.specs())}

    def count_and_element(sequence, number):
        return [sequence.count, *flatten(sequence.element(number))]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64), *layout.specs()])
    def of_tensorflow(number, *tensors):
        return count_and_element(layout.open(list(tensors)), number)

    def of_region(*values):
        return count_and_element(layout.open(list(values[:-1]), call_graph), values[-1])

    for number in range(len(order)):
        expected = of_tensorflow(tf.constant(number, tf.int64), *map(tf.constant, arrays))
        found = run_region(of_region, *arrays, np.int64(number), shapes=shapes)
        for have, want in zip(found, expected, strict=True):
            assert (have.shape, have.dtype, have.tobytes()) == (want.shape, want.dtype, want.numpy().tobytes())

"""A shuffle reads from a buffer of the size that the user gives, as in tf.data."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.sequences.buffered_shuffle import buffered_order

ROWS = fc.SequenceType("int64")
SOURCES = {"columns": lambda n: fc.data.ClientDataset.from_columns(np.arange(n)), "tf.data": tf.data.Dataset.range}
RUNTIMES = {"local": fc.runtime.local(), "reference": fc.runtime.reference()}


@fc.tf_computation(ROWS)
def rows(xs):
    return xs.reduce(tf.zeros([0], tf.int64), lambda found, x: tf.concat([found, [x]], 0))


@fc.federated_computation(fc.FederatedType(ROWS, fc.CLIENTS))
def of_each(data):
    return fc.federated_map(rows, data)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("source", SOURCES)
def test_a_buffer_of_one_keeps_the_order(source, runtime):
    with fc.use(RUNTIMES[runtime]):
        (found,) = of_each([SOURCES[source](20).shuffle(1).repeat(2)])
    assert found.tolist() == [*range(20), *range(20)]


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"reshuffle_each_iteration": False}], ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_an_element_is_read_at_most_a_buffer_early(source, options):
    (found,) = of_each([SOURCES[source](100).shuffle(5, **options).repeat(3)])
    for epoch in found.reshape(3, 100):
        assert (epoch <= np.arange(100) + 4).all()
        assert sorted(epoch) == list(range(100)) != epoch.tolist()


@pytest.mark.parametrize(("count", "size"), [(4, 2), (4, 3), (5, 2), (3, 3), (3, 9)])
def test_orders_are_as_likely_as_those_of_tf_data(count, size):
    times = 3000
    shuffled = tf.data.Dataset.range(count).shuffle(size, seed=1).batch(count).repeat(times)
    want = collections.Counter(tuple(order) for order in shuffled.as_numpy_iterator())
    have = collections.Counter(tuple(buffered_order(seed, count, size).tolist()) for seed in range(times))
    assert set(have) == set(want)
    assert max(abs(have[order] - want[order]) for order in want) < 0.05 * times


@pytest.mark.parametrize("size", [1, 2, 30, 100])
def test_an_order_is_a_permutation(size):
    assert sorted(buffered_order(7, 30, size).tolist()) == list(range(30))


def test_a_shuffle_in_a_body_has_its_buffer():
    shuffled = fc.tf_computation(lambda ds: rows(ds.shuffle(3).repeat(2)), ROWS)
    for epoch in shuffled(SOURCES["columns"](50)).reshape(2, 50):
        assert (epoch <= np.arange(50) + 2).all()
        assert sorted(epoch) == list(range(50)) != epoch.tolist()


def test_orders_in_a_body_are_as_likely_as_those_of_tf_data():
    shuffled = fc.tf_computation(lambda ds: rows(ds.shuffle(2)), ROWS)
    each = fc.federated_computation(lambda d: fc.federated_map(shuffled, d), fc.FederatedType(ROWS, fc.CLIENTS))
    orders = collections.Counter(tuple(order.tolist()) for order in each.invoke([SOURCES["columns"](3)] * 1000, seed=1))
    assert {order: round(count / 1000, 1) for order, count in orders.items()} == pytest.approx(
        {(0, 1, 2): 0.25, (0, 2, 1): 0.25, (1, 0, 2): 0.25, (1, 2, 0): 0.25}, abs=0.06
    )

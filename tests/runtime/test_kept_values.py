"""Stages that keep a value of each client, beside a partial or without one, or append its rows, run side by side."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context

VECTORS = fc.FederatedType(("float32", [3]), fc.CLIENTS)
BATCHES = fc.FederatedType(fc.SequenceType(fc.TensorType("float32", [None, 3])), fc.CLIENTS)


@fc.tf_computation
def begin(own):
    return own, 0


@fc.tf_computation
def step(carry, batch):
    total, count = carry
    return total + tf.math.tanh(tf.reduce_sum(batch, 0)), count + 1


@fc.tf_computation
def end(own, carry):
    total, count = carry
    return {"change": total - own, "kept": (total * 0.5, count, tf.reduce_sum(total))}


@fc.federated_computation(("float32", [3]), fc.SequenceType(fc.TensorType("float32", [None, 3])))
def work(own, batches):
    return end(own, fc.sequence_reduce(batches, begin(own), step))


@fc.federated_computation(VECTORS, BATCHES)
def next_round(own, data):
    worked = fc.federated_map(work, (own, data))
    return fc.federated_mean(worked.change), worked.kept


@fc.federated_computation(VECTORS, BATCHES)
def values_alone(own, data):
    return fc.federated_map(work, (own, data)).kept


def kept_values(computation, own, data) -> list:
    """The value of each client."""
    result = computation(own, data)
    return result if computation is values_alone else result[1]


with_and_without_partial = pytest.mark.parametrize("computation", [next_round, values_alone])


def clients(number: int):
    rng = np.random.default_rng(number)
    own = list(rng.normal(size=(number, 3)).astype(np.float32))
    rows = [rng.normal(size=(1 + 7 * i % 11, 3)).astype(np.float32) for i in range(number)]
    return own, [fc.data.ClientDataset.from_columns(r).batch(2) for r in rows]


def bits(result) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(result)]


@with_and_without_partial
def test_the_plan_is_vectorised(computation):
    assert "strategy=vectorised" in computation.to_text("planned")


@pytest.mark.parametrize("number", [1, 700])
def test_without_a_partial_values_have_the_bits_of_clients_one_by_one(number):
    own, data = clients(number)
    together = bits(values_alone(own, data))
    with fc.use(fc.runtime.local(vectorize=False)):
        assert bits(values_alone(own, data)) == together


def test_without_a_partial_a_call_computes_many_clients():
    own, data = clients(40)
    values_alone(own, data)
    assert context.last_report().graph_calls["blocks"] == 1


@pytest.mark.parametrize("number", [1, 2, 9, 40, 700])
def test_values_are_those_of_the_reference_in_the_order_of_the_clients(number):
    own, data = clients(number)
    mean, kept = next_round(own, data)
    with fc.use(fc.runtime.reference()):
        expected_mean, expected = next_round(own, data)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-4, atol=1e-5)
    assert len(kept) == number
    for (vector, count, total), (vector_, count_, total_) in zip(kept, expected, strict=True):
        np.testing.assert_allclose(vector, vector_, rtol=1e-5, atol=1e-6)
        assert count == count_
        np.testing.assert_allclose(total, total_, rtol=1e-4, atol=1e-5)


@with_and_without_partial
def test_other_clients_do_not_decide_a_value(computation):
    own, data = clients(11)
    together = kept_values(computation, own, data)
    for index in (0, 4, 10):
        (alone,) = kept_values(computation, [own[index]], [data[index]])
        assert bits(alone) == bits(together[index])


@with_and_without_partial
def test_neither_workers_nor_memory_decide_bits(computation):
    own, data = clients(60)
    with fc.use(fc.runtime.local(workers_per_device=1)):
        expected = bits(computation(own, data))
    for memory_bytes in (None, 1 << 16):
        with fc.use(fc.runtime.local(workers_per_device=3, memory_bytes=memory_bytes)):
            assert bits(computation(own, data)) == expected


@with_and_without_partial
def test_a_client_that_is_dropped_has_none(computation):
    own, data = clients(9)
    own[4] = np.full(3, np.nan, np.float32)
    with fc.use(fc.runtime.local(on_client_failure=fc.runtime.drop())):
        kept = kept_values(computation, own, data)
    assert [value is None for value in kept] == [index == 4 for index in range(9)]


@with_and_without_partial
def test_a_kept_value_holds_no_other_ones_memory(computation):
    kept = kept_values(computation, *clients(40))
    assert all(vector.base is None and not vector.flags.writeable for vector, _, _ in kept)


@with_and_without_partial
def test_clients_without_a_common_layout_keep_their_values(computation):
    own, data = clients(9)
    data[3] = data[3].map(lambda batch: batch)
    kept = kept_values(computation, own, data)
    with fc.use(fc.runtime.reference()):
        expected = kept_values(computation, own, data)
    np.testing.assert_allclose([k[0] for k in kept], [k[0] for k in expected], rtol=1e-5, atol=1e-6)


def test_a_value_that_depends_on_nothing_of_the_clients_own_is_kept_for_each():
    @fc.federated_computation(VECTORS, fc.FederatedType("float32", fc.SERVER))
    def doubled(xs, centre):
        twice = fc.federated_map(fc.tf_computation(lambda c: c * 2.0), fc.federated_broadcast(centre))
        return fc.federated_sum(xs), twice

    own, _ = clients(3)
    assert "strategy=vectorised" in doubled.to_text("planned")
    assert list(doubled(own, 4.0)[1]) == [8.0] * 3


def test_a_value_beside_a_partial_without_tensors_is_kept():
    @fc.federated_computation(VECTORS)
    def doubled(xs):
        nothing = fc.federated_sum(fc.federated_map(lambda _: fc.to_value([]), xs))
        return nothing, fc.federated_map(fc.tf_computation(lambda x: x * 2.0, ("float32", [3])), xs)

    own, _ = clients(3)
    np.testing.assert_array_equal(doubled(own)[1], np.array(own) * 2)


@fc.federated_computation(VECTORS, BATCHES)
def rows_and_mean(own, data):
    worked = fc.federated_map(work, (own, data))
    return fc.federated_collect(worked.kept, 600), fc.federated_mean(worked.change)


@pytest.mark.parametrize("number", [0, 700])
def test_rows_that_clients_append_are_in_their_order(number):
    own, data = clients(number)
    rows, _ = rows_and_mean(own, data)
    assert "strategy=vectorised" in rows_and_mean.to_text("planned")
    assert bits(list(rows)) == bits(values_alone(own, data)[:600])


@pytest.mark.parametrize("settings", [{"memory_bytes": 1 << 16}, {"vectorize": False, "block_size": 4}])
def test_settings_do_not_decide_rows(settings):
    own, data = clients(20)
    rows, _ = rows_and_mean(own, data)
    with fc.use(fc.runtime.local(**settings)):
        assert bits(list(rows_and_mean(own, data)[0])) == bits(list(rows))


def test_a_client_that_is_dropped_has_no_row():
    own, data = clients(9)
    own[4] = np.full(3, np.nan, np.float32)
    with fc.use(fc.runtime.local(on_client_failure=fc.runtime.drop())):
        rows, _ = rows_and_mean(own, data)
    others = [i for i in range(9) if i != 4]
    assert bits(list(rows)) == bits(values_alone([own[i] for i in others], [data[i] for i in others]))


@pytest.mark.parametrize("settings", [{}, {"vectorize": False}, {"vectorize": False, "block_size": 4}])
def test_a_fold_may_leave_the_partial_before_it(settings):
    type_ = fc.FederatedType("float32", fc.CLIENTS)

    def last(xs):
        return fc.federated_aggregate(xs, 0.0, lambda partial, x: x, lambda left, right: right, lambda partial: partial)

    with fc.use(fc.runtime.local(**settings)):
        assert fc.federated_computation(last, type_)([float(i) for i in range(20)]) == 19.0

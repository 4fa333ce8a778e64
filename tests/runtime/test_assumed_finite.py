"""Vectorised stages assume that clients' work is finite; if a partial is not, its call looks at each client."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.context import plan_of
from fedcore.runtime.clients import finite_check

INPUTS, OUTPUTS = 256, 64  # a kernel that is kept low-rank


def model_fn():
    model = keras.Sequential(
        [keras.layers.Input((INPUTS,)), keras.layers.Dense(OUTPUTS, kernel_initializer="zeros"), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = (tf.TensorSpec([None, INPUTS]), tf.TensorSpec([None], tf.int32))
    return fc.learning.models.from_keras_model(model, loss=loss, input_spec=spec)


def clients(sizes, batch=8) -> list:
    rng = np.random.default_rng(0)
    columns = [(rng.normal(size=(n, INPUTS)).astype("f"), rng.integers(0, 3, n).astype("i")) for n in sizes]
    return [fc.data.ClientDataset.from_columns(c).batch(batch) for c in columns]


def with_rows(value, size=20) -> fc.data.ClientDataset:
    columns = np.full((size, INPUTS), value, "f"), np.zeros(size, "i")
    return fc.data.ClientDataset.from_columns(columns).batch(8)


@pytest.fixture(scope="module")
def process():
    optimizer = fc.learning.optimizers.build_sgdm(0.1)
    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=optimizer)


def round_of(process, data):
    """The weights after a round, the number of clients that were left out, and the number of graph calls."""
    state, metrics = process.next(process.initialize.invoke(seed=1), data)
    weights = [np.asarray(w).tobytes() for w in state.global_model_weights.trainable]
    left_out = metrics["client_work"]["train"]["num_non_finite_clients"]
    return weights, left_out, context.last_report().graph_calls["blocks"]


def test_a_stage_looks_from_the_first_client_that_is_not_finite_on(process):
    good = clients((20, 33, 7))
    with fc.use(fc.runtime.local()):
        assert "low_rank" in str(plan_of(process.next.module))
        assert round_of(process, good)[1:] == (0, 1)
        expected = round_of(process, good)[0]
        assert round_of(process, [*good, with_rows(np.nan)]) == (expected, 1, 2)
        assert round_of(process, [*good, with_rows(np.inf)]) == (expected, 1, 1)
        assert round_of(process, good) == (expected, 0, 1)


@pytest.mark.parametrize("size", [8, 20], ids=["one step", "several"])
def test_products_that_overflow_are_found_too(process, size):
    """The kernel is zero, so a prediction is finite; the change of the kernel is not."""
    good, large = clients((8, 3, 7) if size == 8 else (20, 33, 7)), with_rows(3e38, size)
    with fc.use(fc.runtime.local()):
        expected = round_of(process, good)[0]
        found = round_of(process, [*good, large])
    with fc.use(fc.runtime.local(vectorize=False)):
        alone = round_of(process, [*good, large])
    assert found[:2] == (expected, 1)
    assert alone[1] == 1


def changes(counts_only: bool):
    """A computation that trains a kernel, and counts the clients whose change is finite; or also adds the changes."""
    batch = (tf.TensorSpec([None, INPUTS]), tf.TensorSpec([None, OUTPUTS]))
    kernel = tf.TensorSpec([INPUTS, OUTPUTS])

    @fc.tf_computation(kernel, batch)
    def step(weights, examples):
        x, y = examples
        return weights - 0.01 * tf.matmul(x, tf.matmul(x, weights) - y, transpose_a=True)

    @fc.tf_computation(kernel, kernel)
    def result(after, before):
        change = after - before
        count = tf.cast(tf.math.is_finite(tf.reduce_sum(change)), tf.int32)
        return count if counts_only else (count, change)

    @fc.federated_computation(fc.FederatedType(kernel, fc.SERVER), fc.FederatedType(fc.SequenceType(batch), fc.CLIENTS))
    def change_of(weights, data):
        start = fc.federated_broadcast(weights)
        ends = fc.federated_map(lambda s, w: fc.sequence_reduce(s, w, step), (data, start))
        return fc.federated_sum(fc.federated_map(result, (ends, start)))

    return change_of


@pytest.mark.parametrize("counts_only", [True, False])
def test_clients_are_looked_at_if_the_partial_would_not_show_them(counts_only):
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, INPUTS)).astype("f"), rng.normal(size=(n, OUTPUTS)).astype("f")) for n in (16, 9, 24)]
    data[1][0][3] = np.inf
    data = [fc.data.ClientDataset.from_columns(c).batch(8) for c in data]
    computation = changes(counts_only)
    with fc.use(fc.runtime.local()):
        assert "low_rank" in str(plan_of(computation.module))
        found = computation(np.zeros([INPUTS, OUTPUTS], "f"), data)
    assert (found if counts_only else found[0]) == 2
    assert context.last_report().graph_calls["blocks"] == (1 if counts_only else 2)


@pytest.mark.parametrize("device", ["a view", "no view"])
def test_a_partial_is_moderate_if_no_entry_is_large_or_not_finite(device, monkeypatch):
    if device == "no view":  # as of a GPU's memory
        monkeypatch.setattr(finite_check, "mapped_array", lambda floats: None)
    for value in (0, 1e18, -1e18, 2e19, -2e19, np.nan, np.inf, -np.inf):
        floats = np.ones((7, 5), "f")
        floats[3, 2] = value
        assert finite_check.is_moderate(tf.constant(floats)) is bool(abs(value) < 1e19)
    assert finite_check.is_moderate(tf.zeros([0, 3]))

"""Graphs that draw: every client draws from its own seed, bit for bit what it draws alone."""

import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import WIDTHS, run_batched, run_one_client, traced, why_not_batchable
from test_batching_elementwise import normal

import fedcore as fc

SEEDS = np.array([5, -7, 2**62, 0, 1, 2, 3, -(2**63)], np.int64)


def looped(x):
    for _ in tf.range(3):
        x += tf.random.normal([4])
    return x


def chosen(x):
    return tf.random.categorical(x[tf.newaxis], 5)


DRAWS = {
    "uniform": lambda x: x + tf.random.uniform([4]),
    "normal": lambda x: x + tf.random.normal([4]),
    "truncated": lambda x: x + tf.random.truncated_normal([4]),
    "integers": lambda x: tf.random.uniform([4], 2, 9, tf.int32),
    "categorical": chosen,
    "shuffle": tf.random.shuffle,
    "gamma": lambda x: x + tf.random.gamma([4], 2.0),
    "dropout": lambda x: tf.nn.dropout(x, 0.5),
    "a seed of its own": lambda x: x + tf.random.normal([4], seed=3),
    "in a loop": looped,
    "of no client": lambda x: tf.random.uniform([4]),
    "as a branch": lambda x: tf.cond(tf.random.uniform([], seed=1) < 2.0, lambda: x, lambda: x + tf.random.normal([4])),
}
WITHOUT_RULE = {"gamma", "as a branch"}


@pytest.mark.parametrize("name", sorted(set(DRAWS) - WITHOUT_RULE))
def test_every_client_draws_what_it_draws_alone_at_every_width(name):
    graph, x = traced(DRAWS[name], (4,)), normal(8, 4)
    refused = why_not_batchable(graph, graph.data, {0})
    assert refused is None, str(refused)
    alone = [run_one_client(graph, [x[k]], SEEDS[k])[0] for k in range(8)]
    assert len({a.tobytes() for a in alone}) > 4
    for width in WIDTHS:
        ((found, value),) = run_batched(graph, [x[:width]], {0}, seeds=SEEDS[:width])
        assert value.batched
        for k in range(width):
            assert found[k].tobytes() == alone[k].tobytes()


@pytest.mark.parametrize("name", sorted(WITHOUT_RULE))
def test_what_has_no_rule_is_refused(name):
    graph = traced(DRAWS[name], (4,))
    assert why_not_batchable(graph, graph.data, {0}) is not None


@pytest.mark.parametrize("draw", [tf.random.uniform, tf.random.normal, tf.random.truncated_normal])
def test_the_rows_of_a_padded_batch_draw_what_the_batch_alone_draws(draw):
    graph = traced(lambda x: x + draw(tf.shape(x)), (None, 3))
    assert why_not_batchable(graph, graph.data, {0}, {0: 0}) is None
    x, sizes = normal(4, 5, 3), [5, 1, 3, 0]
    ((found, _),) = run_batched(graph, [x], {0}, padded={0: 0}, sizes=sizes, seeds=SEEDS[:4])
    for k, n in enumerate(sizes):
        assert found[k, :n].tobytes() == run_one_client(graph, [x[k, :n]], SEEDS[k])[0].tobytes()


def noisy_sum(*, folds: bool):
    batches = fc.SequenceType(("float32", [None, 3]))

    @fc.tf_computation("float32[3]", ("float32", [None, 3]))
    def step(total, batch):
        return total + tf.reduce_sum(batch * tf.round(tf.random.uniform(tf.shape(batch), maxval=8.0)), 0)

    @fc.tf_computation("float32[3]", "float32[3]")
    def add(a, b):
        return a + b + tf.round(tf.random.normal([3])) if folds else a + b

    @fc.federated_computation(fc.FederatedType(batches, fc.CLIENTS))
    def total(clients):
        zero = fc.generic_zero(fc.to_type(("float32", [3])))
        sums = fc.federated_map(lambda b: fc.sequence_reduce(b, zero, step), clients)
        return fc.federated_aggregate(sums, zero, add, lambda a, b: a + b, lambda x: x)

    return total


@pytest.mark.parametrize(("folds", "strategy"), [(False, "vectorised"), (True, "loop")])
def test_a_stage_that_draws_gives_on_every_runtime_the_same(folds, strategy):
    total = noisy_sum(folds=folds)
    assert total.to_module("planned").function("clients").attributes["strategy"] == strategy
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 9, (n, 3)).astype(np.float32) for n in (5, 2, 7, 1, 6, 3, 3, 2, 9, 4, 1)]
    cohort = [fc.data.ClientDataset.from_columns(r).batch(2) for r in rows]
    found = total.invoke(cohort, seed=3)
    with fc.use(fc.runtime.reference()):
        np.testing.assert_array_equal(total.invoke(cohort, seed=3), found)

"""A function of a stage over the values of several clients gives each client's results."""

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

import fedcore as fc
from fedcore.graphs.batched.batched_interpreter import BatchedInterpreter
from fedcore.graphs.batched.batched_sequence import BatchedSequence
from fedcore.graphs.batched.batched_value import NoBatchingRule, batched, broadcast_to_clients
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.batched.schedule import PackedLayout, ScheduleRules, schedule_clients
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Region, new_region

BATCHES = fc.SequenceType(("float32", (None, 2)))
ZEROS = np.float32([10, 20, 30])


@fc.tf_computation("float32", ("float32", (None, 2)))
def add_mean(total, batch):
    return total * 0.5 + tf.reduce_mean(batch)


@fc.federated_computation("float32", BATCHES)
def add_means(zero, batches):
    return fc.sequence_reduce(batches, zero, add_mean)


@fc.tf_computation(("float32", (None, 2)))
def double(batch):
    return batch * 2.0


@fc.federated_computation("float32", BATCHES)
def add_doubled_means(zero, batches):
    return fc.sequence_reduce(fc.sequence_map(double, batches), zero, add_mean)


def client_rows(counts) -> list[np.ndarray]:
    return [np.random.default_rng(i).normal(size=(n, 2)).astype("f") for i, n in enumerate(counts)]


def run_reduction(computation, counts, **rules) -> tuple[np.ndarray, PackedLayout, Region]:
    """The result of each client, in the order of clients, with the layout and the region.

    Args:
        computation: of a number and batches of two rows.
        counts: number of rows of each client.
    """
    datasets = [fc.data.ClientDataset.from_columns(rows).batch(2) for rows in client_rows(counts)]
    leaves = ClientLeaves([(d.columns,) for d in datasets])
    orders = leaves.orders(np.arange(len(counts)), [0])
    schedule = schedule_clients(leaves, orders, ScheduleRules(len(counts), **rules), range(len(counts)), len(counts))
    lanes, columns, rows = schedule.lanes(0), leaves.sequences[0], schedule.layout.rows
    clients = lanes.clients[: len(counts)]  # those of the first group; the others are empty
    module = computation.to_module("lowered")

    def body(zeros, *tensors):
        *packed_columns, index, sizes = tensors
        packed = rows(tuple(packed_columns), index, sizes, schedule.layout.batch_rows[0])
        first_lane = ops.constant(0, tf.int64)
        sequence = BatchedSequence(schedule.layout.layouts[0], packed).group(
            Window(first_lane, len(counts)), first_lane
        )
        interpreter = BatchedInterpreter(module, schedule.layout, xla=False)
        result = interpreter.run(module.main, batched(zeros), sequence)
        return [broadcast_to_clients(result, len(counts))]

    packed = [*rows.pack_columns(lanes, columns), rows.pack_index(lanes, columns, orders[0]), lanes.sizes]
    arrays = [ZEROS[clients], *map(np.asarray, packed)]
    (results,) = run_region(body, *arrays)
    region = new_region([(tf.as_dtype(a.dtype), a.shape) for a in arrays], body)
    return results[np.argsort(clients)], schedule.layout, region


def expected_results(counts, factor=1) -> list[float]:
    """The result of each client by itself."""
    results = []
    for total, rows in zip(ZEROS, client_rows(counts), strict=True):
        for begin in range(0, len(rows), 2):
            total = total * np.float32(0.5) + factor * rows[begin : begin + 2].mean()
        results.append(total)
    return results


def test_a_client_that_has_ended_is_frozen():
    counts = (2, 7, 3)
    results, layout, region = run_reduction(add_means, counts)
    assert not layout.equal_steps
    assert [n["has_active"] for n in region.nodes if n.op == "scan"] == [True]
    np.testing.assert_allclose(results, expected_results(counts), rtol=1e-5)


def test_clients_of_equally_many_steps_are_not_frozen():
    counts = (3, 4, 3)
    results, layout, region = run_reduction(add_means, counts)
    assert layout.equal_steps
    assert [n["has_active"] for n in region.nodes if n.op == "scan"] == [False]
    np.testing.assert_allclose(results, expected_results(counts), rtol=1e-5)


def test_a_single_step_has_no_loop():
    results, layout, region = run_reduction(add_means, (2, 1, 2))
    assert layout.single_step
    assert "scan" not in {n.op for n in region.nodes}
    np.testing.assert_allclose(results, expected_results((2, 1, 2)), rtol=1e-5)


def test_a_map_is_applied_to_each_element():
    results, _, _ = run_reduction(add_doubled_means, (2, 7, 3))
    np.testing.assert_allclose(results, expected_results((2, 7, 3), factor=2), rtol=1e-5)


def test_an_operation_outside_of_graphs_is_refused():
    module = fc.federated_computation("float32", "float32")(lambda x, y: fc.generic_multiply(x, y)).to_module("traced")
    interpreter = BatchedInterpreter(module, PackedLayout((), ()), xla=False)
    with pytest.raises(NoBatchingRule, match=r"generic_multiply.*the operation stands outside of graphs"):
        run_region(lambda x: [interpreter.run(module.main, batched(x), batched(x))], ZEROS)


def test_contexts_of_groups_are_restored():
    layout, longer = PackedLayout((), (), equal_steps=True), PackedLayout((), ())
    interpreter = BatchedInterpreter(add_means.to_module("lowered"), layout, xla=False)
    with interpreter.using(longer, None):
        with interpreter.using(layout, []):
            assert interpreter._layout is layout
        assert interpreter._layout is longer
    assert interpreter._layout is layout


def test_a_reduction_ends_though_neither_state_nor_batch_decides_a_step():
    vector = fc.to_type("float32[2]")

    @fc.federated_computation(
        fc.FederatedType(vector, fc.SERVER), fc.FederatedType(fc.SequenceType(vector), fc.CLIENTS)
    )
    def sum_of_squares(numbers, batches):
        def square(shared, client_batches):
            return fc.sequence_reduce(client_batches, shared, lambda state, batch: fc.generic_multiply(shared, shared))

        return fc.federated_sum(fc.federated_map(square, (fc.federated_broadcast(numbers), batches)))

    clients = [[np.ones(2, np.float32)] * 3] * 4
    np.testing.assert_array_equal(sum_of_squares(np.float32([2, 3]), clients), [16, 36])

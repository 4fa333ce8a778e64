"""Rules of shapes, reductions and random numbers: of clients without rows, of sizes, of padded batches."""

import numpy as np
import pytest
import tensorflow as tf
from rules_by_client import CLIENTS, SIZES, constant, evaluated, normal, rows
from run_region import run_region

from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, NoBatchingRule, batched, shared
from fedcore.graphs.batched.batching_rules import shapes
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, new_region

F = {"T": tf.float32}
OVER_ROWS = constant([0])
SEEDS = np.arange(2 * CLIENTS, dtype=np.int64).reshape(CLIENTS, 2)


def test_clients_without_rows_reduce_to_the_neutral_element():
    for op, neutral in (("Sum", 0.0), ("Prod", 1.0), ("Max", -np.inf), ("Min", np.inf)):
        ((found, _),) = evaluated(op, F, [rows(3), OVER_ROWS])
        assert (found[SIZES.index(0)] == neutral).all()
    ((mean, _),) = evaluated("Mean", F, [rows(3), OVER_ROWS])
    assert np.isnan(mean[SIZES.index(0)]).all()


LONGEST = max(SIZES)


@pytest.mark.parametrize(
    ("op", "attributes", "operands"),
    [
        ("BatchMatMulV2", F, [rows(2, 3), constant(np.ones((LONGEST, 3, 2)), np.float32)]),
        ("BatchMatMulV2", F, [constant(np.ones((LONGEST, 3, 2)), np.float32), rows(2, 3)]),
        ("GatherV2", {"batch_dims": 1}, [rows(3), constant(np.zeros((LONGEST, 1))), constant(1)]),
        ("AddV2", F, [rows(3), constant(np.ones((LONGEST, 3)), np.float32)]),
    ],
)
def test_a_batch_beside_a_constant_axis_of_its_padded_size_is_refused(op, attributes, operands):
    with pytest.raises(NoBatchingRule, match="one operand has a batch where another has an axis of constant size"):
        evaluated(op, attributes, operands)


def test_a_batch_of_matrices_beside_a_single_matrix():
    x, y = rows(2, 3), np.ones((1, 3, 2), np.float32)
    ((product, _),) = evaluated("BatchMatMulV2", F, [x, constant(y, np.float32)])
    np.testing.assert_allclose(product[0], x.array[0] @ y, rtol=1e-5)


# --- shapes ---


def in_evaluation(read) -> object:
    """`read` of an evaluation and of a batch [rows, 6]."""
    results = []

    def body(x, sizes):
        results.append(read(BatchedEvaluation(CLIENTS, max(SIZES), sizes), batched(x, 0)))
        return []

    new_region([(tf.float32, [CLIENTS, max(SIZES), 6]), (tf.int64, [CLIENTS])], body)
    return results[0]


def known(value) -> BatchedValue:
    return BatchedValue(None, form=KnownValue.from_constant(np.asarray(value, np.int32)))


def test_the_target_of_a_reshape_has_no_wildcard():
    def targets(evaluation, x):
        of_batch = shapes.reshape_target(evaluation, x, known([-1, 3]))
        constant_target = shapes.reshape_target(evaluation, shared(ops.zeros([4, 6])), known([3, -1]))
        unknown = shapes.reshape_target(evaluation, x, shared(ops.placeholder(tf.int32, [2])))
        return of_batch, constant_target, unknown, evaluation.sampled_sizes

    of_batch, target, unknown, sampled_sizes = in_evaluation(targets)
    assert [v.tolist() for v in of_batch.samples] == [[2 * n, 3] for n in sampled_sizes]
    assert target.is_constant
    assert target.samples[0].tolist() == [3, 8]
    assert unknown is None


@pytest.mark.parametrize(
    ("op", "shape", "why"),
    [
        ("Reshape", [-1], None),
        ("Reshape", [5, 6], "no batch axis"),
        ("BroadcastTo", [2, 5, 6], "another axis"),
        ("Tile", [2, 1], "repeats the batch"),
    ],
)
def test_a_batch_keeps_its_axis_or_has_no_rule(op, shape, why):
    def read(evaluation, x):
        try:
            return evaluation.evaluate(Node(op, (), {"T": tf.float32}), [x, known(shape)])[0]
        except NoBatchingRule as error:
            return error

    found = in_evaluation(read)
    if why is None:
        assert (found.padded_axis, found.entries_per_row) == (0, 6)
    else:
        assert why in found.why


def test_broadcast_values_stay_shared_where_they_were():
    def body(x, y):
        evaluation = BatchedEvaluation(CLIENTS)
        values = (
            shapes.broadcast(evaluation, shared(x), np.array([2, 3]), None, 1),
            shapes.broadcast(evaluation, batched(y), np.array([2, 3]), None, 1),
        )
        assert [v.batched for v in values] == [False, True]
        return [v.tensor for v in values]

    x, y = normal(3), normal(CLIENTS, 1, 3)
    found = run_region(body, x, y)
    np.testing.assert_array_equal(found[0], np.broadcast_to(x, (2, 3)))
    np.testing.assert_array_equal(found[1], np.broadcast_to(y, (CLIENTS, 2, 3)))


def test_numbers_up_to_the_batch_size_are_an_axis_of_the_batch():
    def read(evaluation, x):
        (sizes,) = evaluation.evaluate(Node("Shape", (), {"T": tf.float32}), [x])
        bounds = [BatchedValue(None, True, form=KnownValue.from_samples([v[0] for v in sizes.known.samples]))]
        node = Node("Range", (), {"Tidx": tf.int32})
        return evaluation.evaluate(node, [known(0), *bounds, known(1)])[0]

    found = in_evaluation(read)
    assert (found.batched, found.padded_axis) == (False, 0)
    assert found.tensor.shape == [max(SIZES)]


def test_the_gradient_of_a_broadcast_of_unknown_shapes_has_no_rule():
    def read(evaluation, x):
        unknown = batched(ops.placeholder(tf.int32, [CLIENTS, 2]))
        with pytest.raises(NoBatchingRule, match="not known"):
            evaluation.evaluate(Node("BroadcastGradientArgs", (), {"T": tf.int32}), [unknown, known([2])])

    in_evaluation(read)


# --- random numbers ---


def test_the_rows_of_a_padded_batch_have_the_numbers_of_the_batch_alone():
    def body(x, sizes, seeds):
        evaluation = BatchedEvaluation(CLIENTS, max(SIZES), sizes)
        (shape,) = evaluation.evaluate(Node("Shape", (), {"T": tf.float32}), [batched(x, 0)])
        node = Node("StatelessRandomNormal", (), {"dtype": tf.float32, "T": tf.int32, "Tseed": tf.int64})
        (found,) = evaluation.evaluate(node, [shape, batched(seeds)])
        assert (found.batched, found.padded_axis) == (True, 0)
        return [found.tensor]

    (found,) = run_region(body, rows(3).array, np.array(SIZES), SEEDS)
    for client, n in enumerate(SIZES):
        alone = tf.raw_ops.StatelessRandomNormal(shape=[n, 3], seed=SEEDS[client]).numpy()
        assert found[client, :n].tobytes() == alone.tobytes()
    assert len({found[k].tobytes() for k in range(CLIENTS)}) == CLIENTS

"""Every rule of shapes, reductions, gathers and random numbers gives each client what it has alone."""

import numpy as np
import pytest
import tensorflow as tf
from rules_by_client import (
    CLIENTS,
    SIZES,
    check_rule,
    common,
    constant,
    evaluated,
    normal,
    operations_of,
    own,
    own_of,
    rows,
    rows_of,
)
from run_region import run_region

from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, NoBatchingRule, batched, shared
from fedcore.graphs.batched.batching_rules import gathers, randomness, reductions, shapes
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import new_region
from fedcore.graphs.graphdef.form.parsed_graph import Node


def integers(most: int, *shape, dtype=np.int32) -> np.ndarray:
    return np.random.default_rng(3).integers(0, most, shape).astype(dtype)


F, INT, LONG = {"T": tf.float32}, tf.int32, tf.int64
OVER_ROWS, OVER_ALL, OVER_COLUMNS = constant([0]), constant([0, 1]), constant([-1])
INDEXED = {"Tparams": tf.float32, "Tindices": INT}
IDS = {"T": tf.float32, "Tindices": INT, "Tnumsegments": INT}
KEY, COUNTER = own_of(integers(9, CLIENTS, 1, dtype=np.uint64)), own_of(integers(9, CLIENTS, 2, dtype=np.uint64))
ALGORITHM = constant(1)
SEEDS = own_of(np.arange(2 * CLIENTS, dtype=np.int64).reshape(CLIENTS, 2))
FLOATS = {"dtype": tf.float32}
INTS = {"dtype": INT}

CASES = {
    reductions: [
        *((op, {"keep_dims": keep, **F}, rows(3), over) for op in ("Sum", "Prod", "Max", "Min", "Mean")
          for keep, over in ((False, OVER_ROWS), (True, OVER_ALL), (False, OVER_COLUMNS))),
        *((op, {"keep_dims": False}, rows_of(normal(CLIENTS, 5, 3) > 0), OVER_ROWS) for op in ("All", "Any")),
        ("BiasAddGrad", F, rows(2, 3)),
        *((op, {**F, "output_type": LONG}, rows(3), constant(axis)) for op in ("ArgMax", "ArgMin") for axis in (0, 1)),
        ("InTopKV2", {"T": INT}, rows(6), rows_of(integers(6, CLIENTS, 5)), constant(2)),
        ("L2Loss", F, rows(3)),
        ("DenseBincount", {"Tidx": INT, "T": tf.float32, "binary_output": False},
         own_of(integers(6, CLIENTS, 9)), constant(6), own(9)),
    ],
    shapes: [
        ("Shape", {"T": tf.float32, "out_type": LONG}, rows(3)),
        ("ShapeN", {"T": tf.float32, "N": 2, "out_type": INT}, rows(3), own(2)),
        ("Size", {"T": tf.float32, "out_type": INT}, rows(3)),
        ("Rank", F, rows(3)),
        ("Reshape", {"T": tf.float32, "Tshape": INT}, rows(4), constant([-1, 2, 2])),
        ("Reshape", {"T": tf.float32, "Tshape": INT}, own(4), constant([2, 2])),
        ("Fill", {"T": tf.float32, "index_type": INT}, constant([2, 3]), own()),
        ("BroadcastTo", {"T": tf.float32, "Tidx": INT}, own(1, 3), constant([4, 2, 3])),
        ("Tile", {"T": tf.float32, "Tmultiples": INT}, rows(3), constant([1, 2])),
        *(("ExpandDims", {"T": tf.float32, "Tdim": INT}, rows(3), constant(axis)) for axis in (0, 1, -1)),
        ("Squeeze", {"T": tf.float32, "squeeze_dims": [1]}, rows(1, 3)),
        ("EnsureShape", {"T": tf.float32, "shape": tf.TensorShape([None, 3])}, rows(3)),
    ],
    gathers: [
        *(("GatherV2", {**INDEXED, "Taxis": INT, "batch_dims": 0}, x, i, constant(axis))
          for x in (own(5, 5), common(5, 5)) for axis in (0, 1)
          for i in (own_of(integers(5, CLIENTS, 3)), rows_of(integers(5, CLIENTS, 5)))),
        ("GatherV2", {**INDEXED, "Taxis": INT, "batch_dims": 1},
         rows(4), rows_of(integers(4, CLIENTS, 5, 2)), constant(1)),
        ("Gather", {**INDEXED, "validate_indices": True}, common(5, 2), rows_of(integers(5, CLIENTS, 5))),
        ("GatherNd", INDEXED, own(5, 5, 2), rows_of(integers(5, CLIENTS, 5, 2))),
        *((op, IDS, rows(3), rows_of(integers(4, CLIENTS, 5)), constant(4)) for op in
          ("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")),
        ("ScatterNd", {"T": tf.float32, "Tindices": INT},
         rows_of(integers(4, CLIENTS, 5, 1)), rows(3), constant([4, 3])),
        *((op, {"T": tf.float32, "Tindices": INT}, own(4, 3), rows_of(integers(4, CLIENTS, 5, 1)), rows(3, seed=1))
          for op in ("TensorScatterAdd", "TensorScatterSub")),
        ("TensorScatterUpdate", {"T": tf.float32, "Tindices": INT},
         own(4, 3), own_of(np.tile([[2], [0]], (CLIENTS, 1, 1)).astype("i")), own(2, 3, seed=1)),
    ],
    randomness: [
        ("StatelessRandomGetKeyCounter", {"Tseed": LONG}, SEEDS),
        *((op, {**FLOATS, "Tshape": INT}, constant([3, 2]), KEY, COUNTER, ALGORITHM) for op in
          ("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2")),
        ("StatelessRandomUniformIntV2", {**INTS, "Tshape": INT}, constant([3]), KEY, COUNTER, ALGORITHM,
         constant(2), constant(9)),
        ("StatelessRandomUniformFullIntV2", {**INTS, "Tshape": INT}, constant([3]), KEY, COUNTER, ALGORITHM),
        *((op, {**FLOATS, "T": INT, "Tseed": LONG}, constant([3, 2]), SEEDS) for op in
          ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal")),
        ("StatelessRandomUniformInt", {**INTS, "T": INT, "Tseed": LONG},
         constant([3]), SEEDS, constant(2), constant(9)),
        ("StatelessRandomUniformFullInt", {**INTS, "T": INT, "Tseed": LONG}, constant([3]), SEEDS),
        ("StatelessMultinomial", {"T": tf.float32, "Tseed": LONG, "output_dtype": LONG}, own(2, 5), constant(7), SEEDS),
        ("StatelessShuffle", {"T": tf.float32}, own(6, 2), KEY, COUNTER, ALGORITHM),
        ("StatelessParameterizedTruncatedNormal", {"S": INT, "Tseed": LONG, **FLOATS}, constant([3]), SEEDS,
         *(constant(v, np.float32) for v in (0.0, 1.0, -1.0, 1.0))),
    ],
}  # fmt: skip
ELSEWHERE = {"StatelessRandomGetAlg", "BroadcastGradientArgs", "Range"}
"""Operations without a seed, that have no results by a rule, and of known sizes only: tests of their own."""


@pytest.mark.parametrize("module", CASES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_every_rule_of_the_module_is_in_a_case(module):
    assert {op for op, *_ in CASES[module]} == operations_of(module) - ELSEWHERE


@pytest.mark.parametrize(
    ("op", "attributes", "operands"),
    [(op, attributes, operands) for cases in CASES.values() for op, attributes, *operands in cases],
)
def test_each_client_has_the_results_that_it_has_alone(op, attributes, operands):
    check_rule(op, attributes, *operands)


def test_clients_without_rows_reduce_to_the_neutral_element():
    for op, neutral in (("Sum", 0.0), ("Prod", 1.0), ("Max", -np.inf), ("Min", np.inf)):
        ((found, _),) = evaluated(op, F, [rows(3), OVER_ROWS])
        assert (found[SIZES.index(0)] == neutral).all()
    ((mean, _),) = evaluated("Mean", F, [rows(3), OVER_ROWS])
    assert np.isnan(mean[SIZES.index(0)]).all()


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
    return BatchedValue(None, known=KnownValue.from_constant(np.asarray(value, np.int32)))


def test_the_target_of_a_reshape_has_no_wildcard():
    def targets(evaluation, x):
        of_batch = shapes.reshape_target(evaluation, x, known([-1, 3]))
        constant_target = shapes.reshape_target(evaluation, shared(ops.zeros([4, 6])), known([3, -1]))
        unknown = shapes.reshape_target(evaluation, x, shared(ops.placeholder(tf.int32, [2])))
        return of_batch, constant_target, unknown, evaluation.probes

    of_batch, target, unknown, probes = in_evaluation(targets)
    assert [v.tolist() for v in of_batch.values] == [[2 * n, 3] for n in probes]
    assert target.is_constant
    assert target.values[0].tolist() == [3, 8]
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
            return evaluation.evaluate(Node("node", op, (), {"T": tf.float32}), [x, known(shape)])[0]
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
        (sizes,) = evaluation.evaluate(Node("node", "Shape", (), {"T": tf.float32}), [x])
        bounds = [BatchedValue(None, True, known=KnownValue.from_probes([v[0] for v in sizes.known.values]))]
        node = Node("node", "Range", (), {"Tidx": tf.int32})
        return evaluation.evaluate(node, [known(0), *bounds, known(1)])[0]

    found = in_evaluation(read)
    assert (found.batched, found.padded_axis) == (False, 0)
    assert found.tensor.shape == [max(SIZES)]


def test_the_gradient_of_a_broadcast_of_unknown_shapes_has_no_rule():
    def read(evaluation, x):
        unknown = batched(ops.placeholder(tf.int32, [CLIENTS, 2]))
        with pytest.raises(NoBatchingRule, match="not known"):
            evaluation.evaluate(Node("node", "BroadcastGradientArgs", (), {"T": tf.int32}), [unknown, known([2])])

    in_evaluation(read)


# --- random numbers ---


def test_the_rows_of_a_padded_batch_have_the_numbers_of_the_batch_alone():
    def body(x, sizes, seeds):
        evaluation = BatchedEvaluation(CLIENTS, max(SIZES), sizes)
        (shape,) = evaluation.evaluate(Node("node", "Shape", (), {"T": tf.float32}), [batched(x, 0)])
        node = Node("node", "StatelessRandomNormal", (), {"dtype": tf.float32, "T": tf.int32, "Tseed": tf.int64})
        (found,) = evaluation.evaluate(node, [shape, batched(seeds)])
        assert (found.batched, found.padded_axis) == (True, 0)
        return [found.tensor]

    (found,) = run_region(body, rows(3).array, np.array(SIZES), SEEDS.array)
    for client, n in enumerate(SIZES):
        alone = tf.raw_ops.StatelessRandomNormal(shape=[n, 3], seed=SEEDS.array[client]).numpy()
        assert found[client, :n].tobytes() == alone.tobytes()
    assert len({found[k].tobytes() for k in range(CLIENTS)}) == CLIENTS

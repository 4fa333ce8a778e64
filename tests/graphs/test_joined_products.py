"""Two products with matrices that a loop does not change, and that it adds, become one product of rows side by side."""

import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import check, check_padded, traced
from run_region import run_region

from fedcore.graphs.batched.batched_value import BatchedValue, batched, shared
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.joined_products import MAX_ROWS, join_products
from fedcore.graphs.batched.low_rank import LowRank
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Region, Value, new_region, origin, outer_values
from fedcore.graphs.graphdef.form.captured_graph import captured_graph

N, H = 4, 6


def normal(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("f")


def recurrent(step, x, w, r, h):
    """A loop of three iterations over h; `step` is of (x, h, w, r). The matrices are captured, as a layer's are."""
    return tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, step(x, h, w, r)), (0, h))[1]


JOINED = {
    "sum": lambda x, h, w, r: tf.tanh(x @ w + h @ r),
    "other order": lambda x, h, w, r: tf.tanh(h @ r + x @ w),
    "sum of two": lambda x, h, w, r: tf.tanh(tf.raw_ops.AddN(inputs=[x @ w, h @ r])),
    "gates": lambda x, h, w, r: tf.tanh(x @ w + h @ r) * tf.sigmoid(2.0 * x @ w + h @ r),
}
APART = {
    "difference": lambda x, h, w, r: tf.tanh(x @ w - h @ r),
    "three": lambda x, h, w, r: tf.tanh(tf.raw_ops.AddN(inputs=[x @ w, h @ r, h])),
    "scaled": lambda x, h, w, r: tf.tanh(x @ w + 0.5 * (h @ r)),
    "transposed": lambda x, h, w, r: tf.tanh(x @ w + tf.matmul(h, r, transpose_b=True)),
    "twice": lambda x, h, w, r: tf.tanh((lambda y: y + y)(x @ w) + h),
}
STEPS = JOINED | APART


def joined(step, matrices: dict[int, BatchedValue]) -> tuple[Region, dict[Value, BatchedValue]]:
    """The body with joined products, and the joined matrices."""
    graph = traced(lambda *values: recurrent(step, *values), (2, N), (N, H), (H, H), (2, H))
    whole = captured_graph(graph, graph.data).main
    (node,) = [n for n in whole.nodes if n.op == "while"]
    body, other = node.regions[1], shared(ops.zeros([2, H]))
    positions = {v: i for i, v in enumerate(whole.arguments)}
    outer = {v: matrices.get(positions.get(origin(v)), other) for v in outer_values(body)}
    after, more = join_products(BatchedEvaluation(3), body, outer)
    assert {v: more[v] for v in outer} == outer
    return after, {v: value for v, value in more.items() if v not in outer}


def in_region(read, *types) -> object:
    results = []

    def body(*values):
        results.append(read(*values))
        return []

    new_region([(tf.float32, t) for t in types], body)
    return results[0]


def number_of_joined(step, w, r) -> int:
    return len(joined(step, {1: w, 2: r})[1])


@pytest.mark.parametrize("name", STEPS)
def test_sums_of_two_products_with_unchanged_matrices_are_found(name):
    count = in_region(lambda w, r: number_of_joined(STEPS[name], batched(w), batched(r)), [3, N, H], [3, H, H])
    assert count == (0 if name in APART else 2 if name == "gates" else 1)


def test_the_joined_matrix_has_the_rows_of_both_and_does_not_change():
    def read(w, r):
        after, matrices = joined(JOINED["sum"], {1: batched(w), 2: batched(r)})
        ((matrix, joined_matrix),) = matrices.items()
        (product,) = [n for n in after.nodes if matrix in n.inputs]
        assert product.op == "MatMul"
        return [joined_matrix.tensor]

    w, r = normal(3, N, H), normal(3, H, H, seed=1)
    (matrix,) = run_region(read, w, r)
    assert matrix.tobytes() in {np.concatenate(pair, 1).tobytes() for pair in ((w, r), (r, w))}


@pytest.mark.parametrize(("rows", "gains"), [(MAX_ROWS, True), (MAX_ROWS + 1, False)])
def test_products_gain_if_a_matrix_has_few_rows(rows, gains):
    count = in_region(lambda w, r: number_of_joined(JOINED["sum"], batched(w), batched(r)), [3, rows, 64], [3, 64, 64])
    assert count == gains


def test_matrices_of_different_kinds_stay_apart():
    def counts(w, r, of_all, unknown):
        factors = BatchedValue(None, True, form=LowRank((N, H), 3, ((of_all, 1.0),)))
        pairs = [
            (batched(w), shared(of_all)),
            (factors, batched(r)),
            (batched(unknown), batched(r)),
            (batched(w, 0), batched(r)),
            (batched(w), batched(r)),
        ]
        return [number_of_joined(JOINED["sum"], *pair) for pair in pairs]

    types = [3, N, H], [3, H, H], [N, H], [3, None, H]
    assert in_region(counts, *types) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("name", STEPS)
def test_the_results_are_those_of_each_client_alone(name):
    values = normal(8, 2, N), normal(8, N, H, seed=1), normal(8, H, H, seed=2), normal(8, 2, H, seed=3)
    check(lambda *v: recurrent(STEPS[name], *v), *values, widths=(3,), tolerance=1e-5)


def test_shared_matrices_and_padded_batches_have_the_same_results():
    values = normal(3, 4, N), normal(N, H, seed=1), normal(H, H, seed=2), normal(3, 4, H, seed=3)
    options = {"shared": [1, 2], "padded": [0, 3], "sizes": [4, 1, 2]}
    check_padded(lambda *v: recurrent(JOINED["sum"], *v), *values, **options, tolerance=1e-5)

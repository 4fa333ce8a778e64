"""Products of a loop that nothing in it reads are found in its body, and have the same results behind it."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import check, check_padded, traced

from fedcore.graphs.batched.batched_call import why_not_batchable
from fedcore.graphs.batched.batched_value import batched, shared
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.loop_products import MIN_RANK, ProductsBehindLoop, match_products
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Region, new_region, outer_values
from fedcore.graphs.graphdef.form.captured_graph import captured_graph

B, N, M = 3, 40, 48  # a kernel whose factors break even at rank 21


def normal(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("f")


def loop(step, *, elements=False):
    """A loop that adds to a matrix [N, M], a list of B x N and a vector [M], from what a step computes of x and g.

    Args:
        step: (i, x [B, N], g [B, M], w [N, M], total, seen, bias) -> the last three after an iteration.
    """

    def fn(x, g, w, total, bias):
        seen = tf.raw_ops.TensorListReserve(element_shape=[B, N], num_elements=4, element_dtype=tf.float32)

        def body(i, x, g, total, seen, bias):
            total, seen, bias = step(i, x, g, w, total, seen, bias)
            return i + 1, tf.tanh(x), g * 0.5, total, seen, bias

        _, x, _, total, seen, bias = tf.while_loop(lambda i, *_: i < 4, body, (0, x, g, total, seen, bias))
        stack = tf.raw_ops.TensorListStack(input_handle=seen, element_shape=[B, N], element_dtype=tf.float32)
        return (total, bias, x, stack) if elements else (total, bias, x)

    return fn


def product(i, x, g, w, total, seen, bias):
    return total + tf.matmul(x, g, transpose_a=True), seen, bias


def with_bias(i, x, g, w, total, seen, bias):
    added = tf.raw_ops.BiasAddGrad(out_backprop=g)
    return total + tf.matmul(x, g, transpose_a=True), seen, bias + added


def with_elements(i, x, g, w, total, seen, bias):
    zeros = tf.raw_ops.TensorListReserve(element_shape=[B, N], num_elements=4, element_dtype=tf.float32)
    element = tf.matmul(g, w, transpose_b=True)
    one = tf.raw_ops.TensorListSetItem(input_handle=zeros, index=i % 3, item=element)
    total, _, bias = with_bias(i, x, g, w, total, seen, bias)
    return total, tf.raw_ops.AddN(inputs=[seen, one]), bias


def read_inside(i, x, g, w, total, seen, bias):
    total += tf.matmul(x, g, transpose_a=True)
    return total, seen, bias + tf.reduce_sum(total, 0)


def read_before(i, x, g, w, total, seen, bias):
    return total + tf.matmul(x, g, transpose_a=True), seen, bias + total[0]


def not_transposed(i, x, g, w, total, seen, bias):
    return total + tf.matmul(tf.transpose(x), g), seen, bias


def scaled(i, x, g, w, total, seen, bias):
    return 0.9 * total + tf.matmul(x, g, transpose_a=True), seen, bias


def returned_twice(i, x, g, w, total, seen, bias):
    added = tf.raw_ops.BiasAddGrad(out_backprop=g)
    return total + tf.matmul(x, g, transpose_a=True), seen, added


def regions_of(fn, shapes) -> tuple[Region, Region]:
    """The condition and the body of the only loop of a graph."""
    graph = traced(fn, *shapes)
    (node,) = [n for n in captured_graph(graph, graph.data).main.nodes if n.op == "while"]
    return node.regions


SHAPES = [(B, N), (B, M), (N, M), (N, M), (M,)]


def found(step) -> ProductsBehindLoop:
    return match_products(*regions_of(loop(step, elements=True), SHAPES))


def kinds(step) -> tuple[int, int, int]:
    behind = found(step)
    return len(behind.sums), len(behind.elements), len(behind.row_sums)


def test_variables_that_only_collect_products_are_found():
    assert kinds(product) == (1, 0, 0)
    assert kinds(with_bias) == (1, 0, 1)
    assert kinds(with_elements) == (1, 1, 1)


@pytest.mark.parametrize("step", [read_inside, read_before, not_transposed, scaled])
def test_variables_that_the_loop_uses_otherwise_are_not(step):
    assert kinds(step) == (0, 0, 0)


def test_a_row_sum_that_replaces_its_variable_is_no_sum():
    assert kinds(returned_twice) == (1, 0, 0)


def test_the_reduced_body_returns_the_operands_and_computes_no_product():
    condition, step = regions_of(loop(with_elements, elements=True), SHAPES)
    behind = match_products(condition, step)
    test, reduced = behind.remove_from(condition, step)
    assert {n.op for n in step.nodes} - {n.op for n in reduced.nodes} >= {"MatMul", "AddN", "BiasAddGrad"}
    others = [i for i in range(len(step.results)) if i not in behind.variables]
    count = len(others)
    assert len(behind.variables) == len(behind.products)
    assert reduced.results[count:] == (*behind.operands, *behind.indices)
    known = {*outer_values(step), *reduced.arguments, *(n.outputs[0] for n in reduced.nodes)}
    assert {*reduced.results[count:]} <= known
    assert [*reduced.results[:count]] == [step.results[i] for i in others]
    for before, after in ((condition, test), (step, reduced)):
        assert [*after.arguments] == [before.arguments[i] for i in others]


@pytest.mark.parametrize("step", [product, with_bias, with_elements, read_inside, read_before, returned_twice])
def test_the_results_are_those_of_each_client_alone(step):
    values = [normal(8, *s, seed=i) for i, s in enumerate(SHAPES)]
    check(loop(step, elements=step is with_elements), *values, widths=(3,), tolerance=1e-5)


def test_a_padded_batch_adds_its_own_rows():
    values = [normal(3, *s, seed=i) for i, s in enumerate(SHAPES)]
    check_padded(loop(with_bias), *values, padded=[0, 1], sizes=[3, 1, 2], tolerance=1e-5)


# --- which of them gain ---


def fitting(behind: ProductsBehindLoop, n: int, m: int, *, of_x=None, of_g=None) -> tuple[int, int, int]:
    """How many of the products fit where x is [K, B, n] and g is [K, B, m]."""
    counts = []

    def body(x, g, matrix, index):
        evaluation = BatchedEvaluation(4, 3, ops.placeholder(tf.int64, [4]))
        x, g = (of_x or batched)(x), (of_g or batched)(g)
        others = [x if ref == behind.sums[0].x else g for ref in behind.operands]
        outer = {p.matrix: batched(matrix) for p in behind.elements}
        fit = behind.select_fitting(evaluation, [*others, *(shared(index) for _ in behind.indices)], outer)
        counts.append((len(fit.sums), len(fit.elements), len(fit.row_sums)))
        return []

    new_region([(tf.float32, s) for s in ([4, B, n], [4, B, m], [4, n, m])] + [(tf.int32, [])], body)
    return counts[0]


def test_sums_gain_from_a_rank_on_and_others_with_them():
    behind = found(with_elements)
    assert fitting(behind, 2 * MIN_RANK, 2 * MIN_RANK) == (1, 1, 1)
    assert fitting(behind, 2 * MIN_RANK, 2 * MIN_RANK - 2) == (0, 0, 0)


def test_operands_that_are_shared_or_are_no_batches_of_rows_stay_in_the_loop():
    behind = found(with_elements)
    rows, columns = (functools.partial(batched, padded_axis=axis) for axis in (0, 1))
    for other in (shared, columns):
        assert fitting(behind, 40, 40, of_x=other) == (0, 0, 0)
        assert fitting(behind, 40, 40, of_g=other) == (0, 0, 0)
    assert fitting(behind, 40, 40, of_x=rows) == (0, 0, 0)  # only one of them is padded
    assert fitting(behind, 40, 40, of_x=rows, of_g=rows) == (1, 1, 1)


def test_a_body_without_products_is_not_changed():
    body = new_region([(tf.float32, [M]), (tf.float32, [M])], lambda x, y: [x + y, y])
    test = new_region([(tf.float32, [M]), (tf.float32, [M])], lambda x, y: [ops.constant(False)])
    behind = match_products(test, body)
    assert not behind.products
    assert [(r.arguments, r.nodes, r.results) for r in behind.remove_from(test, body)] == [
        (r.arguments, r.nodes, r.results) for r in (test, body)
    ]


def test_a_sum_that_the_condition_reads_stays_in_the_loop():
    def fn(x, g):
        def body(i, total):
            return i + 1, total + tf.matmul(x, g, transpose_a=True)

        def goes_on(i, total):
            return (i < 9) & (tf.reduce_max(total) < 5.0)

        return tf.while_loop(goes_on, body, (0, tf.zeros([N, M])))

    assert not match_products(*regions_of(fn, [(B, N), (B, M)])).products
    graph = traced(fn, (B, N), (B, M))
    assert why_not_batchable(graph, graph.data, {0, 1}).why == "clients may take different numbers of steps"

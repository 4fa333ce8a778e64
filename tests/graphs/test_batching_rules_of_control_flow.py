"""Calls, assertions, branches and loops give each client what it has alone, or have no rule where clients part."""

import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import check, check_padded, run_batched, traced
from rules_by_client import normal, operations_of

from fedcore.graphs.batched.batched_call import why_not_batchable
from fedcore.graphs.batched.batching_rules import control_flow
from fedcore.graphs.graphdef.form.captured_graph import captured_graph

X, INDICES = normal(8, 3, 5), np.array([0, 1, 2, 1, -1, 7, 0, 2], np.int32)


@tf.function(autograph=False)
def callee(x, y):
    return tf.tanh(x) * y, x - y


def called(x):
    a, b = callee(x, 2.0 * x)
    return a + b


def asserted(x, condition):
    tf.raw_ops.Assert(condition=condition(x), data=[x])
    return x + 1.0


def branched(x, flag):
    return tf.cond(flag, lambda: (x * 2.0, tf.reduce_sum(x)), lambda: (tf.zeros_like(x), tf.constant(3.0)))


def cased(x, index):
    return tf.switch_case(index, [lambda: x + 1.0, lambda: x * 2.0, lambda: tf.reverse(x, [0])])


def looped(x, count):
    def step(i, total, unchanged, seen):
        return i + 1, total * 0.5 + unchanged, unchanged, tf.reduce_sum(total)

    return tf.while_loop(lambda i, *_: i < count, step, (0, x, x * x, 0.0))[1:]


def test_the_rules_of_the_module_are_those_tested_here():
    graphs = {
        "call": traced(called, (3, 5)),
        "branch": traced(branched, (3, 5), (np.bool_, ())),
        "case": traced(cased, (3, 5), (np.int32, ())),
        "loop": traced(looped, (3, 5), (np.int32, ())),
        "assertion": traced(lambda x: asserted(x, lambda x: tf.reduce_all(x > 0)), (3, 5)),
    }
    found = {node.op for g in graphs.values() for node in captured_graph(g, g.data).nodes()}
    assert operations_of(control_flow) == {"StatelessCase", "if", "while", "Assert"}
    assert operations_of(control_flow) <= found


def test_called_functions_have_the_results_of_each_client():
    check(called, X, widths=(3,))


@pytest.mark.parametrize("flag", [False, True])
def test_a_branch_that_all_clients_take_is_taken(flag):
    check(branched, X, np.bool_(flag), shared=[1], widths=(3,))


def test_clients_that_may_take_different_branches_have_no_rule():
    graph = traced(branched, (3, 5), (np.bool_, ()))
    assert "different branches" in str(why_not_batchable(graph, graph.data, {0, 1}))


def test_each_client_has_its_own_case_and_the_last_one_for_other_indices():
    check(cased, X, INDICES, widths=(3,))


def test_a_case_that_no_client_takes_does_not_run():
    def fn(x, index):
        def fails():
            return x + tf.cast(7 // tf.cast(x * 0.0, tf.int32), tf.float32)

        return tf.switch_case(index, [lambda: x + 1.0, lambda: x * 2.0, fails])

    graph = traced(fn, (3, 5), (np.int32, ()))
    for indices in ([0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]):
        ((found, _),) = run_batched(graph, [X[:4], np.array(indices, np.int32)], {0, 1})
        want = [X[k] * 2 if i else X[k] + 1 for k, i in enumerate(indices)]
        np.testing.assert_allclose(found, want, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
        run_batched(graph, [X[:4], np.array([0, 1, 2, 1], np.int32)], {0, 1})


def test_a_case_that_reads_a_batch_has_no_rule():
    graph = traced(cased, (None, 5), (np.int32, ()))
    assert "reads a batch" in str(why_not_batchable(graph, graph.data, {0, 1}, {0: 0}))


@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_loops_have_the_results_of_each_client(count):
    check(looped, X, np.int32(count), shared=[1], widths=(3,), tolerance=1e-5)
    check_padded(looped, X[:3], np.int32(count), padded=[0], shared=[1], sizes=[3, 1, 2], tolerance=1e-5)


def test_loops_within_loops_and_branches_have_the_results_of_each_client():
    def fn(x, count):
        def inner(total):
            return tf.while_loop(lambda i, _: i < count, lambda i, t: (i + 1, tf.tanh(t + x)), (0, total))[1]

        def step(i, total):
            return i + 1, tf.cond(i > 0, lambda: inner(total), lambda: total - x)

        return tf.while_loop(lambda i, _: i < 3, step, (0, x))[1]

    check(fn, X, np.int32(2), shared=[1], widths=(3,), tolerance=1e-5)


def test_a_loop_variable_that_changes_its_batch_axis_has_no_rule():
    def fn(x):
        return tf.while_loop(
            lambda i, _: i < 2, lambda i, t: (i + 1, tf.transpose(t)), (0, x),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
        )[1]  # fmt: skip

    graph = traced(fn, (None, 5))
    assert "batch axis" in str(why_not_batchable(graph, graph.data, {0}, {0: 0}))


def test_an_assertion_that_is_known_to_hold_is_dropped():
    check_padded(lambda x: asserted(x, lambda x: tf.equal(tf.shape(x)[1], 5)), X[:3], padded=[0], sizes=[3, 1, 2])


def test_an_assertion_of_a_value_of_each_client_has_no_rule():
    graph = traced(lambda x: asserted(x, lambda x: tf.reduce_all(x > 0)), (3, 5))
    assert "its condition differs between clients" in str(why_not_batchable(graph, graph.data, {0}))


def test_an_assertion_that_all_clients_share_is_checked_once():
    def fn(x, y):
        tf.raw_ops.Assert(condition=tf.reduce_all(y > 0), data=[y])
        return x + y

    check(fn, X, np.ones(5, "f"), shared=[1], widths=(3,))
    graph = traced(fn, (3, 5), (5,))
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        run_batched(graph, [X, np.zeros(5, "f")], {0})

"""Loops built of TensorFlow's own loop operations."""

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.emission import tf_control_flow

counted_loop = functools.partial(tf_control_flow.counted_loop, parallel_iterations=10, kept_by_step=0)


def run_loop(step, *initial, iterations):
    """The results of a loop, and its graph."""

    @tf.function(autograph=False)
    def run(iterations, *initial):
        return counted_loop(step, iterations, initial)

    arguments = tf.constant(iterations, tf.int64), *map(tf.constant, initial)
    concrete = run.get_concrete_function(*arguments)
    graph = concrete.graph
    while not any(op.type == "LoopCond" for op in graph.get_operations()):
        (call,) = [op for op in graph.get_operations() if op.type == "PartitionedCall"]
        graph = graph._get_function(call.get_attr("f").name).graph
    return [t.numpy() for t in concrete(*arguments)], graph


def in_loop(graph) -> list[str]:
    """Types of the operations that run in every iteration."""
    inside: set = {op for op in graph.get_operations() if op.type == "Merge"}
    while True:
        more = {op for op in graph.get_operations() if any(t.op in inside for t in op.inputs)} - inside
        more -= {op for op in more if op.type == "Exit"}
        if not more:
            return sorted(
                op.type for op in inside - {op for op in inside if any(i.op.type == "Exit" for i in op.inputs)}
            )
        inside |= more


@pytest.mark.parametrize("iterations", [0, 1, 7])
def test_it_has_the_results_of_a_python_loop(iterations):
    def step(number, a, b):
        return (a * 0.5 + b, b + tf.cast(number, tf.float32)), None

    a, b = np.float32([[1, 2], [3, 4]]), np.float32([[0.5], [0.25]])
    found, _ = run_loop(step, a, b, iterations=iterations)
    for i in range(iterations):
        a, b = a * np.float32(0.5) + b, b + np.float32(i)
    for have, want in zip(found, (a, b), strict=True):
        np.testing.assert_array_equal(have, want)


def test_loop_variables_can_be_permuted():
    found, _ = run_loop(lambda number, a, b, c: ((b, a, b), None), 1, 2, 3, iterations=3)
    assert found == [2, 1, 2]


def test_loop_invariants_are_hoisted():
    def step(number, total, rate):
        return (total + tf.exp(rate) * tf.constant([2.0, 3.0]), rate), None

    found, graph = run_loop(step, np.float32([0, 0]), np.float32(1), iterations=4)
    np.testing.assert_allclose(found[0], 4 * np.exp(1) * np.array([2, 3]), rtol=1e-6)
    assert found[1] == 1
    kinds = in_loop(graph)
    assert kinds.count("AddV2") == 2  # the number of the step, and the total
    assert not {"Exp", "Mul", "Const"} & set(kinds)
    assert kinds.count("NextIteration") == 2


def test_a_step_may_hold_branches_and_loops():
    def step(number, x):
        x = tf.cond(number % 2 == 0, lambda: x + 1, lambda: x * 2)
        begin = tf.constant(0, tf.int64), x
        return tf.while_loop(lambda i, x: i < number, lambda i, x: (i + 1, x + 3), begin)[1:], None

    found, _ = run_loop(step, np.float32([1, 2]), iterations=4)
    x = np.float32([1, 2])
    for number in range(4):
        x = (x + 1 if number % 2 == 0 else x * 2) + 3 * number
    np.testing.assert_array_equal(found[0], x)


def test_a_step_may_hold_two_counted_loops():
    def step(number, x):
        (x,) = counted_loop(lambda inner, x: ((x + number,), None), number, [x])
        return counted_loop(lambda inner, x: ((x * 2,), None), tf.constant(2, tf.int64), [x]), None

    found, _ = run_loop(step, np.int64(1), iterations=3)
    x = 1
    for number in range(3):
        x = (x + number * number) * 4
    assert found == [x]


def test_a_loop_is_built_in_place_where_no_control_dependencies_are_added():
    def double(x):
        return counted_loop(lambda number, x: ((x * 2 + y,), None), tf.constant(3, tf.int64), [x])

    def run(x):
        nonlocal y
        y = x + 1
        return private_api.unordered_function(lambda: double(x), [])()  # the loop's initial value is captured

    y = tf.constant(0)
    outer = private_api.unordered_function(run, [tf.TensorSpec([], tf.int32)])
    (call,) = [op for op in outer.graph.get_operations() if op.type == "PartitionedCall"]
    inner = outer.graph._get_function(call.get_attr("f").name).graph
    assert "LoopCond" in {op.type for op in inner.get_operations()}
    assert int(outer(tf.constant(5))[0]) == 5 * 8 + 6 * 7


def test_concurrent_calls_are_independent():
    @tf.function(autograph=False)
    def run(x):
        return counted_loop(lambda number, x: ((tf.sin(x),), None), tf.constant(50, tf.int64), [x])

    values = [tf.constant(np.random.default_rng(i).normal(size=64)) for i in range(40)]
    alone = [run(v)[0].numpy() for v in values]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda v: run(v)[0].numpy(), values))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_inactive_rows_are_frozen():
    ends = tf.constant([3, 0, 2], tf.int64)

    def step(number, x, y, same):
        return (x * 2 + y, y + 1, same), ends > number

    x, y = np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([[1], [2], [3]])
    found, _ = run_loop(step, x, y, np.float32([7, 8, 9]), iterations=4)
    for row, end in enumerate([3, 0, 2]):
        for _ in range(end):
            x[row], y[row] = x[row] * 2 + y[row], y[row] + 1
    for have, want in zip(found, (x, y, [7, 8, 9]), strict=True):
        np.testing.assert_array_equal(have, want)


def test_a_loop_in_a_step_reads_what_neither_loop_changes():
    def step(number, x):
        return counted_loop(lambda inner, x: ((x * tf.exp(rate),), None), tf.constant(2, tf.int64), [x]), None

    rate = tf.constant(1.0)
    results, graph = run_loop(step, np.float32(1), iterations=2)
    np.testing.assert_allclose(results, [np.exp(4)], rtol=1e-6)
    assert not {"Exp", "Const"} & set(in_loop(graph))


def test_a_loop_ends_whose_step_returns_what_it_does_not_change():
    results, _ = run_loop(lambda number, x, y: ((tf.exp(y), y), None), np.float32(3), np.float32(1), iterations=2)
    np.testing.assert_allclose(results, [np.exp(1), 1], rtol=1e-6)


def test_a_loop_ends_though_a_loop_in_its_step_reads_nothing_of_it():
    def step(number, x):
        return counted_loop(lambda inner, y: ((y * 2,), None), tf.constant(3, tf.int64), [tf.constant(1)]), None

    results, _ = run_loop(step, 5, iterations=2)
    assert results == [8]


def test_a_row_that_is_broadcast_is_frozen_where_a_client_is_inactive():
    large = tf_control_flow.FAST_PATH_ENTRIES

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, large]), tf.TensorSpec([1, None])])
    def select(if_true, if_false):
        return tf_control_flow.select_by_client(tf.constant([True, False]), [if_true], [if_false])

    (rows,) = select(tf.ones([2, large]), tf.fill([1, large], 7.0))
    np.testing.assert_array_equal(rows, np.repeat(np.float32([[1], [7]]), large, 1))


@pytest.mark.parametrize("shape", [[2, None], [None, None], None])
def test_unknown_sizes_and_ranks_are_not_taken_for_equal(shape):
    @tf.function(autograph=False, input_signature=[tf.TensorSpec(shape), tf.TensorSpec(shape)])
    def select(if_true, if_false):
        condition = tf.constant([True, False])
        return tf_control_flow.select_by_client(condition, [if_true], [if_false]) + tf_control_flow.select_rows(
            condition, [if_true], [if_false]
        )

    for rows in select(tf.ones([2, 3]), tf.fill([2, 1], 7.0)):
        np.testing.assert_array_equal(rows, np.float32([[1, 1, 1], [7, 7, 7]]))

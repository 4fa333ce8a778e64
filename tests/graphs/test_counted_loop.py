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


def test_accumulators_of_a_dtype_are_carried_as_one_tensor():
    ends = tf.constant([3, 1], tf.int64)

    def step(number, x, loss, hits, steps, examples):
        totals = loss + x, hits + tf.constant([1.0, 0.5]), steps + 1, examples + tf.constant([20, 10])
        return (x * 0.5, *totals), ends > number

    initial = np.float32([1, 2]), np.float32([0, 0]), np.float32([3, 0]), np.int32([0, 0]), np.int32([5, 0])
    found, graph = run_loop(step, *initial, iterations=3)
    want = [[0.125, 1.0], [1.75, 2.0], [6.0, 0.5], [3, 1], [65, 10]]
    for have, wanted in zip(found, want, strict=True):
        np.testing.assert_array_equal(have, np.array(wanted, have.dtype))
    # The number of the step, x, and the totals of each type as one.
    assert in_loop(graph).count("NextIteration") == 4


def test_a_sum_that_the_step_reads_again_is_no_accumulator():
    def step(number, count, total, seen, mean, last):
        count, total, seen = count + 1, total + 2, seen + 3
        return (count, total, seen, mean + 1 / count, total), None

    zeros = [np.float32([0, 0])] * 5
    found, graph = run_loop(step, *zeros, iterations=3)
    np.testing.assert_allclose(found, np.repeat([[3], [6], [9], [1 + 1 / 2 + 1 / 3], [6]], 2, axis=1), rtol=1e-6)
    # The number of the step, the count, which is read again, the total, which is two of the state, and two as one.
    assert in_loop(graph).count("NextIteration") == 5


def test_a_sum_whose_previous_value_is_returned_too_is_no_accumulator():
    def step(number, total, other, before):
        return (total + 1, other + 2, total), None

    found, _ = run_loop(step, *[np.float32([0, 0])] * 3, iterations=3)
    np.testing.assert_array_equal(found, np.float32([[3, 3], [6, 6], [2, 2]]))


def test_a_loop_variable_that_the_step_reads_or_doubles_is_no_accumulator():
    def step(number, a, b, c):
        return (a + 1, b + a, c + c), None

    found, graph = run_loop(step, np.float32([1, 2]), np.float32([0, 0]), np.float32([1, 1]), iterations=3)
    np.testing.assert_array_equal(found, np.float32([[4, 5], [6, 9], [8, 8]]))
    assert in_loop(graph).count("NextIteration") == 4


def test_a_scalar_is_added_to_every_row_of_an_accumulator():
    def step(number, a, b):
        return (a + 1.5, b + 2.5), None

    found, _ = run_loop(step, np.float32([1, 2]), np.float32([0, 0]), iterations=2)
    np.testing.assert_array_equal(found, np.float32([[4, 5], [5, 5]]))

"""Loops built of TensorFlow's own loop operations."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.turns import turned


def looped(turn, *start, times):
    """What the loop gives, and its graph."""

    @tf.function(autograph=False)
    def run(times, *start):
        return turned(turn, times, start)

    arguments = tf.constant(times, tf.int64), *map(tf.constant, start)
    concrete = run.get_concrete_function(*arguments)
    graph = concrete.graph
    while not any(op.type == "LoopCond" for op in graph.get_operations()):
        (call,) = [op for op in graph.get_operations() if op.type == "PartitionedCall"]
        graph = graph._get_function(call.get_attr("f").name).graph
    return [t.numpy() for t in concrete(*arguments)], graph


def in_turns(graph) -> list[str]:
    """The kinds of the operations that are handled in every turn."""
    inside: set = {op for op in graph.get_operations() if op.type == "Merge"}
    while True:
        more = {op for op in graph.get_operations() if any(t.op in inside for t in op.inputs)} - inside
        more -= {op for op in more if op.type == "Exit"}
        if not more:
            return sorted(
                op.type for op in inside - {op for op in inside if any(i.op.type == "Exit" for i in op.inputs)}
            )
        inside |= more


@pytest.mark.parametrize("times", [0, 1, 7])
def test_it_is_the_loop_that_python_writes(times):
    def turn(number, a, b):
        return a * 0.5 + b, b + tf.cast(number, tf.float32)

    a, b = np.float32([[1, 2], [3, 4]]), np.float32([[0.5], [0.25]])
    found, _ = looped(turn, a, b, times=times)
    for i in range(times):
        a, b = a * np.float32(0.5) + b, b + np.float32(i)
    for have, want in zip(found, (a, b), strict=True):
        np.testing.assert_array_equal(have, want)


def test_values_change_places():
    found, _ = looped(lambda number, a, b, c: (b, a, b), 1, 2, 3, times=3)
    assert found == [2, 1, 2]


def test_what_does_not_change_is_computed_before_the_first_turn():
    def turn(number, total, rate):
        return total + tf.exp(rate) * tf.constant([2.0, 3.0]), rate

    found, graph = looped(turn, np.float32([0, 0]), np.float32(1), times=4)
    np.testing.assert_allclose(found[0], 4 * np.exp(1) * np.array([2, 3]), rtol=1e-6)
    assert found[1] == 1
    kinds = in_turns(graph)
    assert kinds.count("AddV2") == 2  # the number of the turn, and the total
    assert not {"Exp", "Mul", "Const"} & set(kinds)
    assert kinds.count("NextIteration") == 2


def test_branches_and_loops_in_a_turn():
    def turn(number, x):
        x = tf.cond(number % 2 == 0, lambda: x + 1, lambda: x * 2)
        return (tf.while_loop(lambda i, x: i < number, lambda i, x: (i + 1, x + 3), (tf.constant(0, tf.int64), x))[1],)

    found, _ = looped(turn, np.float32([1, 2]), times=4)
    x = np.float32([1, 2])
    for number in range(4):
        x = (x + 1 if number % 2 == 0 else x * 2) + 3 * number
    np.testing.assert_array_equal(found[0], x)


def test_a_loop_in_a_loop_and_one_behind_the_other():
    def turn(number, x):
        (x,) = turned(lambda inner, x: (x + number,), number, [x])
        return turned(lambda inner, x: (x * 2,), tf.constant(2, tf.int64), [x])

    found, _ = looped(turn, np.int64(1), times=3)
    x = 1
    for number in range(3):
        x = (x + number * number) * 4
    assert found == [x]


def test_calls_at_once_do_not_meet():
    @tf.function(autograph=False)
    def run(x):
        return turned(lambda number, x: (tf.sin(x),), tf.constant(50, tf.int64), [x])

    values = [tf.constant(np.random.default_rng(i).normal(size=64)) for i in range(40)]
    alone = [run(v)[0].numpy() for v in values]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda v: run(v)[0].numpy(), values))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)

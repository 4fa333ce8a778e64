"""Results that are arguments, behind calls, branches, loops and variables."""

import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.graphdef.analysis.unchanged_results import unchanged_results
from fedcore.graphs.graphdef.form.captured_graph import captured_graph

VECTOR = ("float32", [3])


def positions(fn):
    """Those of the arguments x and y that the function returns."""
    module = fc.tf_computation(fn, VECTOR, VECTOR).module
    (graph,) = module.graphs
    return unchanged_results(captured_graph(graph, module.blob(graph.digest)))


def is_large(tensor):
    return tf.reduce_sum(tensor) > 0


def branches(x, y):
    equal, different = (tf.cond(is_large(y), lambda: x, lambda other=other: other) for other in (x, y))
    return equal, different, tf.switch_case(tf.cast(y[0], tf.int32), [lambda: y, lambda: y])


def loops(x, y):
    kept, _ = tf.while_loop(lambda a, b: ~is_large(b), lambda a, b: (a, b + 1), (x, y))
    swapped, _ = tf.while_loop(lambda a, b: ~is_large(b), lambda a, b: (b, a), (x, y))
    return kept, swapped


def calls(x, y):
    inner = tf.function(lambda a: (a, a + 1))
    outer = tf.function(lambda a, b: (b, *inner(a)))
    return outer(x, y)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x, y: (y, tf.identity(x), tf.stop_gradient(x), x + y, x * 1.0), [1, 0, 0, None, None]),
        (branches, [0, None, 1]),
        (loops, [0, None]),
        (calls, [1, 0, None]),
    ],
    ids=["identities", "branches", "loops", "calls"],
)
def test_arguments_are_followed(fn, expected):
    assert positions(fn) == expected


def read_in_a_function(variable, y):
    tf.function(lambda: tf.gather(variable, [0]) + y)()


def read_in_a_branch(variable, y):
    tf.cond(is_large(y), lambda: variable + y, lambda: y)


def read_in_a_loop(variable, y):
    tf.while_loop(lambda a: ~is_large(a), lambda a: (a + variable,), (y,))


def assign(variable, y):
    variable.assign(y + 1)


def assign_a_row(variable, y):
    variable.scatter_nd_update([[0]], y[:1])


def assign_in_a_function(variable, y):
    tf.function(lambda: variable.assign_add(y))()


def assign_in_a_branch(variable, y):
    tf.cond(is_large(y), lambda: variable.assign(y), lambda: variable.read_value())


def assign_in_a_loop(variable, y):
    tf.while_loop(lambda a: ~is_large(a), lambda a: (a + variable.assign_add(y),), (y,))


def read_then_assign(variable, y):
    read_in_a_function(variable, y)
    assign(variable, y)
    read_in_a_branch(variable, y)


def value_after(use):
    """The value of a variable that starts from x, as a function of x and y; earlier values do not count."""

    def value(x, y):
        variable = tf.Variable(y * 2)
        variable.assign_add(y)
        variable.assign(x)
        use(variable, y)
        return tf.identity(variable)

    return value


@pytest.mark.parametrize("use", [read_in_a_function, read_in_a_branch, read_in_a_loop])
def test_a_variable_that_is_only_read_keeps_the_value_assigned_last(use):
    assert positions(value_after(use)) == [0]


@pytest.mark.parametrize(
    "use", [assign, assign_a_row, assign_in_a_function, assign_in_a_branch, assign_in_a_loop, read_then_assign]
)
def test_a_variable_that_is_assigned_holds_no_argument(use):
    assert positions(value_after(use)) == [None]

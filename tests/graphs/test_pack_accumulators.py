"""The stage pass `pack-accumulators`: which loop variables are packed, and that results keep their bits."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import call, scan
from fedcore.graphs.dataflow.graph import Node, Region, new_region, ordered_behind
from fedcore.graphs.dataflow.passes.pack_accumulators import pack_accumulators
from fedcore.graphs.emission.region_function import region_function

COUNT = 3


def run(region: Region, *arrays: np.ndarray) -> list[np.ndarray]:
    return [t.numpy() for t in region_function(region, name="region")(*map(tf.constant, arrays))]


def scans_of(region: Region) -> list[Node]:
    """The scans of a region and of the regions in it."""
    inner = [scan for node in region.nodes for r in node.regions for scan in scans_of(r)]
    return [node for node in region.nodes if node.op == "scan"] + inner


def carried(step, *initial, kept_by_step=0) -> list[list[int]]:
    """The shapes of the loop variables of each scan, after the pass; tests that results keep their bits.

    Args:
        step: as `scan` takes it.
        initial: arrays.
    """
    initial = [np.asarray(v, np.float32) if isinstance(v, list) else v for v in initial]

    def body(*variables):
        return scan(step, ops.constant(COUNT, tf.int64), variables, kept_by_step=kept_by_step)

    region = new_region([(tf.as_dtype(v.dtype), v.shape) for v in initial], body)
    after = pack_accumulators(region)
    for have, want in zip(run(after, *initial), run(region, *initial), strict=True):
        np.testing.assert_array_equal(have, want)
    assert pack_accumulators(after) is after
    return [[v.shape.as_list() for v in node.outputs] for node in scans_of(after)]


def test_accumulators_of_a_dtype_are_one_loop_variable_where_rows_end():
    def step(number, x, loss, hits, steps, examples):
        totals = loss + x, hits + ops.value(np.float32([1.0, 0.5])), steps + 1, ops.value(np.int32([20, 10])) + examples
        return [x * 0.5, *totals], number < np.int64([3, 1])

    initial = [1, 2], [0, 0], [3, 0], np.int32([0, 0]), np.int32([5, 0])
    assert carried(step, *initial) == [[[2, 2], [2, 2], [2]]]


def test_accumulators_of_other_lengths_are_apart():
    def step(number, a, b, c):
        return [a + 1.0, b + 2.0, c + 3.0], None

    assert carried(step, [0, 0], [0, 0, 0], [1, 1]) == [[[2, 2], [3]]]


def test_matrices_are_not_packed():
    assert carried(lambda number, a, b: ([a + 1.0, b + 2.0], None), [[0, 0]], [[1, 1]]) == [[[1, 2], [1, 2]]]


@pytest.mark.parametrize(
    ("step", "variables"),
    [
        (lambda number, a, b, c: ([a + 1.0, b + a, c + 3.0], None), 2),  # a is read
        (lambda number, a, b, c: ([a + a, b + 2.0, c + 3.0], None), 2),
        (lambda number, a, b, c: ([a + 1.0, b + 2.0, a], None), 3),  # the value before the step is returned
        (lambda number, a, b, c: ([(total := a + 1.0), b + 2.0, total], None), 3),  # the sum is two variables
        (lambda number, a, b, c: ([a + 1.0, b + 2.0, c + 3.0], a > 2.0), 2),  # a decides who is active
        (lambda number, a, b, c: ([a - 1.0, b + 2.0, c + 3.0], None), 2),
    ],
)
def test_a_variable_that_is_used_otherwise_is_no_accumulator(step, variables):
    (shapes,) = carried(step, [1, 2], [0, 0], [4, 5])
    assert len(shapes) == variables


def test_a_variable_that_a_loop_in_the_step_reads_is_no_accumulator():
    def step(number, a, b, x):
        (x,) = scan(lambda i, x: ([x * a], None), ops.constant(2, tf.int64), [x])
        return [a + 1.0, b + 2.0, x], None

    assert carried(step, [1, 2], [0, 0], [4, 5])[0] == [[2], [2], [2]]


def test_a_sum_with_a_control_dependency_is_no_accumulator():
    def step(number, a, b):
        with ordered_behind(number):
            total = a + 1.0
        return [total, b + 2.0], None

    vector = (tf.float32, [2])
    region = new_region([vector, vector], lambda *initial: scan(step, ops.constant(COUNT, tf.int64), initial))
    assert pack_accumulators(region) is region


def test_variables_that_the_step_freezes_itself_are_single():
    def step(number, a, b, c, d):
        return [a + 1.0, b + 2.0, c + 3.0, d + 4.0], number < np.int64([3, 1])

    assert carried(step, [1, 2], [0, 0], [4, 5], [6, 7], kept_by_step=2) == [[[2, 2], [2], [2]]]


def test_loops_in_loops_and_in_functions_are_packed():
    def step(number, a, b, c, d):
        def inner(c, d):
            return scan(lambda i, c, d: ([c + 1.0, a_sum + d], None), ops.constant(2, tf.int64), [c, d])

        a_sum = c * 2.0
        return [a + c, b + d, *call(inner, [c, d], kind="unordered")], None

    assert carried(step, [1, 2], [0, 0], [4, 5], [6, 7]) == [[[2, 2], [2], [2]], [[2, 2]]]

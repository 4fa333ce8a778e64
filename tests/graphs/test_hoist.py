"""The stage pass `hoist`: what moves out of loops, what stays, and that results keep their bits."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import call, computed_if, cond, function_of_number, scan, while_loop
from fedcore.graphs.dataflow.graph import Region, new_region, ordered_behind
from fedcore.graphs.dataflow.passes.hoist import hoist
from fedcore.graphs.emission.region_function import region_function

VECTOR = (tf.float32, [4])
COUNT = (tf.int64, [])


def run(region: Region, *arguments) -> list[np.ndarray]:
    return [t.numpy() for t in region_function(region, name="region")(*map(tf.constant, arguments))]


def in_regions(region: Region) -> list[str]:
    """Operations of the regions that nodes run, without constants."""
    nodes = [node for outer in region.nodes for inner in outer.regions for node in inner.nodes]
    inner = [op for outer in region.nodes for r in outer.regions for op in in_regions(r)]
    return sorted([*(node.op for node in nodes if node.op != "Const"), *inner])


def hoisted(body, *types) -> Region:
    """The region after the pass, whose results have the bits of those before it."""
    region = new_region(types, body)
    after = hoist(region)
    rng = np.random.default_rng(0)
    arguments = [np.int64(3) if dtype == tf.int64 else rng.normal(size=shape).astype("f") for dtype, shape in types]
    for have, want in zip(run(after, *arguments), run(region, *arguments), strict=True):
        np.testing.assert_array_equal(have, want)
    assert hoist(after) is after
    return after


def test_a_node_moves_out_of_a_scan_that_does_not_change_its_operands():
    def body(count, total, rate):
        return scan(lambda i, t: ([t + ops.log(rate * rate) * 2.0], None), count, [total])

    after = hoisted(body, COUNT, VECTOR, VECTOR)
    assert in_regions(after) == ["AddV2"]
    assert [n.op for n in after.nodes if n.op != "Const"] == ["Mul", "Log", "Mul", "scan"]


def test_a_scan_does_not_carry_what_its_body_returns_unchanged():
    def body(count, total, rate):
        return scan(lambda i, t, r: ([t + r * r, r], None), count, [total, rate])

    after = hoisted(body, COUNT, VECTOR, VECTOR)
    assert len(after.nodes[-1].inputs) == 2
    assert after.results[1] is after.arguments[2]


def test_the_inactive_rows_of_a_scan_stay_where_another_variable_is_gone():
    def body(count, total, rate):
        def step(i, t, r, u):
            return [t + r, r, u * 2.0], ops.cast(i, tf.float32) < ops.broadcast_to(r * 0.0 + 2.0, [4])

        return scan(step, count, [total, rate, total], kept_by_step=1)

    after = hoisted(body, COUNT, VECTOR, VECTOR)
    assert after.nodes[-1]["kept_by_step"] == 1
    assert len(after.nodes[-1].outputs) == 2


def test_a_node_moves_out_of_two_loops():
    def body(count, total, rate):
        def step(i, t):
            return scan(lambda j, u: ([u + rate * rate], None), i, [t]), None

        return scan(step, count, [total])

    assert in_regions(hoisted(body, COUNT, VECTOR, VECTOR)) == ["AddV2", "scan"]


def test_a_node_moves_out_of_a_function_that_a_loop_calls():
    def body(count, total, rate):
        of_number = function_of_number(lambda i: [ops.log(rate * rate) * ops.cast(i, tf.float32)])
        return scan(lambda i, t: ([t + of_number(i)[0]], None), count, [total])

    assert in_regions(hoisted(body, COUNT, VECTOR, VECTOR)) == ["AddV2", "Cast", "Mul", "call"]


@pytest.mark.parametrize("kind", ["fused", "xla", "function"])
def test_nodes_of_a_function_that_is_compiled_as_a_whole_stay(kind):
    def body(count, total, rate):
        return scan(lambda i, t: ([t + call(lambda: [rate * rate], [], kind=kind)[0]], None), count, [total])

    region = new_region([COUNT, VECTOR, VECTOR], body)
    assert hoist(region) is region


def test_a_function_that_no_loop_calls_keeps_its_nodes():
    region = new_region([VECTOR, VECTOR], lambda x, y: call(lambda a: [a + y * y], [x], kind="unordered"))
    assert hoist(region) is region


def test_a_branch_keeps_its_nodes():
    def body(count, total, rate):
        def step(i, t):
            return cond(i < 1, lambda: [t + rate * rate], lambda: [t]), None

        return scan(step, count, [total])

    region = new_region([COUNT, VECTOR, VECTOR], body)
    assert "Mul" in in_regions(hoist(region))


def test_what_a_conditional_computes_of_outer_values_only_moves():
    def body(count, total, rate):
        def step(i, t):
            return computed_if(i < 1, lambda x: [x + rate * rate], [t], [t]), None

        return scan(step, count, [total])

    assert "Mul" not in in_regions(hoisted(body, COUNT, VECTOR, VECTOR))


def test_only_what_cannot_fail_moves_out_of_a_while():
    def body(count, total, rate):
        def step(i, t):
            return [i + 1, t + rate * rate + ops.gather(rate, count)]

        start = [ops.constant(0, tf.int64), total]
        return while_loop(lambda i, t: i < count, step, start, [tf.TensorShape([]), tf.TensorShape([4])])[1:]

    assert in_regions(hoisted(body, COUNT, VECTOR, VECTOR)) == ["AddV2", "AddV2", "AddV2", "GatherV2", "Less"]


def test_a_node_with_a_control_dependency_stays():
    def body(count, total, rate):
        def step(i, t):
            with ordered_behind(t):
                square = rate * rate
            return [t + square], None

        return scan(step, count, [total])

    region = new_region([COUNT, VECTOR, VECTOR], body)
    assert hoist(region) is region


def test_a_node_with_effects_stays():
    def body(count, total, rate):
        def step(i, t):
            return [t + ops.operation("RandomUniform", ops.constant([4]), dtype=tf.float32)], None

        return scan(step, count, [total])

    assert in_regions(hoist(new_region([COUNT, VECTOR, VECTOR], body))) == ["AddV2", "RandomUniform"]


def test_constants_of_a_function_stay_in_it():
    def body(count, total):
        of_number = function_of_number(lambda i: [ops.zeros([4]) + ops.cast(i, tf.float32)])
        return scan(lambda i, t: ([t + of_number(i)[0]], None), count, [total])

    assert "Fill" in in_regions(hoisted(body, COUNT, VECTOR))


def test_a_value_that_is_broadcast_stays_in_a_function():
    def body(count, total, rate):
        of_number = function_of_number(lambda i: [ops.broadcast_to(rate * rate, [2, 4]) + ops.cast(i, tf.float32)])
        return scan(lambda i, t: ([t + of_number(i)[0][0]], None), count, [total])

    after = in_regions(hoisted(body, COUNT, VECTOR, VECTOR))
    assert "BroadcastTo" in after
    assert "Mul" not in after


def test_a_region_without_loops_is_returned():
    region = new_region([VECTOR], lambda x: [x * 2.0])
    assert hoist(region) is region

"""A function of the vocabulary computes in a region what it computes in TensorFlow, and says the same shapes."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import call, computed_if, cond, map_rows, scan, while_loop
from fedcore.graphs.dataflow.graph import new_region, ordered_behind
from fedcore.graphs.dataflow.selection import select_by_client, select_rows
from fedcore.graphs.emission.region_function import emit_region

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7 - 1
N = np.array([[2, 0, 1], [1, 1, 3]], np.int64)
FLAGS = np.array([True, False])

PROGRAMS = {
    "operators": lambda x, n, f: [x + 1, 2 - x, x * x, x / 3, -x, n // 2, n % 2, n / 2, ~f, f & f, f | ~f],
    "operators of bits": lambda x, n, f: [~n, n ^ 3, n & 3, n | 4, f ^ f[::-1], f ^ True],
    "comparisons": lambda x, n, f: [x < 0, x <= 0, x > 0.5, n >= 1, ops.equal(n, 1)],
    "subscripts": lambda x, n, f: [x[0], x[..., 1], x[:, None, 1:], x[:, ::2], x[1:, :2, 3], n[0, n[0, 2] :]],
    "shapes": lambda x, n, f: [
        ops.shape(x),
        ops.size(x),
        ops.reshape(x, [2, -1]),
        ops.reshape(x, (ops.shape(n)[0], 12)),
    ],
    "axes": lambda x, n, f: [
        ops.expand_dims(x, 1),
        ops.squeeze(x[:1], 0),
        ops.transpose(x, [1, 0, 2]),
        ops.transpose(n),
    ],
    "matrices": lambda x, n, f: [ops.matrix_transpose(x), ops.operation("BatchMatMulV2", x, x, adj_y=True)],
    "fills": lambda x, n, f: [ops.zeros([2, 3]), ops.ones([2], tf.int32), ops.fill([2, 2], 3.0), ops.zeros_like(x)],
    "broadcasts": lambda x, n, f: [ops.broadcast_to(x[0], [5, 3, 4]), ops.broadcast_dynamic_shape([2, 1], [1, 3])],
    "gathers": lambda x, n, f: [
        ops.gather(x, [0, 1, 1]),
        ops.gather(x, n % 3, axis=1),
        ops.gather(x, n[:, :1], batch_dims=1),
    ],
    "pairs": lambda x, n, f: [
        ops.gather_nd(x, [[0, 1], [1, 2]]),
        ops.slice_(x, [0, 1, 0], [2, 2, -1]),
        ops.reverse(x, [1]),
    ],
    "pads": lambda x, n, f: [ops.pad(x, [[0, 0], [1, 2], [0, 0]]), ops.pad(n, [[0, 1], [0, 0]], constant_values=-1)],
    "dynamic pads": lambda x, n, f: [ops.pad(x, [[0, 0], [0, ops.shape(x)[1]], [0, 0]])],
    "parts": lambda x, n, f: [*ops.unstack(x), *ops.split(x, 2, 2), *ops.split(x, [1, 3], -1), *ops.unstack(n, axis=1)],
    "joins": lambda x, n, f: [
        ops.stack([x, x], 1),
        ops.concat([x, x[:, :1]], 1),
        ops.concat([x], 0),
        ops.tile(n, [1, 2]),
    ],
    "one hot": lambda x, n, f: [ops.one_hot(n, 4), ops.one_hot(n, 3, 2.0, -1.0, 1, tf.float32)],
    "ranges": lambda x, n, f: [ops.range_(4), ops.range_(1, 4), ops.range_(n[0, 0] + 2), ops.range_(3, dtype=tf.int64)],
    "choices": lambda x, n, f: [ops.where(x > 0, x, 0.0), ops.where(f), ops.cast(n, tf.float32), ops.cast(x, tf.int32)],
    "numbers": lambda x, n, f: [
        ops.minimum(x, 0.0),
        ops.maximum(n, 1),
        ops.divide_no_nan(x, x - x[0, 0, 0]),
        ops.add_n([x, x]),
    ],
    "functions": lambda x, n, f: [ops.log(x + 9), ops.is_finite(x), ops.l2_loss(x), ops.softmax(x), ops.divide(x, 2.0)],
    "sums": lambda x, n, f: [
        ops.reduce_sum(x),
        ops.reduce_sum(x, 1),
        ops.reduce_mean(x, [0, 2], keepdims=True),
        ops.reduce_prod(n),
    ],
    "extremes": lambda x, n, f: [
        ops.reduce_max(x, -1),
        ops.reduce_min(n),
        ops.reduce_all(f),
        ops.reduce_any(f),
        ops.argmax(x, 1),
    ],
    "norms": lambda x, n, f: [
        ops.reduce_euclidean_norm(x, 2),
        ops.argmin(x, 2, tf.int32),
        ops.cumsum(n, 1, exclusive=True),
    ],
    "segments": lambda x, n, f: [ops.unsorted_segment_sum(x, [1, 0], 3), ops.einsum("abc,abd->acd", x, x)],
    "mapped rows": lambda x, n, f: map_rows(
        lambda a, b: [a * 2, b[0]], [x, n], [tf.TensorSpec([3, 4]), tf.TensorSpec([], tf.int64)]
    ),
}

PAIRS = {
    "selections": (
        lambda x, n, f: [*select_rows(f, [x, n], [x * 2, n * 0]), *select_by_client(f, [x, n], [ops.zeros([]), n])],
        lambda x, n, f: [
            tf.where(f[:, None, None], x, x * 2),
            tf.where(f[:, None], n, 0),
            tf.where(f[:, None, None], x, 0.0),
            n,
        ],
    ),
    "large selections": (
        lambda x, n, f: select_by_client(f, [ops.tile(x, [1, 99, 9])], [ops.fill([], 1.0)]),
        lambda x, n, f: [tf.where(f[:, None, None], tf.tile(x, [1, 99, 9]), 1.0)],
    ),
    "a scan": (
        lambda x, n, f: scan(
            lambda i, t, m: ([t + x[0] * 2, m + ops.cast(i, tf.float32)], None), n[0, 0] + 1, [x[1], ops.constant(0.5)]
        ),
        lambda x, n, f: [x[1] + x[0] * 2 + x[0] * 2 + x[0] * 2, tf.constant(3.5)],
    ),
    "a scan of active rows": (
        lambda x, n, f: scan(lambda i, t, m: ([t * 2, m + n], f), ops.constant(3, tf.int64), [x, n]),
        lambda x, n, f: [tf.where(f[:, None, None], x * 8, x), tf.where(f[:, None], n * 4, n)],
    ),
    "a branch": (
        lambda x, n, f: cond(f[0], lambda: [x + 1, n], lambda: [x, n * 0]) + cond(f[1], lambda: [x], lambda: [-x]),
        lambda x, n, f: [x + 1, n, -x],
    ),
    "a loop": (
        lambda x, n, f: while_loop(
            lambda i, t: i < n[0, 2] + 3,
            lambda i, t: [i + 1, t * x[0]],
            [n[0, 1], x[0]],
            [tf.TensorShape([]), x.shape[1:]],
        ),
        lambda x, n, f: [n[0, 2] + 3, x[0] * x[0] * x[0] * x[0] * x[0]],
    ),
    "a computation": (
        lambda x, n, f: [t for i in (0, 1) for t in computed_if(f[i], lambda y: [y * 3], [x], [x])],
        lambda x, n, f: [x * 3, x],
    ),
    "calls": (
        lambda x, n, f: [
            t for kind in ("function", "fused", "unordered") for t in call(lambda y: [y * x, n], [x + 1], kind=kind)
        ],
        lambda x, n, f: [(x + 1) * x, n] * 3,
    ),
}
"""Programs of regions only, each with its twin of TensorFlow's operations for the arguments of the tests."""


@pytest.mark.parametrize("operator", [lambda x: ~x, lambda x: x ^ x, lambda x: x & x, lambda x: x | 1.0])
def test_a_logical_operator_refuses_floats(operator):
    with pytest.raises(TypeError, match=r"^[~^&|] takes bools or integers, not float32$"):
        new_region([(tf.float32, [2])], lambda x: [operator(x)])


def inside(program, twin, *shapes):
    """The region of a program, TensorFlow's function of its twin, and that of the region."""
    specs = [tf.TensorSpec(shape, a.dtype) for shape, a in zip(shapes, (X, N, FLAGS), strict=True)]
    plain = tf.function(twin, input_signature=specs, autograph=False).get_concrete_function()
    region = new_region([(s.dtype, s.shape) for s in specs], lambda *values: list(map(ops.value, program(*values))))
    emitted = tf.function(
        lambda *ts: emit_region(region, ts), input_signature=specs, autograph=False
    ).get_concrete_function()
    return region, plain, emitted


@pytest.mark.parametrize("sizes", [0, 1], ids=["static", "unknown"])
@pytest.mark.parametrize("name", [*PROGRAMS, *PAIRS])
def test_a_region_computes_what_tensorflow_does(name, sizes):
    shapes = [(2, 3, 4), (2, 3), (2,)] if not sizes else [(2, None, 4), (None, 3), (2,)]
    program, twin = PAIRS[name] if name in PAIRS else (PROGRAMS[name], PROGRAMS[name])
    region, plain, emitted = inside(program, twin, *shapes)
    arguments = [tf.constant(a) for a in (X, N, FLAGS)]
    want, have = plain(*arguments), emitted(*arguments)
    for result, expected, found in zip(region.results, want, have, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype == result.dtype
        assert result.shape.is_compatible_with(expected.shape)
    if not sizes:
        assert [v.shape.as_list() for v in region.results] == [t.shape.as_list() for t in plain.outputs]
    for result, tensor in zip(region.results, plain.outputs, strict=True):
        assert tensor.shape.rank is None or result.shape.rank == tensor.shape.rank


@pytest.mark.parametrize("shape", [[2, None], [None, None], None])
def test_selections_do_not_take_unknown_sizes_and_ranks_for_equal(shape):
    specs = [tf.TensorSpec(shape), tf.TensorSpec(shape), tf.TensorSpec([2], tf.bool)]
    region = new_region(
        [(s.dtype, s.shape) for s in specs], lambda a, b, f: [*select_rows(f, [a], [b]), *select_by_client(f, [a], [b])]
    )
    emitted = tf.function(lambda *ts: emit_region(region, ts), input_signature=specs, autograph=False)
    for rows in emitted(tf.ones([2, 3]), tf.fill([2, 1], 7.0), tf.constant([True, False])):
        np.testing.assert_array_equal(rows, np.float32([[1, 1, 1], [7, 7, 7]]))


def test_sizes_of_axes_that_are_padded_by_known_numbers_are_known():
    def program(x, n):
        return [ops.pad(x, [[0, 0], [0, n], [1, 2]]), ops.pad(x, [[n, 0], [0, 0], [0, 0]], constant_values=1.0)]

    region = new_region([(tf.float32, [2, None, 4]), (tf.int32, [])], program)
    assert [v.shape.as_list() for v in region.results] == [[2, None, 7], [None, None, 4]]


def test_a_value_that_a_branch_returns_is_read():
    def program(x, f):
        cond(f, lambda: [x], lambda: [x * 2.0])
        assert [v for node in x.block.nodes for v in node.reads if v is x] == [x, x]
        return []

    new_region([(tf.float32, []), (tf.bool, [])], program)


def test_equal_constants_are_one_node():
    region = new_region([], lambda: [ops.constant(1.0) + ops.constant(1.0), ops.constant(-0.0), ops.constant(0.0)])
    assert [n.op for n in region.nodes] == ["Const", "AddV2", "Const", "Const"]


def test_operands_that_do_not_fit_are_told_by_tensorflow():
    with pytest.raises(ValueError, match="Dimensions must be equal, but are 3 and 2"):
        new_region([(tf.float32, [3]), (tf.float32, [2])], lambda a, b: [a + b])
    with pytest.raises(ValueError, match="AddV2 takes y of float32, but is given int32"):
        new_region([(tf.float32, []), (tf.int32, [])], lambda a, b: [a + b])


def test_a_value_has_no_truth_value():
    with pytest.raises(TypeError, match="no truth value"):
        new_region([(tf.bool, [])], lambda a: [a] if a else [])


@pytest.mark.parametrize("number", [0, 1.0, True, np.float32(2), np.zeros(3)])
def test_a_value_is_not_compared_with_a_number(number):
    """It would be unequal to each, and a condition never hold."""
    with pytest.raises(TypeError, match="use `equal`"):
        new_region([(tf.float32, [])], lambda a: [a] if a == number else [])
    with pytest.raises(TypeError, match="use `equal`"):
        new_region([(tf.float32, [])], lambda a: [a] if a != number else [])


def test_values_are_equal_if_they_are_one():
    def program(a, b):
        assert (a == a, a == b, a != b, a in [b, a], b is None) == (True, False, True, True, False)
        return []

    new_region([(tf.float32, []), (tf.float32, [])], program)


def test_nodes_behind_a_value_run_after_it():
    def program(x):
        with ordered_behind(x + 1):
            return [ops.identity(x)]

    region = new_region([(tf.float32, [])], program)
    assert [n.op for n in region.nodes[-1].after[0].node.outputs[0].node.inputs[0].block.nodes][-1] == "Identity"
    function = tf.function(
        lambda x: emit_region(region, [x]), input_signature=[tf.TensorSpec([])]
    ).get_concrete_function()
    (identity,) = [op for op in function.graph.get_operations() if op.type == "Identity" and op.control_inputs]
    assert identity.control_inputs[0].type == "AddV2"


def test_values_of_the_region_around_are_read():
    def program(x):
        outside = x * 2
        return scan(lambda i, t: ([t + outside], None), ops.constant(3, tf.int64), [x])

    region = new_region([(tf.float32, [2, 3, 4])], program)
    (node,) = [n for n in region.nodes if n.op == "scan"]
    assert node.regions[0].nodes[0].inputs[1].node.op == "Mul"

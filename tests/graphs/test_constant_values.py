"""Values that are known while a graph is built are those that TensorFlow computes."""

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.constant_values import MOST_ENTRIES, known_sizes, static_value, strided_slice
from fedcore.graphs.dataflow.graph import new_region

N = np.int32([[4, -2, 7], [1, 0, 3]])

STATIC = {
    "passed through": lambda n: ops.identity(n),
    "fills": lambda n: ops.fill([2, 3], 5.0),
    "broadcasts": lambda n: ops.broadcast_to(n[0], [2, 3]),
    "slices": lambda n: n[1:, ::2],
    "entries": lambda n: n[0, -1],
    "parts": lambda n: ops.slice_(n, [0, 1], [-1, 2]),
    "stacks": lambda n: ops.stack([n, n], 1),
    "joins": lambda n: ops.concat([n, n], 1),
    "casts": lambda n: ops.cast(n, tf.int64),
    "reshapes": lambda n: ops.reshape(n, [3, -1]),
    "axes": lambda n: ops.expand_dims(n, 1),
    "ranges": lambda n: ops.range_(n[1, 0], n[0, 2], 2),
    "sums": lambda n: n + n[0] - 1,
    "products": lambda n: n * 3,
    "quotients": lambda n: ops.operation("RealDiv", ops.cast(n, tf.float32), 3.0),
    "quotients of integers": lambda n: ops.operation("Div", n, -3),
    "quotients by zero": lambda n: ops.operation("RealDiv", ops.cast(n, tf.float32), 0.0),
    "steps": lambda n: n[0, :: n[1, 2]],
    "bounds": lambda n: ops.maximum(ops.minimum(n, 3), -1),
    "magnitudes": lambda n: ops.operation("Abs", n),
    "reductions": lambda n: ops.concat(
        [ops.reduce_sum(n, 1), ops.stack([ops.reduce_max(n), ops.reduce_prod(n[0])])], 0
    ),
    "comparisons": lambda n: ops.reduce_all(ops.equal(n, n)),
    "choices": lambda n: ops.where(n <= 1, n, n + 9),
}


@pytest.mark.parametrize("name", STATIC)
def test_a_static_value_is_that_of_tensorflow(name):
    arrays: list[np.ndarray | None] = []

    def body():
        value = STATIC[name](ops.constant(N))
        arrays.append(static_value(value))
        return [value]

    (result,) = run_region(body)
    (array,) = arrays
    assert array is not None
    np.testing.assert_array_equal(array, result, strict=True)


def in_region(body, *shapes):
    """What a function of int32 values returns while a region is built."""
    results = []
    new_region([(tf.int32, shape) for shape in shapes], lambda *values: results.append(body(*values)) or [])
    return results[0]


def test_a_value_that_an_argument_decides_is_not_static():
    assert in_region(lambda x: static_value(x * 2 + 1), [3]) is None


def test_an_integer_divided_by_zero_is_not_static():
    assert in_region(lambda: static_value(ops.operation("Div", ops.constant(3), 0))) is None


def test_integers_that_need_64_bits_have_them_as_in_tensorflow():
    numbers = [1 << 40, 1]
    value = in_region(lambda: ops.constant(numbers))
    np.testing.assert_array_equal(static_value(value), tf.constant(numbers), strict=True)


def test_the_shape_of_an_argument_is_static_if_its_sizes_are():
    assert in_region(lambda x: static_value(ops.operation("Size", x)), [3, 5]) == 15
    assert in_region(lambda x: static_value(ops.operation("Size", x)), [3, None]) is None
    assert in_region(lambda x: static_value(ops.operation("Rank", x)), [3, None]) == 2


@pytest.mark.parametrize("reduction", ["Sum", "Prod", "Max", "All"])
def test_a_reduction_keeps_axes_where_it_is_told_to(reduction):
    array = np.array([[True, False], [True, True]]) if reduction == "All" else np.int32([[1, 2], [3, 4]])
    value = in_region(lambda: ops.operation(reduction, ops.constant(array), np.int32([1]), keep_dims=True))
    assert static_value(value).shape == tuple(value.shape) == (2, 1)


def test_a_large_value_is_computed_by_the_graph_only():
    assert in_region(lambda: static_value(ops.range_(MOST_ENTRIES))) is not None
    assert in_region(lambda: static_value(ops.range_(MOST_ENTRIES + 1))) is None


def test_sizes_are_known_in_part():
    def sizes(x, n):
        shape = ops.shape(x)
        return known_sizes(ops.concat([ops.cast(ops.stack([shape[1], n, shape[0], -1]), tf.int32), [7]], 0))

    assert in_region(sizes, [None, 5], []) == [5, None, None, None, 7]


def test_sizes_of_a_vector_of_unknown_length_are_not_known():
    assert in_region(known_sizes, [None]) is None
    assert in_region(known_sizes, [2]) == [None, None]


@pytest.mark.parametrize("mask", ["ellipsis_mask", "new_axis_mask"])
def test_slices_with_other_masks_have_no_rule(mask):
    bounds = np.int32([0]), np.int32([1]), np.int32([1])
    assert strided_slice([N, *bounds], {}).shape == (1, 3)
    assert strided_slice([N, *bounds], {mask: 1}) is None


def test_an_entry_outside_of_an_array_is_left_to_tensorflow():
    assert strided_slice([N, np.int32([2]), np.int32([3]), np.int32([1])], {"shrink_axis_mask": 1}) is None

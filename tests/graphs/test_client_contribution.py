"""Contributions of clients, stored group by group, are those of their lanes: whole, in factors, and as rows of data."""

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

from fedcore.graphs.batched.client_contribution import (
    LARGE_LEAF_ENTRIES,
    ClientContribution,
    FactoredContribution,
    Lanes,
    contributions_by_group,
    joined_product,
    packed_leaves,
    reserve_list,
    write_results,
)
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import function_of_number

WIDTH = 4


def normal(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("f")


def number(n: int):
    return ops.constant(n, tf.int64)


# --- packed leaves ---


SPECS = [
    tf.TensorSpec([5]),
    tf.TensorSpec([]),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([7, 5]),
    tf.TensorSpec([LARGE_LEAF_ENTRIES]),
    tf.TensorSpec([]),
    tf.TensorSpec([0]),
    tf.TensorSpec([2], tf.int64),
]


def test_small_leaves_of_a_dtype_are_one_tensor_and_others_stay_alone():
    packed = packed_leaves(SPECS)
    assert sorted(i for p in packed for i in p.positions) == [*range(len(SPECS))]
    assert {p.positions for p in packed} == {(1, 5, 0, 6), (2, 7), (3,), (4,)}
    for p in packed:
        assert p.spec.shape.num_elements() == sum(SPECS[i].shape.num_elements() for i in p.positions)


@pytest.mark.parametrize("specs", [SPECS, SPECS[:1], SPECS[:2], SPECS[1:2] + SPECS[5:6], SPECS[:1] + SPECS[6:7]])
def test_packed_leaves_are_unpacked_to_what_they_were(specs):
    leaves = [(100 * normal(3, *s.shape, seed=i)).astype(s.dtype.as_numpy_dtype) for i, s in enumerate(specs)]

    def body(*tensors):
        found = {}
        for p in packed_leaves(specs):
            tensor = p.pack(tensors)
            assert tensor.shape == [3, *p.spec.shape]
            found.update(p.unpack(tensor))
        return [found[i] for i in range(len(specs))]

    for have, want in zip(run_region(body, *leaves), leaves, strict=True):
        np.testing.assert_array_equal(have, want)


# --- lanes ---


def test_lanes_of_absent_clients_and_of_other_groups_are_behind_the_last():
    def body(lane_of):
        return [Lanes(WIDTH, number(4), number(8)).positions(lane_of)]

    (positions,) = run_region(body, np.array([[-1, 0, 3], [4, 11, 12]]))
    assert positions.tolist() == [[8, 8, 8], [0, 7, 8]]


def test_numbers_of_lanes_end_with_zero():
    (found,) = run_region(lambda x: [Lanes(WIDTH, number(2), number(3)).select(x)], np.arange(10, 20))
    assert found.tolist() == [12, 13, 14, 0]
    assert Lanes(WIDTH, None, None).select(None) is None


# --- contributions ---


def whole(leaves, groups: int, read, *, parallel: int = 2) -> list[np.ndarray]:
    """`read` of the contributions of groups whose clients have the leaves [lanes, …]."""

    def body(*tensors):
        specs = [tf.TensorSpec(t.shape[1:], t.dtype) for t in tensors]

        def of_group(first):
            return [Window(first, WIDTH).of(t) for t in tensors]

        return read(contributions_by_group([(of_group, number(groups))], WIDTH, specs, parallel=parallel))

    return run_region(body, *leaves)


@pytest.mark.parametrize("parallel", [1, 3])
def test_all_lanes_are_stored_and_zeros_behind_them(parallel):
    leaves = [normal(12, 5), normal(12), normal(12, 2, 3)]

    def read(contributions):
        assert all(isinstance(c, ClientContribution) for c in contributions)
        found = {i: t for c in contributions for i, t in c.leaves.unpack(c.concatenate()).items()}
        first = {i: t for c in contributions for i, t in c.leaves.unpack(c.value_of_first_lane()).items()}
        return [found[i] for i in range(3)] + [first[i] for i in range(3)]

    found = whole(leaves, 3, read, parallel=parallel)
    for have, first, want in zip(found[:3], found[3:], leaves, strict=True):
        np.testing.assert_array_equal(have, np.concatenate([want, np.zeros_like(want[:1])]))
        np.testing.assert_array_equal(first, want[:1])


def test_slices_are_the_values_of_single_lanes():
    leaf, lanes = normal(8, 64, LARGE_LEAF_ENTRIES // 64), [7, 0, 8, 3]

    def read(contributions):
        (c,) = contributions
        assert c.is_large
        slices = c.slices(ops.constant(np.array(lanes)))
        return [ops.concat(slices, 0), c.keep_alive_until(ops.add_n(slices))[0]]

    found, total = whole([leaf], 2, read)
    want = np.concatenate([leaf, np.zeros_like(leaf[:1])])[lanes]
    np.testing.assert_array_equal(found, want)
    np.testing.assert_allclose(total, want.sum(0), rtol=1e-5, atol=1e-5)


# --- factors ---

LANE_OF = np.array([[3, 0, -1], [5, 4, 1], [-1, -1, -1], [7, -1, 2]])


def products(left, right, lane_of=LANE_OF) -> np.ndarray:
    """[blocks, n, m]: sums of the products of present clients."""
    of_lanes = np.einsum("krn,krm->knm", left.astype("d"), right.astype("d"))
    return np.stack([sum((of_lanes[i] for i in lanes if i >= 0), np.zeros_like(of_lanes[0])) for lanes in lane_of])


def factored(left, right, read, *, rows=None, **options) -> list[np.ndarray]:
    def body(x, y):
        def of_group(first):
            return [(Window(first, WIDTH).of(x), Window(first, WIDTH).of(y))]

        specs = [tf.TensorSpec([left.shape[2], right.shape[2]])]
        given = None if rows is None else ops.constant(np.asarray(rows, np.int64))
        groups = [(of_group, number(len(left) // WIDTH))]
        (c,) = contributions_by_group(groups, WIDTH, specs, parallel=2, rows=given, **options)
        assert isinstance(c, FactoredContribution)
        return read(c)

    return run_region(body, left, right, shapes={0: (len(left), None, left.shape[2])})


@pytest.mark.parametrize("sizes", [(6, 4), (4, 6), (20, 3)])
@pytest.mark.parametrize("options", [{}, {"joined": True}, {"joined": True, "joined_rows": 32}])
def test_the_sums_of_blocks_are_those_of_the_products(options, sizes):
    left, right = normal(8, 5, sizes[0]), normal(8, 5, sizes[1], seed=1)

    def read(c):
        lane_of = ops.constant(LANE_OF)
        return [c.block_sums(lane_of), c.sum_of_blocks(lane_of), c.sum_of_blocks(lane_of[1:2]), c.value_of_first_lane()]

    if options.get("joined_rows"):
        options = {**options, "rows": [5] * 8}
    blocks, total, one, first = factored(left, right, read, **options)
    want = products(left, right)
    present = (LANE_OF >= 0).any(1)
    np.testing.assert_allclose(blocks[present], want[present], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(total, want.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one, want[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first[0], products(left, right, [[0]])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("joined", [False, True])
def test_rows_behind_a_clients_own_are_not_read(joined):
    left, right, rows = normal(8, 5, 6), normal(8, 5, 4, seed=1), [5, 3, 0, 1, 2, 5, 4, 1]
    own = np.arange(5)[:, None] < np.array(rows)[:, None, None]
    want = products(left * own, right * own)
    left, right = (np.where(own, x, np.nan).astype("f") for x in (left, right))
    (blocks,) = factored(left, right, lambda c: [c.block_sums(ops.constant(LANE_OF))], rows=rows, joined=joined)
    present = (LANE_OF >= 0).any(1)
    np.testing.assert_allclose(blocks[present], want[present], rtol=1e-4, atol=1e-5)


def test_the_order_of_clients_and_not_their_lanes_decides_the_bits_of_a_joined_product():
    left, right = normal(8, 5, 6), normal(8, 5, 4, seed=1)
    order = np.random.default_rng(0).permutation(8)

    def sums(lane_of):
        return lambda c: [c.block_sums(ops.constant(lane_of))]

    (in_order,) = factored(left, right, sums(np.arange(8).reshape(2, 4)), joined=True)
    places = np.empty(8, np.int64)
    places[order] = np.arange(8)
    (moved,) = factored(left[order], right[order], sums(places.reshape(2, 4)), joined=True)
    assert in_order.tobytes() == moved.tobytes()


def test_zeros_behind_joined_factors_change_no_product():
    left, right = normal(1, 11, 6), normal(1, 11, 4, seed=1)
    (want,) = run_region(lambda x, y: [joined_product(x, y, 0)], left, right)
    (have,) = run_region(
        lambda x, y: [joined_product(x, y, 16)], left, right, shapes={0: (1, None, 6), 1: (1, None, 4)}
    )
    assert have.shape == (1, 6, 4)
    np.testing.assert_allclose(have, want, rtol=1e-5)


def test_a_leaf_may_be_whole_in_some_groups_and_in_factors_in_others():
    matrices, left, right = normal(8, 6, 4), normal(4, 3, 6), normal(4, 3, 4, seed=1)

    def body(whole, x, y):
        groups = [(lambda first: [Window(first, WIDTH).of(whole)], number(2)), (lambda first: [(x, y)], number(1))]
        factors, dense = contributions_by_group(groups, WIDTH, [tf.TensorSpec([6, 4])], parallel=1)
        assert isinstance(factors, FactoredContribution)
        assert isinstance(dense, ClientContribution)
        every = ops.constant(np.arange(12)[:, None])
        return [dense.concatenate(), factors.block_sums(every)]

    dense, of_factors = run_region(body, matrices, left, right)
    np.testing.assert_array_equal(dense[:8], matrices)
    assert not dense[8].any()
    assert not of_factors[:8].any()
    np.testing.assert_allclose(of_factors[8:], np.einsum("krn,krm->knm", left, right), rtol=1e-5, atol=1e-6)


# --- lists ---


def test_results_are_written_from_a_first_number_on():
    def body(count):
        lists = [(reserve_list(ops.constant(4), [2], tf.float32), begin) for begin in (0, 3)]
        square = function_of_number(lambda i: [ops.fill([2], ops.cast(i * i, tf.float32)), ops.ones([2])])
        filled = write_results(square, count, lists, 2, 3, parallel_iterations=2)
        return [ops.operation("TensorListStack", t, [2], element_dtype=tf.float32, num_elements=-1) for t in filled]

    squares, ones = run_region(body, np.int32(1))
    assert squares.tolist() == [[0, 0]] * 3 + [[36, 36]]
    assert ones.tolist() == [[1, 1]] + [[0, 0]] * 3

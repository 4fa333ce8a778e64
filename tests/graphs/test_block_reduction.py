"""Blocks of clients are folded in the order of the clients' indices and merged in a tree, whatever lanes hold them."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

from fedcore.graphs.batched.block_reduction import fold_blocks, fold_next_client, sum_blocks_by_group
from fedcore.graphs.batched.client_contribution import LARGE_LEAF_ENTRIES, contributions_by_group
from fedcore.graphs.batched.reduction import Reduction
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.dataflow import operations as ops

ABSENT = -1
WIDTH = 4


def fold(client, before, present=None):
    """Adds leaves 0 and 1, and takes the largest of leaf 2."""
    return [before[0] + client[0], client[1] + before[1], ops.maximum(before[2], client[2])]


def merge(left, right, present=None):
    return [left[0] + right[0], left[1] + right[1], ops.maximum(left[2], right[2])]


def add(left, right, present=None):
    return [a + b for a, b in zip(left, right, strict=True)]


def clients(count: int, *, large: bool = False, seed: int = 0) -> list[np.ndarray]:
    """Leaves of contributions, whose sums round; `large` ones are read group by group."""
    rng = np.random.default_rng(seed)
    shapes = [(2, LARGE_LEAF_ENTRIES // 2) if large else (2, 3), (), ()]
    return [rng.normal(size=(count, *s)).astype("f") for s in shapes]


def reference(leaves, block: int, blocks: int, start, absent=()) -> list[np.ndarray]:
    """The sum of each block, one client after the other, then sums and maxima of pairs; the initial partial is added
    to the sum of a block.
    """
    row: list = []
    for b in range(blocks):
        present = [k for k in range(b * block, min((b + 1) * block, len(leaves[0]))) if k not in absent]
        if not present:
            row.append(None)
            continue
        sums = [functools.reduce(np.add, leaf[present]) for leaf in leaves[:2]]
        most = functools.reduce(np.maximum, leaves[2][present], start[2])
        row.append([start[0] + sums[0], start[1] + sums[1], most])
    while len(row) > 1:
        row = [merge_arrays(a, b) for a, b in zip(row[::2], row[1::2], strict=True)]
    return row[0]


def merge_arrays(left, right):
    if left is None or right is None:
        return left if right is None else right
    return [left[0] + right[0], left[1] + right[1], np.maximum(left[2], right[2])]


def folded(leaves, lanes, block: int, blocks: int, start=(0.0, 0.0, 0.0), *, of=fold, to=merge) -> list[np.ndarray]:
    """The partial of a call whose clients are computed in the given lanes, `ABSENT` for those left out."""
    lane_of = np.full(block * blocks, ABSENT, np.int64)
    lane_of[: len(lanes)] = lanes
    count = -(-(max(lanes) + 1) // WIDTH) * WIDTH
    packed = [np.full((count, *leaf.shape[1:]), np.nan, "f") for leaf in leaves]  # empty lanes hold anything
    for leaf, of_lanes in zip(leaves, packed, strict=True):
        present = np.array(lanes) >= 0
        of_lanes[np.array(lanes)[present]] = leaf[present]

    def body(*tensors):
        specs = [tf.TensorSpec(t.shape[1:], t.dtype) for t in tensors]
        zeros = [ops.fill([1, *s.shape], np.float32(z)) for s, z in zip(specs, start, strict=True)]
        groups = [(lambda first: [Window(first, WIDTH).of(t) for t in tensors], ops.constant(count // WIDTH, tf.int64))]
        contributions = contributions_by_group(groups, WIDTH, specs, parallel=2)
        lanes_by_block = ops.constant(lane_of.reshape(blocks, block))
        return fold_blocks(Reduction(of, to, zeros, specs), contributions, lanes_by_block)

    return [t[0] for t in run_region(body, *packed)]


def assert_same_bits(have, want):
    for a, b in zip(have, want, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b, "f").tobytes()


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize(("count", "block", "blocks"), [(1, 1, 1), (7, 4, 2), (11, 11, 1), (17, 9, 2), (5, 2, 4)])
def test_clients_are_folded_in_the_order_of_their_indices_and_blocks_in_a_tree(count, block, blocks, large):
    """More than eight terms are added in several steps."""
    leaves, start = clients(count, large=large), np.float32([0.1, -0.3, 0.2])
    want = reference(leaves, block, blocks, start)
    assert_same_bits(folded(leaves, np.arange(count), block, blocks, start), want)


def test_the_lanes_of_clients_decide_nothing():
    leaves = clients(7)
    want = reference(leaves, 4, 2, np.zeros(3, "f"))
    for seed in range(3):
        assert_same_bits(folded(leaves, np.random.default_rng(seed).permutation(8)[:7], 4, 2), want)


def test_absent_clients_are_left_out():
    leaves, absent = clients(8), [0, 2, 5]
    lanes = np.array([ABSENT if k in absent else k for k in range(8)])
    assert_same_bits(folded(leaves, lanes, 2, 4), reference(leaves, 2, 4, np.zeros(3, "f"), absent))


@pytest.mark.parametrize("absent", [[0, 1], [2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 6, 7]])
def test_a_block_without_clients_is_not_merged(absent):
    """Otherwise the initial partial would count once more."""
    leaves, start = clients(8), np.float32([0.5, 2.0, 0.0])
    lanes = np.array([ABSENT if k in absent else k for k in range(8)])
    assert_same_bits(folded(leaves, lanes, 2, 4, start), reference(leaves, 2, 4, start, absent))


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_bits_of_a_call_are_those_of_its_parts_merged(blocks):
    leaves, size = clients(8), 2 * blocks
    whole = folded(leaves, np.arange(8), 2, 4)
    row = [folded([leaf[i : i + size] for leaf in leaves], np.arange(size), 2, blocks) for i in range(0, 8, size)]
    while len(row) > 1:
        row = [merge_arrays(a, b) for a, b in zip(row[::2], row[1::2], strict=True)]
    assert_same_bits(row[0], whole)


def merge_by_maximum(left, right, present=None):
    return [left[0] + right[0], ops.maximum(left[1], right[1]), left[2] + right[2]]


@pytest.mark.parametrize(
    ("to", "start"), [(add, 0.0), (add, 0.5), (merge_by_maximum, 0.0)], ids=["sums", "start", "maximum"]
)
@pytest.mark.parametrize(("count", "block", "blocks"), [(5, 4, 4), (16, 2, 8), (1, 2, 2)])
def test_groups_that_add_up_their_blocks_give_the_same_bits(count, block, blocks, to, start):
    leaves = clients(count)
    groups = -(-count // WIDTH)
    lane_of = np.where(np.arange(block * blocks) < count, np.arange(block * blocks), ABSENT).reshape(blocks, block)
    packed = [np.concatenate([x, np.full((groups * WIDTH - count, *x.shape[1:]), np.nan, "f")]) for x in leaves]

    def body(*tensors):
        specs = [tf.TensorSpec(t.shape[1:], t.dtype) for t in tensors]
        zeros = [ops.fill([1, *s.shape], np.float32(start)) for s in specs]
        return sum_blocks_by_group(
            lambda first: [Window(first, WIDTH).of(t) for t in tensors],
            Reduction(add, to, zeros, specs),
            ops.constant(lane_of),
            count=ops.constant(groups, tf.int64),
            width=WIDTH,
            parallel=2,
            joined=False,
        )

    sums = [t[0] for t in run_region(body, *packed)]
    assert_same_bits(sums, folded(leaves, np.arange(count), block, blocks, [start] * 3, of=add, to=to))


def one_by_one(leaves, start, of, *, factors=None, joined_rows=0) -> list[np.ndarray]:
    """The partial of one block, to which each client is added by a call of its own.

    Args:
        factors: of leaf 0, whose sum is one product.
    """
    count, shapes = len(leaves[1]), [leaf.shape[1:] for leaf in leaves]

    def body(is_first, is_last, *tensors):
        client, before = list(tensors[:3]), list(tensors[3:6])
        pending = {0: (tensors[6], tensors[7])} if factors else {}
        specs = [tf.TensorSpec(s) for s in shapes]
        zeros = [ops.fill([1, *s], np.float32(z)) for s, z in zip(shapes, start, strict=True)]
        of_client = [(tensors[8], tensors[9]) if factors else client[0], *client[1:]]
        contributions = contributions_by_group(
            [(lambda first: of_client, ops.constant(1, tf.int64))], 1, specs, parallel=1, joined=bool(factors)
        )
        reduction = Reduction(of, merge, zeros, specs)
        after, kept = fold_next_client(reduction, contributions, before, pending, is_first, is_last, joined_rows)
        return [*after, *(t for pair in kept.values() for t in pair)]

    state = [np.full((1, *s), np.nan, "f") for s in shapes]  # nothing is read before the first client
    kept = [np.zeros((1, 0, f.shape[-1]), "f") for f in factors or ()]
    for k in range(count):
        own = [f[k : k + 1] for f in factors or ()]
        given = [np.bool_(k == 0), np.bool_(k == count - 1), *(leaf[k : k + 1] for leaf in leaves), *state, *kept, *own]
        unknown = {8 + i: (1, None, f.shape[-1]) for i, f in enumerate(kept)}
        results = run_region(body, *given, shapes=unknown)
        state, kept = results[:3], results[3:]
    return [t[0] for t in state]


@pytest.mark.parametrize(
    "of",
    [fold, lambda c, b, _=None: [b[0] + c[0], ops.maximum(b[1], ops.reduce_max(b[0], [1, 2])) + c[1], b[2] + c[2]]],
    ids=["separate leaves", "a leaf reads the sum"],
)
def test_clients_one_by_one_give_the_bits_of_their_block(of):
    leaves, start = clients(3), np.float32([0.1, -0.3, 0.2])
    whole = folded(leaves, np.arange(3), 3, 1, start, of=of)
    assert_same_bits(one_by_one(leaves, start, of), whole)


@pytest.mark.parametrize("joined_rows", [0, 24])
def test_factors_of_clients_one_by_one_are_one_product_behind_the_last(joined_rows):
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(3, 4, 2)).astype("f"), rng.normal(size=(3, 4, 3)).astype("f")
    leaves = [np.einsum("krn,krm->knm", *factors), *clients(3)[1:]]
    start = np.float32([0.5, 0.0, 0.0])
    found = one_by_one(leaves, start, fold, factors=factors, joined_rows=joined_rows)
    want = reference(leaves, 3, 1, start)
    np.testing.assert_allclose(found[0], want[0], rtol=1e-5, atol=1e-5)
    assert_same_bits(found[1:], want[1:])

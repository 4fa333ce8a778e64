"""Reduction of client contributions to one partial: a fold over the clients of each block, a tree over the blocks.

In:  the contributions of a call's clients, and `lane_of`, int64 [blocks, block]: the lane of each client, negative for
     absent clients. Clients are folded in the order of their indices, whatever their lanes are.
Out: leaves of the partial, [1, …].

Example: 4 blocks of 8 clients, a partial <float32[5], float32> and a fold that adds to leaf 0 and takes the maximum in
leaf 1. Leaf 0 is a sum-only leaf (see `reduction`): one segment sum computes it, [32, 5] -> [4, 5]. Leaf 1 is folded in
8 steps; each step takes one client of every block, [4]. The merge tree then halves the leading axis:
[4, 5] -> [2, 5] -> [1, 5].

If all leaves are sum-only and the lanes are in the order of the client indices, `sum_blocks_by_group` sums the blocks
of each group where its clients are computed, and keeps no contribution.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Self

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.client_contribution import (
    LARGE_LEAF_ENTRIES,
    ClientContribution,
    Contribution,
    FactoredContribution,
    Factors,
    Tensors,
    function_of_number,
    joined_product,
    packed_leaves,
    reserve_list,
    written,
)
from fedcore.graphs.batched.low_rank import sum_of_products
from fedcore.graphs.batched.reduction import Reduction
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import computed_if
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.dataflow.selection import select_by_client, select_rows

MAX_SEQUENTIAL_TERMS = 8
"""Largest number of terms that AddN and SparseSegmentSum add sequentially; longer sums are split."""


def fold_blocks(reduction: Reduction, contributions: list[Contribution], lane_of: Value) -> Tensors:
    """The partial of all blocks, leaves [1, …].

    Args:
        lane_of: int64 [blocks, block]: the lane of each client, negative for absent clients.
    """
    apart = _summed_apart(reduction, contributions, merges=int(lane_of.shape[0]) > 1)
    totals = {i: reduction.zeros[i] + c.sum_of_blocks(lane_of) for i, c in apart.items()}
    (lane_of,) = _bit_reversed([lane_of])
    partial = _fold_clients(reduction, contributions, lane_of, without=apart)
    merged = _merge_tree(reduction.merge, partial, ops.reduce_any(lane_of >= 0, axis=1))
    return [totals.get(i, t) for i, t in enumerate(merged)]


def _summed_apart(
    reduction: Reduction, contributions: list[Contribution], *, merges: bool
) -> dict[int, FactoredContribution]:
    """Leaf of the partial -> its contribution, where the fold and the merge only add, to zeros, what clients have as
    factors: (0 + a) + (0 + b) has the bits of 0 + (a + b). Their blocks are not stacked.

    Args:
        merges: there are several blocks.
    """
    holders: dict[int, list[Contribution]] = {}
    for c in contributions:
        for j in c.leaves.positions:
            holders.setdefault(j, []).append(c)
    found = {}
    for i, j in reduction.sum_only_leaves.items():
        first, *others = holders[j]
        if others or not isinstance(first, FactoredContribution):
            continue
        if not merges or (i in reduction.leaves_only_merged_by_sums and reduction.starts_from_zeros(i)):
            found[i] = first
    return found


def sum_blocks_by_group(
    group: Callable,
    reduction: Reduction,
    lane_of: Value,
    *,
    count: Value,
    width: int,
    parallel: int,
    joined: bool,
) -> Tensors:
    """The partial of all blocks, leaves [1, …], where the fold only adds.

    If the merge only adds too, and zeros are the initial partial, a group merges its blocks: (0 + a) + (0 + b) has the
    bits of 0 + (a + b).

    Args:
        group: first lane of a group (int64) -> leaves [width, …], or factors, of its clients' contributions.
        lane_of: int64 [blocks, block]: the lane of each client, negative for clients behind the last one. The lanes are
            in the order of the client indices.
        count: int64, number of groups.
        width: lanes of a group, a multiple of the block size.
        parallel: groups that may run in parallel.
        joined: the sum of a block's factors is one product.
    """
    blocks, of_group = int(lane_of.shape[0]), width // int(lane_of.shape[1])
    zeros, merge, addends = reduction.zeros, reduction.merge, reduction.sum_only_leaves
    is_sum = len(reduction.leaves_only_merged_by_sums) == len(zeros)
    adds_up = is_sum and all(map(reduction.starts_from_zeros, range(len(zeros))))
    merges = adds_up and of_group & (of_group - 1) == 0 and blocks % of_group == 0
    found = _sums_by_group(group, reduction.specs, lane_of, count, width, parallel, merges=merges, joined=joined)
    present = ops.reduce_any(ops.reshape(lane_of >= 0, [found[0].shape[0], -1]), axis=1)
    present, *sums = _bit_reversed([present, *(found[addends[i]] for i in range(len(zeros)))])
    if not is_sum:
        return _merge_tree(merge, [zero + t for zero, t in zip(zeros, sums, strict=True)], present)
    flat = _FlatLeaves.of(zeros)
    first, partial = flat.join(zeros), flat.join(sums)
    if adds_up:
        return flat.split([zero + t for zero, t in zip(first, _merge_tree(_add, partial, present), strict=True)])
    return flat.split(_merge_tree(_add, [zero + t for zero, t in zip(first, partial, strict=True)], present))


def _sums_by_group(
    group: Callable,
    specs: Sequence[tf.TensorSpec],
    lane_of: Value,
    count: Value,
    width: int,
    parallel: int,
    *,
    merges: bool,
    joined: bool,
) -> list[Value]:
    """The sum of each block, or if blocks are merged of each group: leaves [blocks, …] or [groups, …].

    Arguments are those of `sum_blocks_by_group`.
    """
    blocks, block = lane_of.shape
    of_group = width // block
    clients = ops.reduce_sum(ops.cast(lane_of >= 0, tf.int64))
    packed = packed_leaves(specs)

    def merged(total: Value) -> Value:
        for siblings in range(of_group.bit_length() - 1 if merges else 0):  # of the merge tree, level by level
            pairs = ops.reshape(total, [of_group >> siblings + 1, 2, *total.shape[1:]])
            total = ops.reduce_sum(pairs, 1)
        return total

    def sums(first_lane: Value) -> Tensors:
        leaves = group(first_lane)
        present = ops.minimum(clients - first_lane, width)
        lanes = ops.range_(present)
        block_of = lanes // block

        def added(values: Value) -> Value:
            total = ops.operation("SparseSegmentSumWithNumSegments", values, lanes, block_of, ops.constant(of_group))
            return merged(total)

        def of_blocks(factor: Value) -> Value:
            return ops.reshape(factor, [of_group, -1, factor.shape[2]])

        totals = []
        for p in packed:
            factors = leaves[p.positions[0]]
            if not isinstance(factors, tuple):
                totals.append(added(p.pack(leaves)))
            elif joined:
                left, right = factors
                is_present = ops.range_(width, dtype=tf.int64) < present
                (right,) = select_by_client(is_present, [right], [ops.zeros([])])
                totals.append(sum_of_products(of_blocks(left), of_blocks(right), merged))
            else:
                totals.append(sum_of_products(factors[0], factors[1], added))
        return totals

    # The lists have room for a whole call; groups behind the last client leave zeros.
    groups = -(-blocks // of_group)
    shapes = [[1 if merges else of_group, *p.spec.shape] for p in packed]
    lists = [reserve_list(ops.constant(groups), shape, p.spec.dtype) for p, shape in zip(packed, shapes, strict=True)]
    found: dict[int, Value] = {}
    lists = written(
        function_of_number(sums), count, [(list_, 0) for list_ in lists], width, parallel_iterations=parallel
    )
    for p, list_, shape in zip(packed, lists, shapes, strict=True):
        stack = ops.operation("TensorListStack", list_, shape, element_dtype=p.spec.dtype, num_elements=groups)
        rows = ops.reshape(stack, [groups * shape[0], *p.spec.shape])  # not -1, since a leaf may have no elements
        found.update(p.unpack(rows[: groups if merges else blocks]))
    return [found[i] for i in range(len(specs))]


def _add(left: Tensors, right: Tensors) -> Tensors:
    return [a + b for a, b in zip(left, right, strict=True)]


@attrs.frozen
class _FlatLeaves:
    """Joins the small leaves of each dtype to one tensor [blocks, entries], so that a merge is a few operations.

    Args:
        shapes: shape of each leaf without the axis of the blocks.
        joined: positions of the leaves of each joined tensor; a large leaf, or one of unknown size, stays alone.
    """

    shapes: list[tf.TensorShape]
    joined: list[list[int]]

    @classmethod
    def of(cls, leaves: Tensors) -> Self:
        shapes = [t.shape[1:] for t in leaves]
        joined: dict[tuple[str, int | None], list[int]] = {}
        for i, (shape, leaf) in enumerate(zip(shapes, leaves, strict=True)):
            small = shape.is_fully_defined() and shape.num_elements() < LARGE_LEAF_ENTRIES
            joined.setdefault((leaf.dtype.name, None if small else i), []).append(i)
        return cls(shapes, list(joined.values()))

    def join(self, leaves: Tensors) -> Tensors:
        """The joined tensors of leaves [blocks, …]."""
        return [
            leaves[of[0]]
            if len(of) == 1
            else ops.concat(
                [ops.reshape(leaves[i], [leaves[i].shape[0], self.shapes[i].num_elements()]) for i in of], 1
            )
            for of in self.joined
        ]

    def split(self, joined: Tensors) -> Tensors:
        """The leaves [n, …] of joined tensors [n, …]."""
        leaves: dict[int, Value] = {}
        for of, tensor in zip(self.joined, joined, strict=True):
            sizes = [self.shapes[i].num_elements() for i in of]
            parts = [tensor] if len(of) == 1 else ops.split(tensor, sizes, 1)
            leaves.update((i, ops.reshape(t, [t.shape[0], *self.shapes[i]])) for i, t in zip(of, parts, strict=True))
        return [leaves[i] for i in range(len(leaves))]


def _merge_tree(merge: Callable, partial: Tensors, present: Value) -> Tensors:
    """Merges partials of blocks, leaves [blocks, …] in bit-reversed order, to leaves [1, …].

    Bit-reversed order makes the siblings of each level two contiguous halves, so that no level copies. If one sibling
    has no clients, the result is the other sibling.

    Args:
        present: bool [blocks], whether a block has clients, in the same order.
    """
    blocks = int(present.shape[0])
    while blocks > 1:
        blocks //= 2
        left, right = ([*half] for half in zip(*(ops.split(t, 2) for t in partial), strict=True))
        left_present, right_present = ops.split(present, 2)
        partial = select_by_client(left_present, select_rows(right_present, merge(left, right), left), right)
        present = left_present | right_present
    return partial


def _bit_reversed(tensors: Tensors) -> Tensors:
    """Tensors [blocks, …] with their entries in bit-reversed order; the number of blocks is a power of two."""
    order = np.zeros(1, np.int64)
    while len(order) < int(tensors[0].shape[0]):
        order = np.concatenate([2 * order, 2 * order + 1])
    return tensors if len(order) == 1 else [ops.gather(t, order) for t in tensors]


def fold_next_client(
    reduction: Reduction,
    contributions: list[Contribution],
    before: Tensors,
    pending: Mapping[int, Factors],
    is_first: Value,
    is_last: Value,
    joined_rows: int = 0,
) -> tuple[Tensors, dict[int, Factors]]:
    """The partial of a block, leaves [1, …], after one more client; after the last one its bits are those of
    `fold_blocks`.

    Sum-only leaves are accumulated without the initial partial, which is added with the block's last client. So is the
    product of joined factors.

    Args:
        contributions: contributions of a call whose lane 0 holds the client.
        before: partial after the block's previous clients.
        pending: leaf of the contribution -> the joined factors of the block's previous clients, [1, r, …].
        is_first, is_last: bool, whether the client is the first or the last of its block.
        joined_rows: as in `FactoredContribution`.
    Returns:
        The partial, and the joined factors with those of the client.
    """
    pending = dict(pending)
    kept = []
    for c in contributions:
        if isinstance(c, FactoredContribution) and c.joined:
            (j,) = c.leaves.positions
            pairs = zip(pending[j], c.factors_of_first_lane(), strict=True)
            left, right = (ops.concat(pair, 1) for pair in pairs)
            pending[j] = left, right
        else:
            kept.append(c)
    zeros, leaves = reduction.zeros, _unpacked((c, c.of_first_lane()) for c in kept)
    client = [leaves[j] if j in leaves else ops.zeros([1, *s.shape]) for j, s in enumerate(reduction.specs)]
    after = reduction.fold(client, [ops.where(is_first, z, b) for z, b in zip(zeros, before, strict=True)])
    for i, j in reduction.sum_only_leaves.items():
        total = ops.where(is_first, client[j], before[i] + client[j])
        whole = total
        if j in pending:
            (product,) = computed_if(
                is_last, lambda x, y: [joined_product(x, y, joined_rows)], [*pending[j]], [ops.zeros_like(total)]
            )
            whole = product + total
        after[i] = ops.where(is_last, zeros[i] + whole, total)
    return after, pending


def _fold_clients(
    reduction: Reduction, contributions: list[Contribution], lane_of: Value, *, without: Container[int]
) -> Tensors:
    """The partial of each block, leaves [blocks, …]: its present clients in the order of their indices.

    Args:
        without: leaves of the partial that are not used, and stay zeros.
    """
    zeros, specs, blocks = reduction.zeros, reduction.specs, int(lane_of.shape[0])
    addends = {i: j for i, j in reduction.sum_only_leaves.items() if i not in without}
    sums: dict[int, Value] = {}
    for c in contributions:
        if set(c.leaves.positions) & set(addends.values()):
            for j, total in c.leaves.unpack(_block_sums(c, lane_of)).items():
                sums[j] = sums[j] + total if j in sums else total
    factored = {j for c in contributions if isinstance(c, FactoredContribution) for j in c.leaves.positions}
    results = {i: ops.zeros([blocks, *z.shape[1:]], z.dtype) for i, z in enumerate(zeros) if i in without}
    results.update((i, zeros[i] + sums[j]) for i, j in addends.items())
    if len(results) < len(zeros):
        partial = [ops.broadcast_to(z, [blocks, *z.shape[1:]]) for z in zeros]
        whole = [c for c in contributions if factored.isdisjoint(c.leaves.positions)]
        leaves = _unpacked((c, c.concatenated()) for c in whole if isinstance(c, ClientContribution))
        # Leaves in factors are only summed. The fold gets zeros for them, and what it makes of them is not used.
        zero = {i: ops.zeros([blocks, *s.shape]) for i, s in enumerate(specs) if i not in leaves}
        for b in range(int(lane_of.shape[1])):
            lanes = ops.maximum(lane_of[:, b], 0)
            client = [zero[i] if i in zero else ops.gather(leaves[i], lanes) for i in range(len(specs))]
            partial = select_rows(lane_of[:, b] >= 0, reduction.fold(client, partial), partial)
        results = {**dict(enumerate(partial)), **results}
    return [results[i] for i in range(len(zeros))]


def _unpacked(packed: Iterable[tuple[Contribution, Value]]) -> dict[int, Value]:
    """Position -> leaf [K, …], from one packed tensor [K, …] of each contribution."""
    leaves: dict[int, Value] = {}
    for contribution, tensor in packed:
        leaves.update(contribution.leaves.unpack(tensor))
    return leaves


def _block_sums(contribution: Contribution, lane_of: Value) -> Value:
    """[blocks, …]: the sum of each block's present clients, in the order of their indices."""
    if isinstance(contribution, FactoredContribution):
        return contribution.block_sums(lane_of)
    blocks, block = lane_of.shape
    positions, absent = contribution.lanes.positions(lane_of), contribution.lanes.count
    if contribution.is_large:
        slices = contribution.slices(ops.reshape(positions, [-1]))
        total = ops.concat([_sequential_sum(slices[i : i + block]) for i in range(0, blocks * block, block)], 0)
        return contribution.keep_alive_until(total)
    values = contribution.concatenated()
    first = positions[:, :MAX_SEQUENTIAL_TERMS]
    lanes = ops.reshape(first, [-1])
    present = ops.where(lanes < absent)[:, 0]
    total = ops.operation(
        "SparseSegmentSumWithNumSegments", values, ops.gather(lanes, present), present // first.shape[1], blocks
    )
    for b in range(MAX_SEQUENTIAL_TERMS, block):
        total += ops.gather(values, positions[:, b])
    return ops.ensure_shape(total, [blocks, *contribution.shape])


def _sequential_sum(values: Tensors) -> Value:
    total = ops.add_n(values[:MAX_SEQUENTIAL_TERMS])
    for i in range(MAX_SEQUENTIAL_TERMS, len(values), MAX_SEQUENTIAL_TERMS - 1):
        total = ops.add_n([total, *values[i : i + MAX_SEQUENTIAL_TERMS - 1]])
    return total

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

Decision 0188.
"""

import functools
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Self

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import Presence
from fedcore.graphs.batched.client_contribution import (
    LARGE_LEAF_ENTRIES,
    ChangedRowsContribution,
    ClientContribution,
    Contribution,
    FactoredContribution,
    Factors,
    GroupFunction,
    PackedLeaves,
    Tensors,
    function_of_number,
    joined_product,
    packed_leaves,
    reserve_list,
    write_results,
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
    """The partial of all blocks, leaves [1, …], if it has leaves: clients folded by block, then blocks merged.

    Leaves that clients have as factors, and that are only added, are summed without the tree of merges.

    Args:
        contributions: of the clients of a call.
        lane_of: int64 [blocks, block]: the lane of each client, negative for absent clients.
    """
    if not reduction.zeros:
        return []
    factored_sums = _find_factored_sums(reduction, contributions, merges=int(lane_of.shape[0]) > 1)
    totals = {i: _factored_total(reduction, i, c, lane_of) for i, c in factored_sums.items()}
    (lane_of,) = _reverse_bits([lane_of])
    partial = _fold_clients(reduction, contributions, lane_of, without=factored_sums)
    merged = _merge_tree(reduction.merge, partial, ops.reduce_any(lane_of >= 0, axis=1))
    return [totals.get(i, t) for i, t in enumerate(merged)]


def _factored_total(reduction: Reduction, leaf: int, contribution: FactoredContribution, lane_of: Value) -> Value:
    """A leaf of the partial that `_find_factored_sums` names: its initial value plus the sum of all clients, [1, n, m].

    A sum of changed rows has no negative zeros, so adding it to zeros would change nothing.
    """
    total = contribution.sum_of_blocks(lane_of)
    if isinstance(contribution, ChangedRowsContribution) and reduction.starts_from_zeros(leaf):
        return total[None]
    return reduction.zeros[leaf] + total


def _find_factored_sums(
    reduction: Reduction, contributions: list[Contribution], *, merges: bool
) -> dict[int, FactoredContribution]:
    """Leaf of the partial -> its contribution, for the leaves whose blocks may be summed without stacking them.

    That is where clients have the leaf as factors, and the fold and the merge only add it, starting from zeros: (0 + a)
    + (0 + b) has the bits of 0 + (a + b).

    Args:
        merges: whether there are several blocks, so that the merge must add as well.
    """
    holders: dict[int, list[Contribution]] = {}
    for c in contributions:
        for j in c.leaves.positions:
            holders.setdefault(j, []).append(c)
    factored_sums = {}
    for i, j in reduction.sum_only_leaves.items():  # leaf i of the partial adds leaf j of the contribution
        first, *further_holders = holders[j]
        if further_holders or not isinstance(first, FactoredContribution):
            continue
        if not merges or (i in reduction.leaves_only_merged_by_sums and reduction.starts_from_zeros(i)):
            factored_sums[i] = first
    return factored_sums


def sum_blocks_by_group(
    group: GroupFunction,
    reduction: Reduction,
    lane_of: Value,
    *,
    count: Value,
    width: int,
    parallel: int,
    joined: bool,
) -> Tensors:
    """The partial of all blocks, leaves [1, …], of a fold that only adds.

    Each group adds up its clients by block, so that no contribution is stored. If the merge only adds too, and the
    initial partial is zeros, a group also merges its blocks: (0 + a) + (0 + b) has the bits of 0 + (a + b).

    Args:
        group: computes the contributions of a group's clients.
        lane_of: int64 [blocks, block]: the lane of each client, negative for clients behind the last one. The lanes
            are in the order of the client indices.
        count: int64, number of groups.
        width: lanes of a group, a multiple of the block size.
        parallel: groups that may run in parallel.
        joined: the sum of a block's factors is one product.
    """
    blocks, blocks_of_group = int(lane_of.shape[0]), width // int(lane_of.shape[1])
    zeros, merge = reduction.zeros, reduction.merge
    addends = reduction.sum_only_leaves  # leaf of the partial -> the leaf of the contribution that it adds
    merge_adds = len(reduction.leaves_only_merged_by_sums) == len(zeros)
    adds_to_zeros = merge_adds and all(map(reduction.starts_from_zeros, range(len(zeros))))
    is_subtree = blocks_of_group & (blocks_of_group - 1) == 0 and blocks % blocks_of_group == 0  # of the merge tree
    merges = adds_to_zeros and is_subtree
    totals = _sums_by_group(group, reduction.specs, lane_of, count, width, parallel, merges=merges, joined=joined)
    present = ops.reduce_any(ops.reshape(lane_of >= 0, [totals[0].shape[0], -1]), axis=1)
    present, *sums = _reverse_bits([present, *(totals[addends[i]] for i in range(len(zeros)))])
    if not merge_adds:
        return _merge_tree(merge, [zero + t for zero, t in zip(zeros, sums, strict=True)], present)
    flat = _FlatLeaves.from_leaves(zeros)
    joined_zeros, joined_sums = flat.join(zeros), flat.join(sums)
    if adds_to_zeros:  # they are added once, to the total
        return flat.split(_add_leaves(joined_zeros, _merge_tree(_add_leaves, joined_sums, present)))
    return flat.split(_merge_tree(_add_leaves, _add_leaves(joined_zeros, joined_sums), present))


def _sums_by_group(
    group: GroupFunction,
    specs: Sequence[tf.TensorSpec],
    lane_of: Value,
    count: Value,
    width: int,
    parallel: int,
    *,
    merges: bool,
    joined: bool,
) -> list[Value]:
    """The sums of the clients of each block, leaves [blocks, …]; with `merges` of each group, leaves [groups, …].

    Args:
        merges: a group merges its blocks, whose number is a power of two.
        group, lane_of, count, width, parallel, joined: as in `sum_blocks_by_group`.
    """
    blocks, block = lane_of.shape
    summation = _GroupSummation(width, width // block, merges, joined)
    clients = ops.reduce_sum(ops.cast(lane_of >= 0, tf.int64))
    packed = packed_leaves(specs)

    def sum_group(first_lane: Value) -> Tensors:
        """The sums of the packed leaves of the group that begins at a lane (int64)."""
        leaves, present = group(first_lane), ops.minimum(clients - first_lane, width)
        return [summation.sum_leaf(_packed_leaf(p, leaves), present) for p in packed]

    # The lists have room for a whole call; groups behind the last client leave zeros.
    groups = -(-blocks // summation.blocks)
    shapes = [[summation.rows, *p.spec.shape] for p in packed]
    lists = [reserve_list(ops.constant(groups), shape, p.spec.dtype) for p, shape in zip(packed, shapes, strict=True)]
    lists = write_results(
        function_of_number(sum_group), count, [(list_, 0) for list_ in lists], width, parallel_iterations=parallel
    )
    leaf_sums: dict[int, Value] = {}
    for p, list_, shape in zip(packed, lists, shapes, strict=True):
        stack = ops.operation("TensorListStack", list_, shape, element_dtype=p.spec.dtype, num_elements=groups)
        rows = ops.reshape(stack, [groups * shape[0], *p.spec.shape])  # not -1, since a leaf may have no elements
        leaf_sums.update(p.unpack(rows[: groups if merges else blocks]))
    return [leaf_sums[i] for i in range(len(specs))]


def _packed_leaf(packed: PackedLeaves, leaves: Sequence[Value | Factors]) -> Value | Factors:
    """The tensor [width, …] of leaves that are packed together, or the factors of a leaf that stays alone."""
    leaf = leaves[packed.positions[0]]
    return leaf if isinstance(leaf, tuple) else packed.pack(leaves)


@attrs.frozen
class _GroupSummation:
    """Adds up the clients of one group by block. Client i of the group, in its i-th lane, belongs to block i // block.

    Args:
        width: lanes of a group.
        blocks: of a group; with `merges` a power of two.
        merges: the sums of the blocks are added to one.
        joined: the sum of a block's factors is one product.
    """

    width: int
    blocks: int
    merges: bool
    joined: bool

    @property
    def rows(self) -> int:
        """Leading size of the sums."""
        return 1 if self.merges else self.blocks

    def sum_leaf(self, leaf: Value | Factors, present: Value) -> Value:
        """The sums of a leaf, [rows, …].

        Args:
            leaf: [width, …], or factors.
            present: int64, the number of clients; the last lanes may be empty.
        """
        if not isinstance(leaf, tuple):
            return self._sum_by_block(leaf, present)
        left, right = leaf
        if not self.joined:
            return sum_of_products(left, right, lambda products: self._sum_by_block(products, present))
        # The joined rows of a block are multiplied whole, so those of absent clients have to be zeros.
        is_present = ops.range_(self.width, dtype=tf.int64) < present
        (right,) = select_by_client(is_present, [right], [ops.zeros([])])
        return sum_of_products(self._join_rows(left), self._join_rows(right), self._merge)

    def _sum_by_block(self, values: Value, present: Value) -> Value:
        """The values [width, …] added up by block, without those of absent clients."""
        positions = ops.range_(present)
        block_of = positions // (self.width // self.blocks)
        number = ops.constant(self.blocks)
        return self._merge(ops.operation("SparseSegmentSumWithNumSegments", values, positions, block_of, number))

    def _join_rows(self, factor: Value) -> Value:
        """[width, r, …] -> [blocks, clients of a block * r, …]: the factors of a block's clients behind one another."""
        return ops.reshape(factor, [self.blocks, -1, factor.shape[2]])

    def _merge(self, sums: Value) -> Value:
        """The sums of the blocks added level by level, as in the merge tree; unchanged if groups do not merge."""
        siblings = self.blocks
        while self.merges and siblings > 1:
            siblings //= 2
            sums = ops.reduce_sum(ops.reshape(sums, [siblings, 2, *sums.shape[1:]]), 1)
        return sums


def _add_leaves(left: Tensors, right: Tensors, present: Presence | None = None) -> Tensors:
    """A `Reduction.merge` that only adds; sums of absent blocks raise no error, so `present` is not read."""
    return [a + b for a, b in zip(left, right, strict=True)]


@attrs.frozen
class _FlatLeaves:
    """Joins the small leaves of each dtype to one tensor [blocks, entries], so that a merge is a few operations.

    Args:
        shapes: shape of each leaf without the axis of the blocks.
        members: positions of the leaves of each joined tensor; a large leaf, or one of unknown size, stays alone.
    """

    shapes: list[tf.TensorShape]
    members: list[list[int]]

    @classmethod
    def from_leaves(cls, leaves: Tensors) -> Self:
        """The partition for leaves [blocks, …]: by dtype for small ones."""
        shapes = [t.shape[1:] for t in leaves]
        members: dict[tuple[str, int | None], list[int]] = {}
        for i, (shape, leaf) in enumerate(zip(shapes, leaves, strict=True)):
            is_small = shape.is_fully_defined() and shape.num_elements() < LARGE_LEAF_ENTRIES
            members.setdefault((leaf.dtype.name, None if is_small else i), []).append(i)
        return cls(shapes, list(members.values()))

    def join(self, leaves: Tensors) -> Tensors:
        """The joined tensors [blocks, entries] of leaves [blocks, …]; a leaf that is alone keeps its shape."""
        tensors = []
        for positions in self.members:
            if len(positions) == 1:
                tensors.append(leaves[positions[0]])
                continue
            flat = [ops.reshape(leaves[i], [leaves[i].shape[0], self.shapes[i].num_elements()]) for i in positions]
            tensors.append(ops.concat(flat, 1))
        return tensors

    def split(self, joined: Tensors) -> Tensors:
        """The leaves [blocks, …] of joined tensors; the inverse of `join`."""
        leaves: dict[int, Value] = {}
        for positions, tensor in zip(self.members, joined, strict=True):
            sizes = [self.shapes[i].num_elements() for i in positions]
            parts = [tensor] if len(positions) == 1 else ops.split(tensor, sizes, 1)
            for i, part in zip(positions, parts, strict=True):
                leaves[i] = ops.reshape(part, [part.shape[0], *self.shapes[i]])
        return [leaves[i] for i in range(len(leaves))]


def _merge_tree(merge: Callable, partial: Tensors, present: Value) -> Tensors:
    """Merges partials of blocks, leaves [blocks, …] in the order of `_reverse_bits`, to leaves [1, …].

    On each level, block i of the first half is merged with block i of the second half, its sibling. If one sibling has
    no clients, the result is the other sibling.

    Args:
        merge: as `Reduction.merge`: (left partials, right partials, both) -> merged partials, leaves [pairs, …].
            `both` builds bool [pairs], whether both siblings have clients, where an operation of the merge may raise an
            error on partials of no clients.
        present: bool [blocks], whether a block has clients, in the same order.
    """
    blocks = int(present.shape[0])
    while blocks > 1:
        blocks //= 2
        left, right = ([*half] for half in zip(*(ops.split(t, 2) for t in partial), strict=True))
        left_present, right_present = ops.split(present, 2)
        both = functools.partial(operator.and_, left_present, right_present)
        merged = merge(left, right, both)
        partial = select_by_client(left_present, select_rows(right_present, merged, left), right)
        present = left_present | right_present
    return partial


def _reverse_bits(tensors: Tensors) -> Tensors:
    """The tensors [blocks, …] with their entries in bit-reversed order, so that no level of the merge tree copies.

    Entry b moves to the position whose binary digits are those of b in reverse. Block 2 i is then in the first half,
    and its sibling 2 i + 1 at the same place in the second. The number of blocks is a power of two.
    """
    order = np.zeros(1, np.int64)
    while len(order) < int(tensors[0].shape[0]):
        order = np.concatenate([2 * order, 2 * order + 1])
    return tensors if len(order) == 1 else [ops.gather(t, order) for t in tensors]


def fold_next_client(
    reduction: Reduction,
    contributions: list[Contribution],
    previous: Tensors,
    pending: Mapping[int, Factors],
    is_first: Value,
    is_last: Value,
    joined_rows: int = 0,
) -> tuple[Tensors, dict[int, Factors]]:
    """The partial of a block after one more client; after the last one its bits are those of `fold_blocks`.

    Sum-only leaves are accumulated without the initial partial, which is added with the block's last client, since
    `fold_blocks` adds up the clients first too. Joined factors are multiplied with the last client.

    Args:
        contributions: of a call whose lane 0 holds the client.
        previous: partial after the block's previous clients, leaves [1, …]; not read for the first one.
        pending: leaf of the contribution -> the joined factors of the block's previous clients, each [1, r, …].
        is_first, is_last: bool, whether the client is the first or the last of its block.
        joined_rows: as in `FactoredContribution`.
    Returns:
        The partial, leaves [1, …], and the joined factors with those of the client behind them.
    """
    pending = dict(pending)
    unjoined = []
    for c in contributions:
        if isinstance(c, FactoredContribution) and c.joined:
            (leaf,) = c.leaves.positions
            pairs = zip(pending[leaf], c.factors_of_first_lane(), strict=True)
            left, right = (ops.concat(pair, 1) for pair in pairs)
            pending[leaf] = left, right
        else:
            unjoined.append(c)
    zeros, leaves = reduction.zeros, _unpack_leaves((c, c.value_of_first_lane()) for c in unjoined)
    # Joined leaves, which are float32, count as zeros until the block's last client.
    client = [leaves[j] if j in leaves else ops.zeros([1, *s.shape]) for j, s in enumerate(reduction.specs)]
    partial = reduction.fold(client, [ops.where(is_first, z, b) for z, b in zip(zeros, previous, strict=True)])
    for i, j in reduction.sum_only_leaves.items():  # leaf i of the partial adds leaf j of the contribution
        total = ops.where(is_first, client[j], previous[i] + client[j])
        total_with_product = total
        if j in pending:
            (product,) = computed_if(
                is_last, lambda x, y: [joined_product(x, y, joined_rows)], [*pending[j]], [ops.zeros_like(total)]
            )
            total_with_product = product + total
        partial[i] = ops.where(is_last, zeros[i] + total_with_product, total)
    return partial, pending


def _fold_clients(
    reduction: Reduction, contributions: list[Contribution], lane_of: Value, *, without: Container[int]
) -> Tensors:
    """The partial of each block, leaves [blocks, …]: its present clients in the order of their indices.

    Sum-only leaves are summed by segment. The other leaves are folded client by client.

    Args:
        lane_of: int64 [blocks, block], blocks in bit-reversed order: the lane of each client, negative for absent ones.
        without: leaves of the partial that the caller sums itself (`_find_factored_sums`); zeros here.
    """
    zeros, blocks = reduction.zeros, int(lane_of.shape[0])
    addends = {i: j for i, j in reduction.sum_only_leaves.items() if i not in without}
    sums: dict[int, Value] = {}
    # A leaf that some groups have as factors and others as a matrix has two contributions, each for its own lanes.
    for c in contributions:
        if set(c.leaves.positions) & set(addends.values()):
            for j, total in c.leaves.unpack(_block_sums(c, lane_of)).items():
                sums[j] = sums[j] + total if j in sums else total
    leaves_with_factors = {j for c in contributions if isinstance(c, FactoredContribution) for j in c.leaves.positions}
    results = {i: ops.zeros([blocks, *z.shape[1:]], z.dtype) for i, z in enumerate(zeros) if i in without}
    results.update((i, zeros[i] + sums[j]) for i, j in addends.items())
    if len(results) < len(zeros):
        # Leaves with factors are in `results`; their matrices, if some groups have them, do not cover all lanes.
        dense_contributions = [
            c
            for c in contributions
            if isinstance(c, ClientContribution) and leaves_with_factors.isdisjoint(c.leaves.positions)
        ]
        results = {**dict(enumerate(_fold_one_by_one(reduction, dense_contributions, lane_of))), **results}
    return [results[i] for i in range(len(zeros))]


def _fold_one_by_one(reduction: Reduction, contributions: list[ClientContribution], lane_of: Value) -> Tensors:
    """The partial of each block, leaves [blocks, …]: step b folds client b of every block, if the block has it.

    Leaves that clients have as factors are summed by the caller. The fold gets zeros for them, which are float32 as
    factors are, and its results for them are not used.

    Args:
        contributions: of all lanes, without factors.
        lane_of: int64 [blocks, block]: the lane of each client, negative for absent clients.
    """
    blocks, specs = int(lane_of.shape[0]), reduction.specs
    partial = [ops.broadcast_to(z, [blocks, *z.shape[1:]]) for z in reduction.zeros]
    leaves = _unpack_leaves((c, c.concatenate()) for c in contributions)
    placeholders = {i: ops.zeros([blocks, *s.shape]) for i, s in enumerate(specs) if i not in leaves}
    for b in range(int(lane_of.shape[1])):
        lanes = ops.maximum(lane_of[:, b], 0)
        client = [placeholders[i] if i in placeholders else ops.gather(leaves[i], lanes) for i in range(len(specs))]
        present = lane_of[:, b] >= 0
        folded = reduction.fold(client, partial, functools.partial(ops.identity, present))
        partial = select_rows(present, folded, partial)
    return partial


def _unpack_leaves(packed_tensors: Iterable[tuple[Contribution, Value]]) -> dict[int, Value]:
    """Position of a leaf -> its tensor [K, …], from one packed tensor [K, …] of each contribution."""
    leaves: dict[int, Value] = {}
    for contribution, tensor in packed_tensors:
        leaves.update(contribution.leaves.unpack(tensor))
    return leaves


def _block_sums(contribution: Contribution, lane_of: Value) -> Value:
    """The sum of each block's present clients, in the order of their indices: [blocks, …].

    Large leaves are added client by client from views of their groups. Others are concatenated, and summed by segment,
    where at most `MAX_SEQUENTIAL_TERMS` clients of a block are summed at once: kernels add more terms in another order.

    Args:
        lane_of: int64 [blocks, block]: the lane of each client, negative for absent clients.
    """
    if isinstance(contribution, FactoredContribution):
        return contribution.block_sums(lane_of)
    blocks, block = lane_of.shape
    positions, absent = contribution.lanes.positions(lane_of), contribution.lanes.count
    if contribution.is_large:
        slices = contribution.slices(ops.reshape(positions, [-1]))
        total = ops.concat([_sequential_sum(slices[i : i + block]) for i in range(0, blocks * block, block)], 0)
        return contribution.keep_alive_until(total)
    values = contribution.concatenate()
    first_positions = positions[:, :MAX_SEQUENTIAL_TERMS]
    lanes = ops.reshape(first_positions, [-1])
    present = ops.where(lanes < absent)[:, 0]
    total = ops.operation(
        "SparseSegmentSumWithNumSegments",
        values,
        ops.gather(lanes, present),
        present // first_positions.shape[1],
        blocks,
    )
    for b in range(MAX_SEQUENTIAL_TERMS, block):
        total += ops.gather(values, positions[:, b])
    return ops.ensure_shape(total, [blocks, *contribution.shape])


def _sequential_sum(values: Tensors) -> Value:
    """The sum of tensors, added one after the other.

    AddN adds at most `MAX_SEQUENTIAL_TERMS` tensors in sequence, so a longer sum is made of several.
    """
    total = ops.add_n(values[:MAX_SEQUENTIAL_TERMS])
    for i in range(MAX_SEQUENTIAL_TERMS, len(values), MAX_SEQUENTIAL_TERMS - 1):
        total = ops.add_n([total, *values[i : i + MAX_SEQUENTIAL_TERMS - 1]])
    return total

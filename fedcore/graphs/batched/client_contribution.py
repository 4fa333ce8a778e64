"""Client contributions: the values of a call's clients that the fold reads, stored group by group.

With 10 clients in groups of 4 (3 groups, 12 lanes) and the contribution <float32[5], float32, float32, float32[7,5]>,
whose last leaf the clients have as factors of r rows:

    leaves 0, 1 and 2    TensorList of 3 tensors [4, 7], one for each group, and zeros [1, 7]: scalars and small vectors
                         of a dtype are stored side by side, scalars first
    leaf 3, float32[7,5] TensorLists of 3 tensors [4, r, 7] and [4, r, 5], where r differs between groups, and of
                         factors without rows, [1, 0, 7] and [1, 0, 5]

The zeros and the factors without rows stand in for absent clients, which read lane 12.

Where some groups have a leaf as factors and others as a matrix, it has both: two contributions, each for its own lanes.

Decision 0185.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import tensorflow as tf

from fedcore.graphs.batched.low_rank import product_of_factors
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import function_of_number, scan
from fedcore.graphs.dataflow.graph import Value, ordered_behind

Tensors = list[Value]
Factors: TypeAlias = tuple[Value, Value]
"""(left [K, r, n], right [K, r, m]) of matrices left^T right."""

PARALLEL_GROUPS = 4
"""Groups of a call that may run in parallel; this uses TensorFlow's threads where a worker has no more calls."""

PARALLEL_GROUPS_OF_LOOPS = 6
"""Groups that may run in parallel in a stage whose graphs have loops: more than `PARALLEL_GROUPS`, since few operations
of a group can run at a time, and all take long.
"""

PARALLEL_BLOCKS = 2
"""Blocks whose factors may be multiplied in parallel; the sum of each block stays in a core's cache."""

LARGE_LEAF_ENTRIES = 1 << 12
"""Number of entries from which a leaf's groups are read one by one, without concatenating them first."""


@attrs.frozen
class PackedLeaves:
    """Leaves of the contribution that are stored as one tensor.

    Args:
        positions: positions of the leaves; several scalars and vectors are stored side by side in the last axis.
        spec: dtype and shape of one client's value.
        lengths: of the vectors, which stand behind the scalars.
    """

    positions: tuple[int, ...]
    spec: tf.TensorSpec
    lengths: tuple[int, ...] = ()

    def pack(self, leaves: Sequence) -> Value:
        """The one tensor [K, …] in which the leaves are stored.

        Args:
            leaves: all leaves of the contribution, [K, …].
        """
        if len(self.positions) == 1:
            return leaves[self.positions[0]]
        scalar_count = len(self.positions) - len(self.lengths)
        parts = [ops.stack([leaves[i] for i in self.positions[:scalar_count]], 1)] if scalar_count else []
        parts += [leaves[i] for i in self.positions[scalar_count:]]
        return parts[0] if len(parts) == 1 else ops.concat(parts, 1)

    def unpack(self, tensor: Value) -> dict[int, Value]:
        """Position of a leaf -> its tensor [K, …], from the stored tensor [K, …]; the inverse of `pack`."""
        if len(self.positions) == 1:
            return {self.positions[0]: tensor}
        scalar_count = len(self.positions) - len(self.lengths)
        parts = ops.split(tensor, [scalar_count, *self.lengths], 1) if self.lengths else [tensor]
        return dict(zip(self.positions, [*ops.unstack(parts[0], scalar_count, 1), *parts[1:]], strict=True))


def packed_leaves(specs: Sequence[tf.TensorSpec]) -> list[PackedLeaves]:
    """Partition of a contribution's leaves into stored tensors.

    Scalars and small vectors of one dtype are stored together, since each tensor costs operations in every group. Other
    leaves are stored by themselves.

    Args:
        specs: of the leaves of one client's contribution.
    """
    groups: dict[object, list[int]] = {}
    for i, s in enumerate(specs):
        groups.setdefault(s.dtype.name if _is_small(s.shape) else i, []).append(i)
    packed = []
    for positions in groups.values():
        positions = sorted(positions, key=lambda i: specs[i].shape.rank)  # scalars first
        lengths = tuple(int(specs[i].shape[0]) for i in positions if specs[i].shape.rank == 1)
        size = len(positions) - len(lengths) + sum(lengths)
        first_spec = specs[positions[0]]
        spec = first_spec if len(positions) == 1 else tf.TensorSpec([size], first_spec.dtype)
        packed.append(PackedLeaves(tuple(positions), spec, lengths))
    return packed


def _is_small(shape: tf.TensorShape) -> bool:
    """Whether a shape is that of a scalar or of a small vector."""
    return shape.rank == 0 or (shape.rank == 1 and shape[0] is not None and shape[0] < LARGE_LEAF_ENTRIES)


@attrs.frozen
class Lanes:
    """The lanes of the groups that a contribution holds.

    Args:
        width: lanes of a group.
        first: int64, the first lane.
        count: int64, the number of lanes.
    """

    width: int
    first: Value
    count: Value

    def positions(self, lane_of: Value) -> Value:
        """int64: the positions of lanes among these lanes; `count` for absent clients and for lanes of other groups.

        Entry `count` of a contribution holds zeros, so that absent clients add nothing.

        Args:
            lane_of: int64, any shape: lanes of the call, negative for absent clients.
        """
        position = lane_of - self.first
        return ops.where((lane_of >= 0) & (position >= 0) & (position < self.count), position, self.count)

    def select(self, numbers: Value | None) -> Value | None:
        """int64 [lanes + 1]: the numbers of these lanes among those of all lanes, then 0 for absent clients."""
        return None if numbers is None else ops.pad(numbers[self.first : self.first + self.count], [[0, 1]])


@attrs.frozen
class ClientContribution:
    """The packed leaves of the lanes of a call.

    Args:
        leaves: the leaves that it holds.
        groups: TensorList of tensors [width, …], one for each group, then zeros [1, …].
        lanes: the lanes of these groups.
    """

    leaves: PackedLeaves
    groups: Value
    lanes: Lanes

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of one client's value."""
        return self.leaves.spec.shape

    @property
    def is_large(self) -> bool:
        """Whether the leaves are read group by group, without concatenating the groups."""
        return self.shape.num_elements() >= LARGE_LEAF_ENTRIES

    def concatenate(self) -> Value:
        """[lanes + 1, …]: the values of all lanes, then zeros."""
        no_leading_dims = ops.zeros([0], tf.int64)
        tensor, _ = ops.operation(
            "TensorListConcatV2", self.groups, [-1, *self.shape], no_leading_dims, element_dtype=self.leaves.spec.dtype
        )
        return ops.ensure_shape(tensor, [None, *self.shape])

    def value_of_first_lane(self) -> Value:
        """The value of the client in the first lane, [1, …]."""
        return ops.ensure_shape(self.concatenate()[:1], [1, *self.shape])

    def slices(self, lanes: Value) -> Tensors:
        """A tensor [1, …] for each of some lanes, as views of the groups' tensors.

        Args:
            lanes: int64 [n], n static: positions among the lanes.
        """
        return _slices(self.groups, lanes, self.lanes.width, self.leaves.spec.dtype, self.shape)

    def keep_alive_until(self, total: Value) -> Value:
        """The total; the groups' tensors stay in memory until it is computed.

        AddN would otherwise reuse the buffer of an input that has no other reference, start with that input, and so
        change the order of the sum.

        Args:
            total: a sum of slices of the groups' tensors.
        """
        with ordered_behind(total):
            reference = ops.operation("TensorListLength", self.groups)
        with ordered_behind(reference):
            return ops.identity(total)


@attrs.frozen
class FactoredContribution:
    """The factors of one leaf, a matrix [n, m], of the lanes of a call.

    Letters: r is the number of rows of a client's factors, whose product left^T right is its matrix.

    Args:
        leaves: the leaf.
        lefts, rights: TensorLists of factors, [width, r, n] and [width, r, m] for each group, then factors without
            rows.
        lanes: the lanes of these groups.
        joined: the sum of a block is one product of the factors of all its clients; else their products are added.
        rows: int64 [lanes + 1]: number of rows of each lane's factors, behind which there are zeros; 0 at the end,
            for absent clients. None: all rows count.
        joined_rows: rows to which the joined factors are padded; 0 for as many as the clients have.
    """

    leaves: PackedLeaves
    lefts: Value
    rights: Value
    lanes: Lanes
    joined: bool = False
    rows: Value | None = None
    joined_rows: int = 0

    def value_of_first_lane(self) -> Value:
        """The matrix of the client in the first lane, [1, n, m]."""
        total = self._sum(ops.zeros([1], tf.int64))
        return (ops.transpose(total) if self._is_transposed else total)[None]

    def factors_of_first_lane(self) -> tuple[Value, Value]:
        """The factors [1, r, n] and [1, r, m] of the client in the first lane."""
        return self._join_factors(ops.zeros([1], tf.int64))

    def block_sums(self, lane_of: Value) -> Value:
        """The sum of the matrices of each block's clients, in the order of their indices: [blocks, n, m].

        Args:
            lane_of: int64 [blocks, block]: the lane of each client, negative for absent clients.
        """
        blocks = int(lane_of.shape[0])
        sums, shape = self._list_of_blocks(lane_of)
        stack = ops.operation("TensorListStack", sums, shape, element_dtype=tf.float32, num_elements=blocks)
        return ops.matrix_transpose(stack) if self._is_transposed else stack

    def sum_of_blocks(self, lane_of: Value) -> Value:
        """The sum of all blocks' sums, added in the tree of merges: [n, m]. Blocks without clients count as zeros.

        The sums are added pairwise, without stacking them first.

        Args:
            lane_of: int64 [blocks, block]: the lane of each client, negative for absent clients.
        """
        blocks = int(lane_of.shape[0])
        if blocks == 1:
            level = [self._sum(self.lanes.positions(lane_of[0]))]
        else:
            sums, shape = self._list_of_blocks(lane_of)
            level = [
                ops.operation("TensorListGetItem", sums, i, shape, element_dtype=tf.float32) for i in range(blocks)
            ]
        while len(level) > 1:
            level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
        return ops.transpose(level[0]) if self._is_transposed else level[0]

    def _list_of_blocks(self, lane_of: Value) -> tuple[Value, list[int]]:
        """(TensorList with the sum of each block's clients, maybe transposed; the shape of a sum).

        At most `PARALLEL_BLOCKS` products are in memory at a time. Blocks without clients are skipped: an element that
        was not set reads as zeros.
        """
        blocks, (n, m) = int(lane_of.shape[0]), self.leaves.spec.shape
        lanes = self.lanes.positions(lane_of)
        used_blocks = ops.where(ops.reduce_any(lane_of >= 0, 1))[:, 0]
        sum_block = function_of_number(lambda block_number: [self._sum(ops.gather(lanes, block_number))])

        def write(i: Value, sums: Value) -> tuple[list[Value], None]:
            """Writes the sum of the i-th used block."""
            block_number = ops.gather(used_blocks, i)
            (total,) = sum_block(block_number)
            return [ops.operation("TensorListSetItem", sums, ops.cast(block_number, tf.int32), total)], None

        shape = [m, n] if self._is_transposed else [n, m]
        empty = reserve_list(ops.constant(blocks), shape, tf.float32)
        (sums,) = scan(write, ops.size(used_blocks, tf.int64), [empty], parallel_iterations=PARALLEL_BLOCKS)
        return sums, shape

    @property
    def _is_transposed(self) -> bool:
        """Whether sums are computed transposed: a kernel's inner loop runs over the longer side."""
        n, m = self.leaves.spec.shape
        return not self.joined and m < n

    def _sum(self, lanes: Value) -> Value:
        """The sum of the products of some clients' factors, [n, m], or transposed, [m, n].

        The products are added one after the other: each waits for the total before, so that one product is in memory at
        a time.

        Args:
            lanes: int64 [clients], statically many: positions among the lanes.
        """
        if self.joined:
            return joined_product(*self._join_factors(lanes), self.joined_rows)[0]
        lefts, rights = (self._factors(side, lanes) for side in (0, 1))
        if self._is_transposed:
            lefts, rights = rights, lefts
        total = None
        for left, right in zip(lefts, rights, strict=True):
            with ordered_behind(*([] if total is None else [total])):
                product = product_of_factors(left, right)[0]
            total = product if total is None else total + product
        assert total is not None  # a block has clients
        return total

    def _join_factors(self, lanes: Value) -> tuple[Value, Value]:
        """The factors of all given lanes behind one another, as one pair: [1, rows, n] and [1, rows, m]."""
        left, right = (ops.concat(self._factors(side, lanes), 1) for side in (0, 1))
        return left, right

    def _factors(self, side: int, lanes: Value) -> Tensors:
        """The factors of each of the given lanes, [1, r, n] or [1, r, m].

        Args:
            side: 0 for left factors, 1 for right ones.
        """
        groups, columns = (self.lefts, self.rights)[side], self.leaves.spec.shape[side]  # n or m
        if self.rows is None:
            return _slices(groups, lanes, self.lanes.width, tf.float32, [None, columns])
        return _first_rows(groups, lanes, self.lanes.width, columns, ops.gather(self.rows, lanes))


@attrs.frozen
class ChangedRowsContribution(FactoredContribution):
    """The changed rows of one leaf, a table [n, m], of the lanes of a call.

    Args:
        lefts, rights: TensorLists of row numbers, [1, r], and rows, [1, r, m], of each client; then of none.
    """

    def sum_of_blocks(self, lane_of: Value) -> Value:
        """The sum of all blocks' sums, added in the tree of merges: [n, m]. It is dense once, at the end."""
        level = [self._sum_rows(lanes) for lanes in ops.unstack(self.lanes.positions(lane_of), lane_of.shape[0])]
        while len(level) > 1:
            level = [_sum_by_row([left, right]) for left, right in zip(level[::2], level[1::2], strict=True)]
        rows, values = level[0]
        return ops.unsorted_segment_sum(values, rows, self.leaves.spec.shape[0])

    def _sum(self, lanes: Value) -> Value:
        """The sum of the tables of some clients, [n, m]."""
        rows, values = self._sum_rows(lanes)
        return ops.unsorted_segment_sum(values, rows, self.leaves.spec.shape[0])

    def _sum_rows(self, lanes: Value) -> tuple[Value, Value]:
        """The sum of the changed rows of some clients, in their order: numbers [r] and rows [r, m]."""
        width, size = self.lanes.width, self.leaves.spec.shape[1]
        rows = _slices(self.lefts, lanes, width, tf.int64, [None])
        values = _slices(self.rights, lanes, width, self.leaves.spec.dtype, [None, size])
        return _sum_by_row([(r[0], v[0]) for r, v in zip(rows, values, strict=True)])

    @property
    def _is_transposed(self) -> bool:
        return False


def _sum_by_row(tables: Sequence[tuple[Value, Value]]) -> tuple[Value, Value]:
    """The sum of tables of changed rows: (the distinct numbers [r] of all tables, the sum of their rows [r, m]).

    Args:
        tables: of each table the numbers [r] and the rows [r, m], added in this order.
    """
    numbers, rows = (ops.concat(parts, 0) for parts in zip(*tables, strict=True))
    distinct, positions = ops.operation("Unique", numbers, out_idx=tf.int32)
    return distinct, ops.unsorted_segment_sum(rows, positions, ops.size(distinct))


Contribution: TypeAlias = ClientContribution | FactoredContribution


def joined_product(left: Value, right: Value, rows: int) -> Value:
    """left^T right, [1, n, m], of joined factors [1, r, n] and [1, r, m].

    Args:
        rows: number of rows to which zeros are appended first, so that other calls' padding decides no bits; 0
            appends none.
    """
    if rows:
        paddings: ops.Rows = [[0, 0], [0, rows - ops.shape(left)[1]], [0, 0]]
        left, right = ops.pad(left, paddings), ops.pad(right, paddings)
    return product_of_factors(left, right)


def _slices(groups: Value, lanes: Value, width: int, dtype: tf.DType, shape: Sequence) -> Tensors:
    """A tensor [1, …] for each of some lanes, as views of the tensors of their groups.

    Args:
        groups: TensorList of tensors [width, …].
        lanes: int64 [n], n static: positions among the lanes.
        shape: of one client's value; None for an unknown size.
    """
    sizes = [-1 if s is None else s for s in shape]
    begins = ops.unstack(ops.pad((lanes % width)[:, None], [[0, 0], [0, len(sizes)]]))  # [lane in the group, 0, …]
    size = ops.constant([1, *sizes], tf.int64)
    views = []
    for group, begin in zip(_group_tensors(groups, lanes, width, dtype, shape), begins, strict=True):
        views.append(ops.operation("Slice", group, begin, size))
        views[-1].set_shape([1, *shape])
    return views


def _first_rows(groups: Value, lanes: Value, width: int, columns: int, rows: Value) -> Tensors:
    """The first rows of the factors of each of some lanes, [1, rows, columns], as views of their groups' tensors.

    TensorFlow slices without a copy along the leading axis only. So the lanes and rows of a group are first reshaped
    to one axis, along which the rows of a lane are a slice.

    Args:
        groups: TensorList of tensors [width, r, columns].
        lanes: int64 [n], n static: positions among the lanes.
        rows: int64 [n], the number of rows that are taken of each lane.
    """
    lane_numbers, row_counts = ops.unstack(lanes % width), ops.unstack(rows, lanes.shape[0])
    views = []
    for group, lane_number, row_count in zip(
        _group_tensors(groups, lanes, width, tf.float32, [None, columns]), lane_numbers, row_counts, strict=True
    ):
        begin = lane_number * ops.shape(group, tf.int64)[1]
        view = ops.reshape(group, [-1, columns])[begin : begin + row_count]
        views.append(view[None])
    return views


def _group_tensors(groups: Value, lanes: Value, width: int, dtype: tf.DType, shape: Sequence) -> Tensors:
    """The tensor [width, …] of the group of each of some lanes; arguments as in `_slices`."""
    sizes = [-1, *(-1 if s is None else s for s in shape)]
    return [
        ops.operation("TensorListGetItem", groups, number, sizes, element_dtype=dtype)
        for number in ops.unstack(ops.cast(lanes // width, tf.int32))
    ]


GroupFunction: TypeAlias = Callable[[Value], Sequence[Value | Factors]]
"""Maps the first lane of a group (int64) to the leaves [width, …], or factors, of its clients' contributions."""


def contributions_by_group(
    groups: Sequence[tuple[GroupFunction, Value]],
    width: int,
    specs: Sequence[tf.TensorSpec],
    *,
    parallel: int,
    joined: bool = False,
    joined_rows: int = 0,
    rows: Value | None = None,
) -> list[Contribution]:
    """Runs the groups of a call and stores the contributions of their clients.

    Each function is traced once, which tells the kind of each packed leaf in its groups: a tensor or factors. For each
    leaf and kind lists are then reserved, and one loop over the groups of each function fills them.

    Example: the first of two functions returns a leaf as a tensor, the second as factors. The leaf then has two
    contributions: that of the first function's lanes, and that of the second's.

    Args:
        groups: functions of a group, each with the number of groups (int64) for which it is called; the groups of
            one function follow those of the function before.
        width: lanes of a group.
        specs: of the leaves of one client's contribution.
        parallel: groups that may run in parallel.
        joined, joined_rows: as in `FactoredContribution`.
        rows: int64 [lanes]: rows of the factors of each lane; None: all.
    """
    packed = packed_leaves(specs)
    traced = [_trace_group(group, packed) for group, _ in groups]
    group_counts = [group_count for _, group_count in groups]
    stores = _reserve_stores(packed, [leaf_kinds for _, leaf_kinds in traced], group_counts)
    first_group = ops.zeros([], tf.int64)
    for (function, leaf_kinds), group_count in zip(traced, group_counts, strict=True):
        function_stores = [stores[key] for key in enumerate(leaf_kinds)]  # keys: (index of a packed leaf, kind)
        lists = [(list_, store.first_group) for store in function_stores for list_ in store.lists]
        filled = iter(write_results(function, group_count, lists, width, first_group, parallel_iterations=parallel))
        for store in function_stores:
            store.lists = [next(filled) for _ in store.lists]
        first_group += group_count
    # Last leaf first, factors before a tensor. The order decides no bits, as a leaf has at most two contributions.
    keys = sorted(stores, key=lambda key: (key[0], key[1] != TENSOR), reverse=True)
    contributions = [stores[key].contribution(width) for key in keys]
    return [
        attrs.evolve(c, joined=joined, joined_rows=joined_rows, rows=None if rows is None else c.lanes.select(rows))
        if isinstance(c, FactoredContribution)
        else c
        for c in contributions
    ]


TENSOR, FACTORS, CHANGED_ROWS = "tensor", "factors", "changed rows"
"""Kinds of a packed leaf in a group: one tensor, factors (left, right), or changed rows (numbers, rows)."""


def _kind(leaf: Value | Factors) -> str:
    """The kind of a leaf; numbers of changed rows, [1, r], have one axis less than left factors."""
    if not isinstance(leaf, tuple):
        return TENSOR
    return FACTORS if leaf[0].shape.rank == 3 else CHANGED_ROWS


def _reserve_stores(
    packed: list[PackedLeaves], kinds: list[list[str]], group_counts: Tensors
) -> "dict[tuple[int, str], _Store]":
    """(index of a packed leaf, kind) -> the lists that hold the leaf for the groups that have it in that kind.

    Args:
        kinds: for each function of groups, the kind of each packed leaf.
        group_counts: for each function, how many groups it computes, int64.
    """
    first_group = ops.zeros([], tf.int64)
    stores: dict[tuple[int, str], _Store] = {}
    for leaf_kinds, group_count in zip(kinds, group_counts, strict=True):
        for i, kind in enumerate(leaf_kinds):
            stores.setdefault((i, kind), _Store(packed[i], kind, first_group)).group_counts.append(group_count)
        first_group += group_count
    for store in stores.values():
        store.reserve()
    return stores


def _trace_group(group: GroupFunction, packed: list[PackedLeaves]) -> tuple[Callable, list[str]]:
    """(traced function from the first lane of a group to the tensors that are stored of it, kind of each packed leaf).

    A leaf that groups have as factors stands alone in its `PackedLeaves`: the first of its positions is the only one.

    Args:
        packed: the stored tensors of a contribution.
    """
    leaf_kinds: list[str] = []  # known once the function is traced

    def compute_contribution(first_lane: Value) -> Tensors:
        """The tensors that are stored of a group's clients: packed leaves, and factors one by one."""
        leaves = group(first_lane)
        first_leaves = [leaves[p.positions[0]] for p in packed]
        leaf_kinds[:] = map(_kind, first_leaves)
        tensors_of_group: list[Value] = []
        for p, leaf in zip(packed, first_leaves, strict=True):
            tensors_of_group.extend(leaf if isinstance(leaf, tuple) else [p.pack(leaves)])
        return tensors_of_group

    return function_of_number(compute_contribution), leaf_kinds


@attrs.define
class _Store:
    """TensorLists that hold a packed leaf for the groups that have it in one kind.

    Args:
        leaves: the packed leaf.
        kind: `TENSOR`, `FACTORS` or `CHANGED_ROWS`.
        first_group: int64, index of the first of these groups.
        group_counts: int64, how many of these groups each function computes.
        lists: one TensorList, or two, for the two tensors of the kind.
    """

    leaves: PackedLeaves
    kind: str
    first_group: Value
    group_counts: Tensors = attrs.field(factory=list)
    lists: Tensors = attrs.field(factory=list)

    @property
    def _tensors(self) -> list[tuple[list[int], tf.DType]]:
        """(shape, dtype) of each tensor that is stored of one client; -1 for its number of rows."""
        shape, dtype = [*self.leaves.spec.shape], self.leaves.spec.dtype
        if self.kind == CHANGED_ROWS:
            return [([-1], tf.int64), ([-1, shape[1]], dtype)]
        return [(shape, dtype)] if self.kind == TENSOR else [([-1, size], dtype) for size in shape]

    def reserve(self) -> None:
        """Creates the lists, with an element for each group and one for absent clients."""
        last = ops.cast(ops.add_n(self.group_counts), tf.int32)
        self.lists = [reserve_list(last + 1, [-1, *shape], dtype) for shape, dtype in self._tensors]

    def contribution(self, width: int) -> Contribution:
        """The contribution of these groups, once their results are in the lists.

        Absent clients read the element behind those of the groups: zeros, or factors without rows.

        Args:
            width: lanes of a group.
        """
        groups = ops.add_n(self.group_counts)
        index, lists = ops.cast(groups, tf.int32), []
        for list_, (shape, dtype) in zip(self.lists, self._tensors, strict=True):
            absent_value = ops.zeros([1, *(max(s, 0) for s in shape)], dtype)  # 0 rows where their number is -1
            lists.append(ops.operation("TensorListSetItem", list_, index, absent_value))
        lanes = Lanes(width, self.first_group * width, groups * width)
        if self.kind == TENSOR:
            return ClientContribution(self.leaves, lists[0], lanes)
        left, right = lists
        factored = ChangedRowsContribution if self.kind == CHANGED_ROWS else FactoredContribution
        return factored(self.leaves, left, right, lanes)


def reserve_list(size: Value, shape: list, dtype: tf.DType) -> Value:
    """TensorList of `size` elements of a shape."""
    return ops.operation("TensorListReserve", shape, size, element_dtype=dtype)


def write_results(
    fn: Callable[[Value], Tensors],
    count: Value,
    lists: Sequence[tuple[Value, Value | int]],
    step: int = 1,
    first: Value | int = 0,
    *,
    parallel_iterations: int,
) -> Tensors:
    """TensorLists with the results of fn(i * step), for `count` numbers i from the first one on.

    Args:
        fn: int64 -> a tensor for each list.
        count: int64, how many numbers.
        lists: each with the number i whose result is its first element.
        step: distance of the numbers that `fn` gets, such as the lanes of a group.
        first: int64, the first number.
        parallel_iterations: calls that may run in parallel.
    """
    begins = [begin for _, begin in lists]

    def write(number: Value, *lists_so_far: Value) -> tuple[list[Value], None]:
        """The lists after one call of `fn`, whose results become elements of them."""
        number += first
        next_lists = []
        for list_, begin, tensor in zip(lists_so_far, begins, fn(number * step), strict=True):
            index = ops.cast(number - begin, tf.int32)
            next_lists.append(ops.operation("TensorListSetItem", list_, index, tensor))
        return next_lists, None

    initial_lists = [list_ for list_, _ in lists]
    return scan(write, ops.cast(count, tf.int64), initial_lists, parallel_iterations=parallel_iterations)

"""Client contributions: the values that the clients of a call give to the fold, stored group by group.

With 10 clients in groups of 4 (3 groups, 12 lanes) and the contribution <float32[5], float32, float32, float32[7,5]>,
whose last leaf the clients have as factors of r rows:

    leaves 0, 1 and 2    TensorList of 3 tensors [4, 7], one for each group, and zeros [1, 7]: scalars and small vectors
                         of a dtype are stored side by side, scalars first
    leaf 3, float32[7,5] TensorLists of 3 tensors [4, r, 7] and [4, r, 5], where r differs between groups, and of
                         factors without rows, [1, 0, 7] and [1, 0, 5]

Left factors that are rows of the data are not stored: they are an input of `DataRows`.

The zeros and the factors without rows stand in for absent clients, which read lane 12.

Where some groups have a leaf as factors and others as a matrix, it has both: two contributions, each for its own lanes.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import tensorflow as tf

from fedcore.graphs.batched.known_inputs import DataRows, KnownInput
from fedcore.graphs.batched.low_rank import product_of_factors
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import function_of_number, scan
from fedcore.graphs.dataflow.graph import Value, ordered_behind

Tensors = list[Value]
Factors: TypeAlias = tuple[Any, Value]
"""(left [K, r, n], right [K, r, m]) of matrices left^T right; the left one may be a `KnownInput` of the data's rows."""

PARALLEL_GROUPS = 4
"""Groups of a call that may run in parallel; this uses TensorFlow's threads where a worker has no more calls."""

PARALLEL_GROUPS_OF_LOOPS = 6
"""The same for a stage whose graphs have loops: few of a group's operations can run at a time, and all take long."""

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
        """[K, …] of the leaves [K, …] of the whole contribution."""
        if len(self.positions) == 1:
            return leaves[self.positions[0]]
        scalars = len(self.positions) - len(self.lengths)
        parts = [ops.stack([leaves[i] for i in self.positions[:scalars]], 1)] if scalars else []
        parts += [leaves[i] for i in self.positions[scalars:]]
        return parts[0] if len(parts) == 1 else ops.concat(parts, 1)

    def unpack(self, tensor: Value) -> dict[int, Value]:
        """Position -> leaf [K, …] of a tensor [K, …]."""
        if len(self.positions) == 1:
            return {self.positions[0]: tensor}
        scalars = len(self.positions) - len(self.lengths)
        parts = ops.split(tensor, [scalars, *self.lengths], 1) if self.lengths else [tensor]
        return dict(zip(self.positions, [*ops.unstack(parts[0], scalars, 1), *parts[1:]], strict=True))


def packed_leaves(specs: Sequence[tf.TensorSpec]) -> list[PackedLeaves]:
    """Partition of a contribution's leaves: scalars and small vectors of a dtype together, others each by itself."""
    joined: dict[object, list[int]] = {}
    for i, s in enumerate(specs):
        joined.setdefault(s.dtype.name if _is_small(s.shape) else i, []).append(i)
    packed = []
    for of in joined.values():
        of = sorted(of, key=lambda i: specs[i].shape.rank)
        lengths = tuple(int(specs[i].shape[0]) for i in of if specs[i].shape.rank == 1)
        size = len(of) - len(lengths) + sum(lengths)
        spec = specs[of[0]] if len(of) == 1 else tf.TensorSpec([size], specs[of[0]].dtype)
        packed.append(PackedLeaves(tuple(of), spec, lengths))
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
        """The positions of lanes (int64) among these; `count` for the lanes of absent clients and for all others."""
        position = lane_of - self.first
        return ops.where((lane_of >= 0) & (position >= 0) & (position < self.count), position, self.count)

    def of(self, numbers: Value | None) -> Any:
        """Numbers of these lanes, from those of all lanes of the call, then 0."""
        return None if numbers is None else ops.pad(numbers[self.first : self.first + self.count], [[0, 1]])


@attrs.frozen
class ClientContribution:
    """The packed leaves of the lanes of a call.

    Args:
        leaves: the leaves that it holds.
        groups: TensorList of tensors [width, …], one for each group, then zeros [1, …].
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
        return self.shape.num_elements() >= LARGE_LEAF_ENTRIES

    def concatenated(self) -> Value:
        """[lanes + 1, …]: the values of all lanes, then zeros."""
        no_leading_dims = ops.zeros([0], tf.int64)
        tensor, _ = ops.operation(
            "TensorListConcatV2", self.groups, [-1, *self.shape], no_leading_dims, element_dtype=self.leaves.spec.dtype
        )
        return ops.ensure_shape(tensor, [None, *self.shape])

    def of_first_lane(self) -> Value:
        """[1, …]."""
        return ops.ensure_shape(self.concatenated()[:1], [1, *self.shape])

    def slices(self, lanes: Value) -> Tensors:
        """A tensor [1, …] for each of the positions of lanes (int64 [n], n static), as views of the groups' tensors."""
        return _slices(self.groups, lanes, self.lanes.width, self.leaves.spec.dtype, self.shape)

    def keep_alive_until(self, total: Value) -> Value:
        """The total; the groups stay alive until it is computed.

        AddN would otherwise reuse the buffer of an input that has no other reference, start with that input, and so
        change the order of the sum.
        """
        with ordered_behind(total):
            reference = ops.operation("TensorListLength", self.groups)
        with ordered_behind(reference):
            return ops.identity(total)


@attrs.frozen
class FactoredContribution:
    """The factors of one leaf, a matrix, of the lanes of a call.

    Args:
        leaves: the leaf.
        lefts, rights: TensorLists of factors, one for each group, then factors without rows. Left factors may instead
            be an input that is computed from `data`.
        joined: the sum of a block is one product of the factors of all its clients; else their products are added.
        rows: int64 [lanes + 1]: the rows of the factors of each lane, behind which there are zeros, then 0. None: all.
        joined_rows: rows of joined factors; 0 for as many as the clients have.
        data: the rows of the lanes, then of nothing.
    """

    leaves: PackedLeaves
    lefts: Any  # Value | KnownInput
    rights: Value
    lanes: Lanes
    joined: bool = False
    rows: Value | None = None
    joined_rows: int = 0
    data: DataRows | None = None

    def of_first_lane(self) -> Value:
        """[1, n, m]."""
        total = self._sum(ops.zeros([1], tf.int64))
        return (ops.transpose(total) if self._is_transposed else total)[None]

    def factors_of_first_lane(self) -> tuple[Value, Value]:
        return self._joined_factors(ops.zeros([1], tf.int64))

    def block_sums(self, lane_of: Value) -> Value:
        """[blocks, n, m]: the sum of each block's clients, in the order of their indices.

        Args:
            lane_of: int64 [blocks, block]: the lane of each client, negative for absent clients.
        """
        blocks = int(lane_of.shape[0])
        sums, shape = self._list_of_blocks(lane_of)
        stack = ops.operation("TensorListStack", sums, shape, element_dtype=tf.float32, num_elements=blocks)
        return ops.matrix_transpose(stack) if self._is_transposed else stack

    def sum_of_blocks(self, lane_of: Value) -> Value:
        """[n, m]: the sum of the sums of blocks, added in the tree of merges; those without clients are zeros."""
        blocks = int(lane_of.shape[0])
        if blocks == 1:
            row = [self._sum(self.lanes.positions(lane_of[0]))]
        else:
            sums, shape = self._list_of_blocks(lane_of)
            row = [ops.operation("TensorListGetItem", sums, i, shape, element_dtype=tf.float32) for i in range(blocks)]
        while len(row) > 1:
            row = [left + right for left, right in zip(row[::2], row[1::2], strict=True)]
        return ops.transpose(row[0]) if self._is_transposed else row[0]

    def _list_of_blocks(self, lane_of: Value) -> tuple[Value, list[int]]:
        """A TensorList with the sum of each block's clients, perhaps transposed, and the shape of a sum.

        No more than `PARALLEL_BLOCKS` products are in memory.
        """
        blocks, (n, m) = int(lane_of.shape[0]), self.leaves.spec.shape
        lanes = self.lanes.positions(lane_of)
        used = ops.where(ops.reduce_any(lane_of >= 0, 1))[:, 0]
        of_block = function_of_number(lambda number: [self._sum(ops.gather(lanes, number))])

        def write(i, sums):
            number = ops.gather(used, i)
            (total,) = of_block(number)
            return [ops.operation("TensorListSetItem", sums, ops.cast(number, tf.int32), total)], None

        shape = [m, n] if self._is_transposed else [n, m]
        empty = reserve_list(ops.constant(blocks), shape, tf.float32)
        (sums,) = scan(write, ops.size(used, tf.int64), [empty], parallel_iterations=PARALLEL_BLOCKS)
        return sums, shape

    @property
    def _is_transposed(self) -> bool:
        """Whether sums are computed transposed: a kernel's inner loop runs over the longer side."""
        n, m = self.leaves.spec.shape
        return not self.joined and m < n

    def _sum(self, lanes: Value) -> Value:
        """[n, m], or transposed: the sum of the products of the clients at positions of lanes (int64 [n], n static)."""
        if self.joined:
            return joined_product(*self._joined_factors(lanes), self.joined_rows)[0]
        lefts, rights = (self._factors(side, lanes) for side in (0, 1))
        total = None
        for left, right in zip(rights, lefts, strict=True) if self._is_transposed else zip(lefts, rights, strict=True):
            with ordered_behind(*([] if total is None else [total])):
                product = product_of_factors(left, right)[0]
            total = product if total is None else total + product
        assert total is not None
        return total

    def _joined_factors(self, lanes: Value) -> tuple[Value, Value]:
        """([1, r, n], [1, r, m]): the factors of all lanes."""
        right = ops.concat(self._factors(1, lanes), 1)
        if not isinstance(self.lefts, KnownInput):
            return ops.concat(self._factors(0, lanes), 1), right
        assert self.data is not None
        assert self.rows is not None
        return self.data.of(self.lefts, lanes, ops.gather(self.rows, lanes)), right

    def _factors(self, side: int, lanes: Value) -> Tensors:
        """The left (0) or right (1) factors of each of the lanes, [1, r, …]."""
        groups, columns = (self.lefts, self.rights)[side], self.leaves.spec.shape[side]
        if self.rows is None:
            return _slices(groups, lanes, self.lanes.width, tf.float32, [None, columns])
        return _first_rows(groups, lanes, self.lanes.width, columns, ops.gather(self.rows, lanes))


Contribution: TypeAlias = ClientContribution | FactoredContribution


def joined_product(left: Value, right: Value, rows: int) -> Value:
    """left^T right, [1, n, m], of joined factors [1, r, …], with zeros behind them up to `rows` if that is not 0."""
    if rows:
        missing = [[0, 0], [0, rows - ops.shape(left)[1]], [0, 0]]
        left, right = ops.pad(left, missing), ops.pad(right, missing)
    return product_of_factors(left, right)


def _slices(groups: Value, lanes: Value, width: int, dtype: tf.DType, shape: Sequence) -> Tensors:
    """A tensor [1, …] for each of the lanes (int64 [n], n static), as views of the tensors [width, …] of a list."""
    sizes = [-1 if s is None else s for s in shape]
    begins = ops.unstack(ops.pad((lanes % width)[:, None], [[0, 0], [0, len(sizes)]]))
    size = ops.constant([1, *sizes], tf.int64)
    views = []
    for group, begin in zip(_groups_of(groups, lanes, width, dtype, shape), begins, strict=True):
        views.append(ops.operation("Slice", group, begin, size))
        views[-1].set_shape([1, *shape])
    return views


def _first_rows(groups: Value, lanes: Value, width: int, columns: int, rows: Value) -> Tensors:
    """The first rows of each of the lanes, [1, rows, columns]; lanes and rows are int64 [n], n static."""
    numbers, counts = ops.unstack(lanes % width), ops.unstack(rows, lanes.shape[0])
    views = []
    for group, number, count in zip(
        _groups_of(groups, lanes, width, tf.float32, [None, columns]), numbers, counts, strict=True
    ):
        begin = number * ops.shape(group, tf.int64)[1]
        view = ops.reshape(group, [-1, columns])[begin : begin + count]  # in place: rows of one lane are no view
        views.append(view[None])
    return views


def _groups_of(groups: Value, lanes: Value, width: int, dtype: tf.DType, shape: Sequence) -> Tensors:
    """For each of the lanes the tensor [width, …] of its group."""
    sizes = [-1, *(-1 if s is None else s for s in shape)]
    return [
        ops.operation("TensorListGetItem", groups, number, sizes, element_dtype=dtype)
        for number in ops.unstack(ops.cast(lanes // width, tf.int32))
    ]


Group: TypeAlias = Callable[[Value], Sequence[Value | Factors]]
"""Maps the first lane of a group (int64) to leaves [width, …], or factors, of its clients' contributions."""


def contributions_by_group(
    groups: Sequence[tuple[Group, Value]],
    width: int,
    specs: Sequence[tf.TensorSpec],
    *,
    parallel: int,
    joined: bool = False,
    joined_rows: int = 0,
    rows: Value | None = None,
    data: DataRows | None = None,
) -> list[Contribution]:
    """Runs the groups of a call and stores the contributions of their clients.

    Args:
        groups: functions and for how many groups, int64, each of them is called, one after the other.
        specs: of the leaves of one client's contribution.
        parallel: groups that may run in parallel.
        joined, joined_rows: as in `FactoredContribution`.
        rows: int64 [lanes]: rows of the factors of each lane; None: all.
        data: the rows of the lanes; None if no left factor is an input.
    """
    packed = packed_leaves(specs)
    kinds: list[list[_Kind]] = []  # for each function, of the packed leaves
    functions = [_packing(group, packed, kinds) for group, _ in groups]
    first = ops.zeros([], tf.int64)
    stores: dict[tuple[int, _Kind], _Store] = {}  # by packed leaf and kind
    for of_leaves, (_, number) in zip(kinds, groups, strict=True):
        for i, kind in enumerate(of_leaves):
            stores.setdefault((i, kind), _Store(packed[i], kind, first)).numbers.append(number)
        first += number
    for store in stores.values():
        store.reserve()
    first = ops.zeros([], tf.int64)
    for function, of_leaves, (_, number) in zip(functions, kinds, groups, strict=True):
        used = [stores[key] for key in enumerate(of_leaves)]
        lists = [(list_, store.first) for store in used for list_ in store.lists]
        filled = written(function, number, lists, width, first, parallel_iterations=parallel)
        for store in used:
            store.lists, filled = filled[: len(store.lists)], filled[len(store.lists) :]
        first += number
    in_order = sorted(stores, key=lambda key: (key[0], key[1] is not False), reverse=True)
    found = [stores[key].contribution(width) for key in in_order]
    return [
        attrs.evolve(
            c,
            joined=joined,
            joined_rows=joined_rows,
            rows=c.lanes.of(rows),
            data=None if data is None else attrs.evolve(data, begins=c.lanes.of(data.begins)),
        )
        if isinstance(c, FactoredContribution)
        else c
        for c in found
    ]


_Kind: TypeAlias = bool | KnownInput
"""What a leaf of a group is: a tensor (False), factors (True), or right factors, whose left ones are an input."""


def _packing(group: Group, packed: list[PackedLeaves], kinds: list[list[_Kind]]) -> Callable:
    """The traced function of a group's packed leaves; appends what each of them is."""

    def contribution(first_lane: Value) -> Tensors:
        leaves = group(first_lane)
        of_leaves = [leaves[p.positions[0]] for p in packed]
        found[:] = map(_kind, of_leaves)
        parts: list[Value] = []
        for p, leaf in zip(packed, of_leaves, strict=True):
            tensors = leaf if isinstance(leaf, tuple) else [p.pack(leaves)]
            parts.extend(t for t in tensors if not isinstance(t, KnownInput))
        return parts

    found: list[_Kind] = []
    function = function_of_number(contribution)
    kinds.append(found)
    return function


def _kind(leaf: Value | Factors) -> _Kind:
    if isinstance(leaf, tuple):
        return leaf[0] if isinstance(leaf[0], KnownInput) else True
    return False


@attrs.define
class _Store:
    """TensorLists with a packed leaf of the groups that have it as a tensor, or of those that have it as factors.

    Args:
        first: int64, number of the first of these groups.
        numbers: int64, how many groups each function computes.
    """

    leaves: PackedLeaves
    kind: _Kind
    first: Value
    numbers: Tensors = attrs.field(factory=list)
    lists: Tensors = attrs.field(factory=list)

    @property
    def _shapes(self) -> list[list[int]]:
        """Shapes of the tensors of one client; -1 for a number of rows."""
        shape = [*self.leaves.spec.shape]
        if self.kind is False:
            return [shape]
        return [[-1, size] for size in (shape[1:] if isinstance(self.kind, KnownInput) else shape)]

    def reserve(self) -> None:
        last = ops.cast(ops.add_n(self.numbers), tf.int32)
        dtype = self.leaves.spec.dtype
        self.lists = [reserve_list(last + 1, [-1, *shape], dtype) for shape in self._shapes]

    def contribution(self, width: int) -> "Contribution":
        groups = ops.add_n(self.numbers)
        lists = []
        for list_, shape in zip(self.lists, self._shapes, strict=True):
            nothing = ops.zeros([1, *(max(s, 0) for s in shape)], self.leaves.spec.dtype)
            index = ops.cast(groups, tf.int32)
            lists.append(ops.operation("TensorListSetItem", list_, index, nothing))
        lanes = Lanes(width, self.first * width, groups * width)
        if self.kind is False:
            return ClientContribution(self.leaves, lists[0], lanes)
        left, right = [self.kind, *lists] if isinstance(self.kind, KnownInput) else lists
        return FactoredContribution(self.leaves, left, right, lanes)


def reserve_list(size: Value, shape: list, dtype: tf.DType) -> Value:
    """TensorList of `size` elements of a shape."""
    return ops.operation("TensorListReserve", shape, size, element_dtype=dtype)


def written(
    fn: Callable,
    count: Value,
    lists: Sequence[tuple[Value, Value | int]],
    step: int = 1,
    first: Value | int = 0,
    *,
    parallel_iterations: int,
) -> Tensors:
    """The lists with the results of fn(i * step), for `count` numbers i from the first one on.

    Args:
        lists: each with the number i whose result is its first element.
    """
    begins = [begin for _, begin in lists]

    def write(number, *before):
        number += first
        after = []
        for list_, begin, tensor in zip(before, begins, fn(number * step), strict=True):
            index = ops.cast(number - begin, tf.int32)
            after.append(ops.operation("TensorListSetItem", list_, index, tensor))
        return after, None

    given = [list_ for list_, _ in lists]
    return scan(write, ops.cast(count, tf.int64), given, parallel_iterations=parallel_iterations)

"""Client contributions: the values that the clients of a call give to the fold, stored group by group.

With 10 clients in groups of 4 (3 groups, 12 lanes) and the contribution <float32[5], float32, float32, float32[7,5]>,
whose last leaf the clients have as factors of r rows:

    leaves 0, 1 and 2    TensorList of 3 tensors [4, 7], one for each group, and zeros [1, 7]: scalars and small vectors
                         of a dtype are stored side by side, scalars first
    leaf 3, float32[7,5] TensorLists of 3 tensors [4, r, 7] and [4, r, 5], where r differs between groups, and of
                         factors without rows, [1, 0, 7] and [1, 0, 5]

The zeros and the factors without rows stand in for absent clients, which read lane 12.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.batched.counted_loop import counted_loop
from fedcore.graphs.batched.low_rank import product_of_factors

Tensors = list[tf.Tensor]
Factors: TypeAlias = tuple[tf.Tensor, tf.Tensor]
"""(left [K, r, n], right [K, r, m]) of matrices left^T right."""

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

    def pack(self, leaves: Sequence[tf.Tensor]) -> tf.Tensor:
        """[K, …] of the leaves [K, …] of the whole contribution."""
        if len(self.positions) == 1:
            return leaves[self.positions[0]]
        scalars = len(self.positions) - len(self.lengths)
        parts = [tf.stack([leaves[i] for i in self.positions[:scalars]], 1)] if scalars else []
        parts += [leaves[i] for i in self.positions[scalars:]]
        return parts[0] if len(parts) == 1 else tf.concat(parts, 1)

    def unpack(self, tensor: tf.Tensor) -> dict[int, tf.Tensor]:
        """Position -> leaf [K, …] of a tensor [K, …]."""
        if len(self.positions) == 1:
            return {self.positions[0]: tensor}
        scalars = len(self.positions) - len(self.lengths)
        parts = tf.split(tensor, [scalars, *self.lengths], 1) if self.lengths else [tensor]
        return dict(zip(self.positions, [*tf.unstack(parts[0], scalars, 1), *parts[1:]], strict=True))


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
class ClientContribution:
    """The packed leaves of all lanes of a call.

    Args:
        leaves: the leaves that it holds.
        groups: TensorList of tensors [width, …], one for each group, then zeros [1, …].
        width: lanes of a group.
        lanes: int64, number of lanes of all groups; the lane with this number holds zeros.
    """

    leaves: PackedLeaves
    groups: tf.Tensor
    width: int
    lanes: tf.Tensor

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of one client's value."""
        return self.leaves.spec.shape

    @property
    def is_large(self) -> bool:
        return self.shape.num_elements() >= LARGE_LEAF_ENTRIES

    def concatenated(self) -> tf.Tensor:
        """[lanes + 1, …]: the values of all lanes, then zeros."""
        no_leading_dims = tf.zeros([0], tf.int64)
        tensor, _ = tf.raw_ops.TensorListConcatV2(
            input_handle=self.groups,
            element_shape=[-1, *self.shape],
            leading_dims=no_leading_dims,
            element_dtype=self.leaves.spec.dtype,
        )
        return tf.ensure_shape(tensor, [None, *self.shape])

    def of_first_lane(self) -> tf.Tensor:
        """[1, …]."""
        return tf.ensure_shape(self.concatenated()[:1], [1, *self.shape])

    def slices(self, lanes: tf.Tensor) -> Tensors:
        """A tensor [1, …] for each of the lanes (int64 [n], n static), as views of the groups' tensors."""
        return _slices(self.groups, lanes, self.width, self.leaves.spec.dtype, self.shape)

    def keep_alive_until(self, total: tf.Tensor) -> tf.Tensor:
        """The total; the groups stay alive until it is computed.

        AddN would otherwise reuse the buffer of an input that has no other reference, start with that input, and so
        change the order of the sum.
        """
        with tf.control_dependencies([total]):
            reference = tf.raw_ops.TensorListLength(input_handle=self.groups)
        with tf.control_dependencies([reference]):
            return tf.identity(total)


@attrs.frozen
class FactoredContribution:
    """The factors of one leaf, a matrix, of all lanes of a call.

    Args:
        leaves: the leaf.
        lefts, rights: TensorLists of factors, one for each group, then factors without rows.
        width, lanes: as in `ClientContribution`.
    """

    leaves: PackedLeaves
    lefts: tf.Tensor
    rights: tf.Tensor
    width: int
    lanes: tf.Tensor

    def of_first_lane(self) -> tf.Tensor:
        """[1, n, m]."""
        return self._sum(tf.zeros([1], tf.int64))[tf.newaxis]

    def block_sums(self, lane_of: tf.Tensor) -> tf.Tensor:
        """[blocks, n, m]: the sum of each block's clients, in the order of their indices.

        No more than one product of a block is in memory.

        Args:
            lane_of: int64 [blocks, block]: the lane of each client, negative for absent clients.
        """
        blocks, shape = int(lane_of.shape[0]), [*self.leaves.spec.shape]
        lanes = tf.where(lane_of >= 0, lane_of, self.lanes)
        number = tf.range(1, blocks + 1, dtype=tf.int64)
        used = tf.reduce_max(tf.where(tf.reduce_any(lane_of >= 0, 1), number, 0))
        of_block = traced(lambda number: [self._sum(tf.gather(lanes, number))])
        lists = [reserve_list(tf.constant(blocks), shape, tf.float32)]
        (sums,) = written(of_block, used, lists, parallel_iterations=PARALLEL_BLOCKS)
        return tf.raw_ops.TensorListStack(
            input_handle=sums, element_shape=shape, element_dtype=tf.float32, num_elements=blocks
        )

    def _sum(self, lanes: tf.Tensor) -> tf.Tensor:
        """[n, m]: the sum of the products of the lanes (int64 [n], n static), one after the other.

        If m < n, the transposes are computed and added up: a kernel's inner loop runs over the longer side.
        """
        n, m = self.leaves.spec.shape
        lefts = _slices(self.lefts, lanes, self.width, tf.float32, [None, n])
        rights = _slices(self.rights, lanes, self.width, tf.float32, [None, m])
        total = None
        for left, right in zip(lefts, rights, strict=True):
            with tf.control_dependencies([] if total is None else [total]):
                product = product_of_factors(right, left)[0] if m < n else product_of_factors(left, right)[0]
            total = product if total is None else total + product
        return tf.transpose(total) if m < n else total


Contribution: TypeAlias = ClientContribution | FactoredContribution


def _slices(groups: tf.Tensor, lanes: tf.Tensor, width: int, dtype: tf.DType, shape: Sequence) -> Tensors:
    """A tensor [1, …] for each of the lanes (int64 [n], n static), as views of the tensors [width, …] of a list."""
    sizes = [-1 if s is None else s for s in shape]
    numbers = tf.unstack(tf.cast(lanes // width, tf.int32))
    begins = tf.unstack(tf.pad((lanes % width)[:, None], [[0, 0], [0, len(sizes)]]))
    size = tf.constant([1, *sizes], tf.int64)
    views = []
    for number, begin in zip(numbers, begins, strict=True):
        group = tf.raw_ops.TensorListGetItem(
            input_handle=groups, index=number, element_shape=[-1, *sizes], element_dtype=dtype
        )
        views.append(tf.raw_ops.Slice(input=group, begin=begin, size=size))
        views[-1].set_shape([1, *shape])
    return views


def traced(body: Callable) -> tf.types.experimental.ConcreteFunction:
    """The function of a number (int64), as one that loops call: built in place, its operations would be handled in the
    loop's frames.
    """
    return private_api.unordered_function(body, [tf.TensorSpec([], tf.int64)])


def contributions_by_group(
    groups: Sequence[tuple[Callable, tf.Tensor]], width: int, specs: Sequence[tf.TensorSpec], *, parallel: int
) -> list[Contribution]:
    """Runs the groups of a call and stores the contributions of their clients.

    Args:
        groups: functions and for how many groups, int64, each of them is called, one after the other. A function maps
            the first lane of a group (int64) to leaves [width, …], or factors, of its clients' contributions.
        specs: of the leaves of one client's contribution.
        parallel: groups that may run in parallel.
    """
    packed = packed_leaves(specs)
    in_factors: list[bool] = []  # of the packed leaves

    def contribution(first_lane: tf.Tensor, group: Callable) -> Tensors:
        leaves = group(first_lane)
        in_factors[:] = [isinstance(leaves[p.positions[0]], tuple) for p in packed]
        tensors = [
            leaves[p.positions[0]] if factors else (p.pack(leaves),)
            for p, factors in zip(packed, in_factors, strict=True)
        ]
        return [t for of_leaf in tensors for t in of_leaf]

    functions = [traced(functools.partial(contribution, group=group)) for group, _ in groups]
    of_group, count = functions[0], tf.add_n([number for _, number in groups])
    shapes: list[list[int]] = []  # of one client; -1 for a number of rows
    for p, factors in zip(packed, in_factors, strict=True):
        shapes.extend([[-1, size] for size in p.spec.shape] if factors else [[*p.spec.shape]])
    dtypes = [t.dtype for t in of_group.outputs]
    last = tf.cast(count, tf.int32)
    lists = [reserve_list(last + 1, [-1, *shape], d) for shape, d in zip(shapes, dtypes, strict=True)]
    first = tf.zeros([], tf.int64)
    for function, (_, number) in zip(functions, groups, strict=True):
        lists = written(function, number, lists, width, first, parallel_iterations=parallel)
        first += number
    tensors, lanes = [], count * width
    for list_, shape, dtype in zip(lists, shapes, dtypes, strict=True):
        nothing = tf.zeros([1, *(max(s, 0) for s in shape)], dtype)
        tensors.append(tf.raw_ops.TensorListSetItem(input_handle=list_, index=last, item=nothing))
    contributions: list[Contribution] = []
    for p, factors in zip(packed, in_factors, strict=True):
        if factors:
            contributions.append(FactoredContribution(p, tensors.pop(0), tensors.pop(0), width, lanes))
        else:
            contributions.append(ClientContribution(p, tensors.pop(0), width, lanes))
    return contributions


def reserve_list(size: tf.Tensor, shape: list, dtype: tf.DType) -> tf.Tensor:
    """TensorList of `size` elements of a shape."""
    return tf.raw_ops.TensorListReserve(element_shape=shape, num_elements=size, element_dtype=dtype)


def written(
    fn: Callable,
    count: tf.Tensor,
    lists: Tensors,
    step: int = 1,
    first: tf.Tensor | int = 0,
    *,
    parallel_iterations: int,
) -> Tensors:
    """The lists whose elements i are the results of fn(i * step), for `count` numbers from the first one on."""

    def write(number, *before):
        number += first
        index = tf.cast(number, tf.int32)
        pairs = zip(before, fn(number * step), strict=True)
        return [tf.raw_ops.TensorListSetItem(input_handle=list_, index=index, item=t) for list_, t in pairs], None

    return counted_loop(write, tf.cast(count, tf.int64), lists, parallel_iterations=parallel_iterations)

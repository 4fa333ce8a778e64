"""Client contributions: the values that the clients of a call give to the fold, stored group by group.

With 10 clients in groups of 4 (3 groups, 12 lanes) and the contribution <float32[5], float32, float32>:

    leaf 0, float32[5]       TensorList of 3 tensors [4, 5], one for each group, and zeros [1, 5]
    leaves 1 and 2, scalars  TensorList of 3 tensors [4, 2] and zeros [1, 2]: scalars of a dtype are stored side by side

The zeros stand in for absent clients, which read lane 12.
"""

from collections.abc import Callable, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.counted_loop import counted_loop
from fedcore.graphs.capture.graph_import import called_unordered

Tensors = list[tf.Tensor]

PARALLEL_GROUPS = 4
"""Groups of a call that may run in parallel; this uses TensorFlow's threads where a worker has no more calls."""

LARGE_LEAF_ENTRIES = 1 << 12
"""Number of entries from which a leaf's groups are read one by one, without concatenating them first."""


@attrs.frozen
class PackedLeaves:
    """Leaves of the contribution that are stored as one tensor.

    Args:
        positions: positions of the leaves; several scalars are stored side by side in the last axis.
        spec: dtype and shape of one client's value.
    """

    positions: tuple[int, ...]
    spec: tf.TensorSpec

    def pack(self, leaves: Tensors) -> tf.Tensor:
        """[K, …] of the leaves [K, …] of the whole contribution."""
        if len(self.positions) == 1:
            return leaves[self.positions[0]]
        return tf.stack([leaves[i] for i in self.positions], 1)

    def unpack(self, tensor: tf.Tensor) -> dict[int, tf.Tensor]:
        """Position -> leaf [K, …] of a tensor [K, …]."""
        tensors = [tensor] if len(self.positions) == 1 else tf.unstack(tensor, axis=1)
        return dict(zip(self.positions, tensors, strict=True))


def packed_leaves(specs: Sequence[tf.TensorSpec]) -> list[PackedLeaves]:
    """Partition of a contribution's leaves: all scalars of a dtype together, every other leaf by itself."""
    positions: dict[object, list[int]] = {}
    for i, s in enumerate(specs):
        positions.setdefault(i if s.shape.rank else s.dtype.name, []).append(i)
    return [
        PackedLeaves(tuple(of), specs[of[0]] if len(of) == 1 else tf.TensorSpec([len(of)], specs[of[0]].dtype))
        for of in positions.values()
    ]


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

    def slices(self, lanes: tf.Tensor) -> Tensors:
        """A tensor [1, …] for each of the lanes (int64 [n], n static), as views of the groups' tensors."""
        groups = tf.unstack(tf.cast(lanes // self.width, tf.int32))
        rank = self.shape.rank
        begins = tf.unstack(tf.pad((lanes % self.width)[:, None], [[0, 0], [0, rank]]))
        size = tf.constant([1, *self.shape], tf.int64)
        views = [
            tf.raw_ops.Slice(input=self._group(g), begin=b, size=size) for g, b in zip(groups, begins, strict=True)
        ]
        for view in views:
            view.set_shape([1, *self.shape])
        return views

    def _group(self, number: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.TensorListGetItem(
            input_handle=self.groups,
            index=number,
            element_shape=[-1, *self.shape],
            element_dtype=self.leaves.spec.dtype,
        )

    def keep_alive_until(self, total: tf.Tensor) -> tf.Tensor:
        """The total; the groups stay alive until it is computed.

        AddN would otherwise reuse the buffer of an input that has no other reference, start with that input, and so
        change the order of the sum.
        """
        with tf.control_dependencies([total]):
            reference = tf.raw_ops.TensorListLength(input_handle=self.groups)
        with tf.control_dependencies([reference]):
            return tf.identity(total)


def contributions_by_group(
    group: Callable, lanes: tf.Tensor, width: int, specs: Sequence[tf.TensorSpec]
) -> list[ClientContribution]:
    """Runs the groups of a call and stores the contributions of their clients.

    Args:
        group: first lane of a group (int64) -> leaves [width, …] of its clients' contributions.
        lanes: int64, number of lanes, a multiple of the width.
        specs: of the leaves of one client's contribution.
    """
    packed = packed_leaves(specs)

    def contribution(first_lane: tf.Tensor) -> Tensors:
        leaves = group(first_lane)
        return [p.pack(leaves) for p in packed]

    count = tf.cast(lanes // width, tf.int32)
    lists = [reserve_list(count + 1, [-1, *p.spec.shape], p.spec.dtype) for p in packed]
    contributions = []
    for p, list_ in zip(packed, run_groups(contribution, count, width, lists), strict=True):
        zeros = tf.zeros([1, *p.spec.shape], p.spec.dtype)
        list_ = tf.raw_ops.TensorListSetItem(input_handle=list_, index=count, item=zeros)
        contributions.append(ClientContribution(p, list_, width, lanes))
    return contributions


def sums_by_group(
    group: Callable, lanes: tf.Tensor, width: int, specs: Sequence[tf.TensorSpec], lane_of: tf.Tensor
) -> Tensors:
    """Runs the groups of a call and keeps only the sum of each block: leaves [blocks, …].

    The lanes are in the order of the client indices, and the width is a multiple of the block size.

    Args:
        group, lanes, specs: as for `contributions_by_group`.
        lane_of: int64 [blocks, block]: the lane of each client, negative for clients behind the last one.
    """
    blocks, block = lane_of.shape
    clients = tf.reduce_sum(tf.cast(lane_of >= 0, tf.int64))
    packed = packed_leaves(specs)

    def block_sums(first_lane: tf.Tensor) -> Tensors:
        leaves = group(first_lane)
        present = tf.range(tf.minimum(clients - first_lane, width))
        segments, count = present // block, tf.constant(width // block)
        return [
            tf.raw_ops.SparseSegmentSumWithNumSegments(
                data=p.pack(leaves), indices=present, segment_ids=segments, num_segments=count
            )
            for p in packed
        ]

    # The lists have room for a whole call; groups behind the last client leave zeros.
    size = -(-blocks * block // width)
    shapes = [[width // block, *p.spec.shape] for p in packed]
    lists = [reserve_list(tf.constant(size), shape, p.spec.dtype) for p, shape in zip(packed, shapes, strict=True)]
    sums: dict[int, tf.Tensor] = {}
    written = run_groups(block_sums, tf.cast(lanes // width, tf.int32), width, lists)
    for p, list_, shape in zip(packed, written, shapes, strict=True):
        stack = tf.raw_ops.TensorListStack(
            input_handle=list_, element_shape=shape, element_dtype=p.spec.dtype, num_elements=size
        )
        sums.update(p.unpack(tf.reshape(stack, [-1, *p.spec.shape])[:blocks]))
    return [sums[i] for i in range(len(specs))]


def reserve_list(size: tf.Tensor, shape: list, dtype: tf.DType) -> tf.Tensor:
    """TensorList of `size` elements of a shape."""
    return tf.raw_ops.TensorListReserve(element_shape=shape, num_elements=size, element_dtype=dtype)


def run_groups(group: Callable, groups: tf.Tensor, width: int, lists: Tensors) -> Tensors:
    """Runs groups 0 … groups - 1 in a loop; the results of group i become element i of the lists."""

    def step(number, *before):
        # The group is one function call. Built in place, its operations would be handled in the loop's frames.
        results = called_unordered(group, [number * width])
        index = tf.cast(number, tf.int32)
        pairs = zip(before, results, strict=True)
        return [tf.raw_ops.TensorListSetItem(input_handle=list_, index=index, item=t) for list_, t in pairs], None

    return counted_loop(step, tf.cast(groups, tf.int64), lists, parallel_iterations=PARALLEL_GROUPS)

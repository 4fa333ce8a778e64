"""From groups of clients to one partial: what they hand over, the fold of each block, the tree over blocks.

A fold is traced once to see what it does with each leaf. One that it only adds is read once, by a sum of a block's
clients in the order of their indices; the others go through the fold client by client, all blocks side by side. Where
lanes stand in the order of the indices and there are sums only, a group hands over its blocks' sums and no more.
"""

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.client_select import selected
from fedcore.graphs.batched.counted_loop import counted_loop
from fedcore.graphs.capture.graph_import import called

Tensors = list[tf.Tensor]

GROUPS_AT_ONCE = 4
"""Groups of a call that TensorFlow may run side by side: its threads take over where a worker has no more calls."""

SUMMED = (tf.float32, tf.float64, tf.int32, tf.int64)
"""What is summed: the kernels add values of these one after the other, in their own precision."""

IN_ORDER = 8
"""Values of which the kernels of sums add one after the other; more of them are added in parts."""

LARGE = 1 << 12
"""Entries of a client's leaf from which its groups are not joined to one tensor first."""


@attrs.frozen
class ClientContribution:
    """What clients hand to the fold: one leaf, or several numbers of a type as one.

    Args:
        leaves: which; several stand side by side in the last dimension.
        groups: a list of tensors [width, …], the last of them zeros.
        width: lanes of a group.
        lanes: how many there are, those of the zeros not counted.
        shape: of one client's value.
    """

    leaves: tuple[int, ...]
    groups: tf.Tensor
    width: int
    lanes: tf.Tensor
    shape: tf.TensorShape
    dtype: tf.DType

    @property
    def is_large(self) -> bool:
        return self.shape.num_elements() >= LARGE

    def together(self) -> tf.Tensor:
        """[lanes, …], zeros at the end."""
        none = tf.zeros([0], tf.int64)
        found, _ = tf.raw_ops.TensorListConcatV2(
            input_handle=self.groups, element_shape=[-1, *self.shape], leading_dims=none, element_dtype=self.dtype
        )
        return tf.ensure_shape(found, [None, *self.shape])

    def apart(self, tensor: tf.Tensor) -> dict[int, tf.Tensor]:
        """What of such a value, with a leading axis, is which leaf's."""
        return _apart(self.leaves, tensor)

    def held_until(self, total: tf.Tensor) -> tf.Tensor:
        """The total, for whose computation the groups are held: AddN begins with whichever value nobody else holds."""
        with tf.control_dependencies([total]):
            held = tf.raw_ops.TensorListLength(input_handle=self.groups)
        with tf.control_dependencies([held]):
            return tf.identity(total)

    def each(self, lanes: tf.Tensor) -> Tensors:
        """The values [1, …] of some lanes, which TensorFlow takes from their groups without a copy."""
        groups = tf.unstack(tf.cast(lanes // self.width, tf.int32))
        rank = self.shape.rank
        begins = tf.unstack(tf.pad((lanes % self.width)[:, None], [[0, 0], [0, rank]]))
        size = tf.constant([1, *self.shape], tf.int64)
        found = [
            tf.raw_ops.Slice(input=self._group(g), begin=b, size=size) for g, b in zip(groups, begins, strict=True)
        ]
        for value in found:
            value.set_shape([1, *self.shape])
        return found

    def _group(self, number: tf.Tensor) -> tf.Tensor:
        shape = [self.width, *self.shape]
        found = tf.raw_ops.TensorListGetItem(
            input_handle=self.groups, index=number, element_shape=shape, element_dtype=self.dtype
        )
        found.set_shape(shape)
        return found


def contributions_by_group(
    group: Callable, lanes: tf.Tensor, width: int, specs: Sequence[tf.TensorSpec]
) -> list[ClientContribution]:
    """What all lanes hand over, a group after the other.

    Args:
        group: the first lane of a group -> its tensors [width, …].
        lanes: how many there are, in whole groups.
    """
    joined = _joined_specs(specs)

    def handed(begin: tf.Tensor) -> Tensors:
        each = group(begin)
        return [_together(of, each) for of, _ in joined]

    groups = tf.cast(lanes // width, tf.int32)
    written = _written(handed, groups, width, [_list(groups + 1, [width, *s.shape], s.dtype) for _, s in joined])
    found = []
    for (of, s), list_ in zip(joined, written, strict=True):
        zeros = tf.zeros([width, *s.shape], s.dtype)
        list_ = tf.raw_ops.TensorListSetItem(input_handle=list_, index=groups, item=zeros)
        found.append(ClientContribution(of, list_, width, lanes, s.shape, s.dtype))
    return found


def sums_by_group(
    group: Callable, lanes: tf.Tensor, width: int, specs: Sequence[tf.TensorSpec], place: tf.Tensor
) -> Tensors:
    """The sums of what the clients of each block hand over, [blocks, …], where lanes stand in the clients' order.

    Args:
        group: the first lane of a group -> its tensors [width, …].
        lanes: how many there are; they are whole groups, and groups are whole blocks.
        place: int64 [blocks, block]: the lane of every client, negative for those behind the last one.
    """
    blocks, block = place.shape
    clients = tf.reduce_sum(tf.cast(place >= 0, tf.int64))
    joined = _joined_specs(specs)

    def sums(begin: tf.Tensor) -> Tensors:
        each = group(begin)
        own = tf.range(tf.minimum(clients - begin, width))
        blocks_of, number = own // block, tf.constant(width // block)
        return [
            tf.raw_ops.SparseSegmentSumWithNumSegments(data=t, indices=own, segment_ids=blocks_of, num_segments=number)
            for t in (_together(of, each) for of, _ in joined)
        ]

    # Groups that are not there leave zeros.
    size = -(-blocks * block // width)
    shapes = [[width // block, *s.shape] for _, s in joined]
    lists = [_list(tf.constant(size), shape, s.dtype) for (_, s), shape in zip(joined, shapes, strict=True)]
    found: dict[int, tf.Tensor] = {}
    written = _written(sums, tf.cast(lanes // width, tf.int32), width, lists)
    for (of, s), list_, shape in zip(joined, written, shapes, strict=True):
        stack = tf.raw_ops.TensorListStack(
            input_handle=list_, element_shape=shape, element_dtype=s.dtype, num_elements=size
        )
        found.update(_apart(of, tf.reshape(stack, [-1, *s.shape])[:blocks]))
    return [found[i] for i in range(len(specs))]


def _joined_specs(specs: Sequence[tf.TensorSpec]) -> list[tuple[tuple[int, ...], tf.TensorSpec]]:
    """Which leaves are handed over as one, and as what: the numbers of each type, and every other leaf by itself."""
    found: dict[object, list[int]] = {}
    for i, s in enumerate(specs):
        found.setdefault(i if s.shape.rank else s.dtype.name, []).append(i)
    return [
        (tuple(of), specs[of[0]] if len(of) == 1 else tf.TensorSpec([len(of)], specs[of[0]].dtype))
        for of in found.values()
    ]


def _together(of: tuple[int, ...], each: Tensors) -> tf.Tensor:
    return each[of[0]] if len(of) == 1 else tf.stack([each[i] for i in of], 1)


def _apart(of: tuple[int, ...], tensor: tf.Tensor) -> dict[int, tf.Tensor]:
    return dict(zip(of, [tensor] if len(of) == 1 else tf.unstack(tensor, axis=1), strict=True))


def _list(size: tf.Tensor, shape: list, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.TensorListReserve(element_shape=shape, num_elements=size, element_dtype=dtype)


def _written(group: Callable, groups: tf.Tensor, width: int, lists: Tensors) -> Tensors:
    """The lists of what each group gives."""

    def turn(number, *before):
        # A graph of its own is called once a turn, where operations in this one would be handled one by one.
        found = called(group, [number * width])
        index = tf.cast(number, tf.int32)
        pairs = zip(before, found, strict=True)
        return [tf.raw_ops.TensorListSetItem(input_handle=list_, index=index, item=t) for list_, t in pairs], None

    return counted_loop(turn, tf.cast(groups, tf.int64), lists, at_once=GROUPS_AT_ONCE)


def fold_blocks(
    fold: Callable,
    merge: Callable,
    zeros: Tensors,
    specs: Sequence[tf.TensorSpec],
    handed: list[ClientContribution],
    place: tf.Tensor,
) -> Tensors:
    """The one partial of all blocks, with a leading axis of size 1.

    Args:
        fold: (the values of one client of every block, the partials before) -> the partials after.
        merge: (partials, those of the blocks next to them) -> their partials.
        zeros: the first partials [blocks, …].
        specs: of the leaves that a client hands over.
        place: int64 [blocks, block]: the lane of every client, negative for one that is absent.
    """
    place = tf.gather(place, _bit_reversed(int(place.shape[0])))
    return _merged(merge, _folded(fold, zeros, specs, handed, place), place)


def merge_sums(merge: Callable, zeros: Tensors, sums: Tensors, place: tf.Tensor) -> Tensors:
    """The same from the sums of the blocks, [blocks, …] for each leaf of a partial."""
    order = _bit_reversed(int(place.shape[0]))
    partial = [zero + tf.gather(t, order) for zero, t in zip(zeros, sums, strict=True)]
    return _merged(merge, partial, tf.gather(place, order))


def _merged(merge: Callable, partial: Tensors, place: tf.Tensor) -> Tensors:
    """The tree over blocks whose halves are neighbours, half by half: taking a half copies nothing."""
    blocks = int(place.shape[0])
    present = tf.reduce_any(place >= 0, axis=1)
    while blocks > 1:
        blocks //= 2
        left, right = ([*half] for half in zip(*(tf.split(t, 2) for t in partial), strict=True))
        in_left, in_right = tf.split(present, 2)
        partial = selected(in_right, merge(left, right), left)
        present = in_left | in_right
    return partial


def fold_one(
    fold: Callable,
    zeros: Tensors,
    specs: Sequence[tf.TensorSpec],
    handed: list[ClientContribution],
    before: Tensors,
    begins: tf.Tensor,
    ends: tf.Tensor,
) -> Tensors:
    """The partial [1, …] of a block after one more client, that of lane 0: the bits are those of `fold_blocks`.

    A leaf that is summed is passed on without its zero, which the last client's call adds.

    Args:
        zeros, before: the first partial, and that after the clients before.
        begins, ends: whether it is the block's first client, and its last.
    """
    of_client: dict[int, tf.Tensor] = {}
    for h in handed:
        of_client.update(h.apart(tf.ensure_shape(h.together()[:1], [1, *h.shape])))
    mine = [of_client[i] for i in range(len(specs))]
    after = fold(mine, [tf.where(begins, z, b) for z, b in zip(zeros, before, strict=True)])
    for i, j in sum_only_leaves(fold, zeros, specs).items():
        total = tf.where(begins, mine[j], before[i] + mine[j])
        after[i] = tf.where(ends, zeros[i] + total, total)
    return after


def _bit_reversed(count: int) -> np.ndarray:
    order = np.zeros(1, np.int64)
    while len(order) < count:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def _folded(
    fold: Callable, zeros: Tensors, specs: Sequence[tf.TensorSpec], handed: list[ClientContribution], place: tf.Tensor
) -> Tensors:
    """The partial of each block: its present clients in the order of their indices."""
    sums = sum_only_leaves(fold, zeros, specs)
    totals: dict[int, tf.Tensor] = {}
    for h in handed:
        if set(h.leaves) & set(sums.values()):
            totals.update(h.apart(_summed(h, place)))
    found = {i: zeros[i] + totals[j] for i, j in sums.items()}
    if len(found) < len(zeros):
        partial = zeros
        lanes: dict[int, tf.Tensor] = {}
        for h in handed:
            lanes.update(h.apart(h.together()))
        for b in range(int(place.shape[1])):
            mine = [tf.gather(lanes[i], tf.maximum(place[:, b], 0)) for i in range(len(specs))]
            partial = selected(place[:, b] >= 0, fold(mine, partial), partial)
        found = {**dict(enumerate(partial)), **found}
    return [found[i] for i in range(len(zeros))]


def _summed(handed: ClientContribution, place: tf.Tensor) -> tf.Tensor:
    """[blocks, …]: the sum of each block's present clients, in their order."""
    blocks, block = place.shape
    if handed.is_large:
        values = handed.each(tf.reshape(tf.where(place >= 0, place, handed.lanes), [-1]))
        total = tf.concat([_added(values[i : i + block]) for i in range(0, blocks * block, block)], 0)
        return handed.held_until(total)
    together = handed.together()
    first = place[:, :IN_ORDER]
    order = tf.reshape(first, [-1])
    present = tf.where(order >= 0)[:, 0]
    total = tf.raw_ops.SparseSegmentSumWithNumSegments(
        data=together,
        indices=tf.gather(order, present),
        segment_ids=present // first.shape[1],
        num_segments=blocks,
    )
    for b in range(IN_ORDER, block):
        total += tf.gather(together, tf.where(place[:, b] >= 0, place[:, b], handed.lanes))
    return tf.ensure_shape(total, [blocks, *handed.shape])


def _added(values: Tensors) -> tf.Tensor:
    total = tf.add_n(values[:IN_ORDER])
    for i in range(IN_ORDER, len(values), IN_ORDER - 1):
        total = tf.add_n([total, *values[i : i + IN_ORDER - 1]])
    return total


def sum_only_leaves(fold: Callable, zeros: Tensors, specs: Sequence[tf.TensorSpec]) -> dict[int, int]:
    """The leaves of the partial that a fold only adds to -> the leaf that it adds. Found in a graph thrown away."""
    found: dict[int, int] = {}

    def scratch():
        before = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in zeros]
        mine = [tf.compat.v1.placeholder(s.dtype, [zeros[0].shape[0], *s.shape]) for s in specs]
        for i, tensor in enumerate(fold(mine, before)):
            if tensor.op.type not in ("AddV2", "Add") or tensor.dtype not in SUMMED:
                continue
            others = [t for t in tensor.op.inputs if t is not before[i]]
            found.update((i, j) for j, t in enumerate(mine) if len(others) == 1 and others[0] is t)

    tf.function(scratch, autograph=False).get_concrete_function()
    return found

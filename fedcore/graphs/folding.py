"""From groups of clients to one partial: what they hand over, the fold of each block, the tree over blocks.

A fold is traced once to see what it does with each leaf. One that it only adds is read once, by a sum of a block's
clients in the order of their indices; the others go through the fold client by client, all blocks side by side. Where
lanes stand in the order of the indices and there are sums only, a group hands over its blocks' sums and no more.
"""

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.trace import called
from fedcore.graphs.vectorise import selected

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
class Handed:
    """One leaf that clients hand to the fold.

    Args:
        groups: an array of tensors [width, …], the last of them zeros.
        width: lanes of a group.
        lanes: how many there are, those of the zeros not counted.
        shape: of one client's value.
    """

    groups: tf.TensorArray
    width: int
    lanes: tf.Tensor
    shape: tf.TensorShape

    @property
    def dtype(self) -> tf.DType:
        return self.groups.dtype

    @property
    def is_large(self) -> bool:
        return self.shape.num_elements() >= LARGE

    def together(self) -> tf.Tensor:
        """[lanes, …], zeros at the end."""
        return tf.ensure_shape(self.groups.concat(), [None, *self.shape])

    def held_until(self, total: tf.Tensor) -> tf.Tensor:
        """The total, for whose computation the groups are held: AddN begins with whichever value nobody else holds."""
        with tf.control_dependencies([total]):
            held = tf.raw_ops.TensorListLength(input_handle=self.groups.flow)
        with tf.control_dependencies([held]):
            return tf.identity(total)

    def each(self, lanes: tf.Tensor) -> Tensors:
        """The values [1, …] of some lanes, which TensorFlow takes from their groups without a copy."""
        groups = tf.unstack(tf.cast(lanes // self.width, tf.int32))
        rank = self.shape.rank
        begins = tf.unstack(tf.pad((lanes % self.width)[:, None], [[0, 0], [0, rank]]))
        size = tf.constant([1, *self.shape], tf.int64)
        found = [
            tf.raw_ops.Slice(input=self.groups.read(g), begin=b, size=size) for g, b in zip(groups, begins, strict=True)
        ]
        for value in found:
            value.set_shape([1, *self.shape])
        return found


def by_group(group: Callable, lanes: tf.Tensor, width: int, specs: Sequence[tf.TensorSpec]) -> list[Handed]:
    """What all lanes hand over, a group after the other.

    Args:
        group: the first lane of a group -> its tensors [width, …].
        lanes: how many there are, in whole groups.
    """
    groups = tf.cast(lanes // width, tf.int32)
    arrays = [tf.TensorArray(s.dtype, size=groups + 1, element_shape=[width, *s.shape]) for s in specs]
    after = _written(group, groups, width, arrays)
    after = [a.write(groups, tf.zeros([width, *s.shape], s.dtype)) for a, s in zip(after, specs, strict=True)]
    return [Handed(a, width, lanes, s.shape) for a, s in zip(after, specs, strict=True)]


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

    numbers = _numbers(specs)

    def sums(begin: tf.Tensor) -> Tensors:
        each = group(begin)
        found = [each[of[0]] if len(of) == 1 else tf.stack([each[i] for i in of], 1) for of in numbers]
        own = tf.range(tf.minimum(clients - begin, width))
        blocks_of, number = own // block, tf.constant(width // block)
        return [
            tf.raw_ops.SparseSegmentSumWithNumSegments(data=t, indices=own, segment_ids=blocks_of, num_segments=number)
            for t in found
        ]

    # Groups that are not there leave zeros.
    size = -(-blocks * block // width)
    shapes = [[*specs[of[0]].shape, *([len(of)] if len(of) > 1 else [])] for of in numbers]
    arrays = [
        tf.TensorArray(specs[of[0]].dtype, size=size, element_shape=[width // block, *shape])
        for of, shape in zip(numbers, shapes, strict=True)
    ]
    after = _written(sums, tf.cast(lanes // width, tf.int32), width, arrays)
    found: dict[int, tf.Tensor] = {}
    for of, array, shape in zip(numbers, after, shapes, strict=True):
        total = tf.reshape(array.stack(), [-1, *shape])[:blocks]
        found.update(zip(of, tf.unstack(total, axis=1) if len(of) > 1 else [total], strict=True))
    return [found[i] for i in range(len(specs))]


def _numbers(specs: Sequence[tf.TensorSpec]) -> list[list[int]]:
    """Which leaves are summed as one: the numbers of each type together, and every other leaf by itself."""
    found: dict[object, list[int]] = {}
    for i, s in enumerate(specs):
        found.setdefault(i if s.shape.rank else s.dtype.name, []).append(i)
    return list(found.values())


def _written(group: Callable, groups: tf.Tensor, width: int, arrays: list[tf.TensorArray]) -> list[tf.TensorArray]:
    def body(g, *before):
        # A graph of its own is called once a turn, where operations in this one would be handled one by one.
        found = called(group, [tf.cast(g, tf.int64) * width])
        return g + 1, *(a.write(g, t) for a, t in zip(before, found, strict=True))

    _, *after = tf.while_loop(
        lambda g, *_: g < groups, body, (tf.constant(0), *arrays), parallel_iterations=GROUPS_AT_ONCE
    )
    return after


def fold_blocks(fold: Callable, merge: Callable, zeros: Tensors, handed: list[Handed], place: tf.Tensor) -> Tensors:
    """The one partial of all blocks, with a leading axis of size 1.

    Args:
        fold: (the values of one client of every block, the partials before) -> the partials after.
        merge: (partials, those of the blocks next to them) -> their partials.
        zeros: the first partials [blocks, …].
        place: int64 [blocks, block]: the lane of every client, negative for one that is absent.
    """
    place = tf.gather(place, _bit_reversed(int(place.shape[0])))
    return _merged(merge, _folded(fold, zeros, handed, place), place)


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
    fold: Callable, zeros: Tensors, handed: list[Handed], before: Tensors, begins: tf.Tensor, ends: tf.Tensor
) -> Tensors:
    """The partial [1, …] of a block after one more client, that of lane 0: the bits are those of `fold_blocks`.

    A leaf that is summed is passed on without its zero, which the last client's call adds.

    Args:
        zeros, before: the first partial, and that after the clients before.
        begins, ends: whether it is the block's first client, and its last.
    """
    mine = [tf.ensure_shape(h.together()[:1], [1, *h.shape]) for h in handed]
    after = fold(mine, [tf.where(begins, z, b) for z, b in zip(zeros, before, strict=True)])
    for i, j in summed_leaves(fold, zeros, handed).items():
        total = tf.where(begins, mine[j], before[i] + mine[j])
        after[i] = tf.where(ends, zeros[i] + total, total)
    return after


def _bit_reversed(count: int) -> np.ndarray:
    order = np.zeros(1, np.int64)
    while len(order) < count:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def _folded(fold: Callable, zeros: Tensors, handed: list[Handed], place: tf.Tensor) -> Tensors:
    """The partial of each block: its present clients in the order of their indices."""
    sums = summed_leaves(fold, zeros, handed)
    found = {i: zeros[i] + _summed(handed[j], place) for i, j in sums.items()}
    if len(found) < len(zeros):
        partial = zeros
        joined = [h.together() for h in handed]
        for b in range(int(place.shape[1])):
            mine = [tf.gather(t, tf.maximum(place[:, b], 0)) for t in joined]
            partial = selected(place[:, b] >= 0, fold(mine, partial), partial)
        found = {**dict(enumerate(partial)), **found}
    return [found[i] for i in range(len(zeros))]


def _summed(handed: Handed, place: tf.Tensor) -> tf.Tensor:
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


def summed_leaves(fold: Callable, zeros: Tensors, handed: Sequence[Handed | tf.TensorSpec]) -> dict[int, int]:
    """The leaves of the partial that a fold only adds to -> the leaf that it adds. Found in a graph thrown away."""
    found: dict[int, int] = {}

    def scratch():
        before = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in zeros]
        mine = [tf.compat.v1.placeholder(h.dtype, [zeros[0].shape[0], *h.shape]) for h in handed]
        for i, tensor in enumerate(fold(mine, before)):
            if tensor.op.type not in ("AddV2", "Add") or tensor.dtype not in SUMMED:
                continue
            others = [t for t in tensor.op.inputs if t is not before[i]]
            found.update((i, j) for j, t in enumerate(mine) if len(others) == 1 and others[0] is t)

    tf.function(scratch, autograph=False).get_concrete_function()
    return found

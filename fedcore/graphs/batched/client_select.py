"""Selection between two tensors for each client, and of the rows of some steps or clients."""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

FAST_PATH_ENTRIES = 1 << 12
"""Size of a tensor from which `select_by_client` tests whether the condition holds for all clients."""


def select_rows(condition: tf.Tensor, if_true: Sequence[tf.Tensor], if_false: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """For each client k the entry k of `if_true` where its condition holds, else of `if_false`.

    Args:
        condition: bool [K].
        if_true: tensors [K, …].
        if_false: as many tensors that broadcast to the shapes of `if_true`.
    """
    results = []
    for a, b in zip(if_true, if_false, strict=True):
        b = b if b.shape == a.shape else tf.broadcast_to(b, a.shape if a.shape.is_fully_defined() else tf.shape(a))
        results.append(tf.raw_ops.Select(condition=condition, x=a, y=b))
    return results


def select_by_client(
    condition: tf.Tensor, if_true: Sequence[tf.Tensor], if_false: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """`select_rows` without unnecessary copies.

    If a tensor of `if_true` is the tensor of `if_false`, it is returned. If the condition holds for all clients, the
    large tensors of `if_true`, and those of unknown size, are passed through.
    """
    large = [
        i
        for i, t in enumerate(if_true)
        if t is not if_false[i] and (None in t.shape or math.prod(t.shape) >= FAST_PATH_ENTRIES)
    ]
    selected = _select_unless_all_true(condition, [if_true[i] for i in large], [if_false[i] for i in large])
    results = dict(zip(large, selected, strict=True))
    return [
        results[i] if i in results else a if a is b else select_rows(condition, [a], [b])[0]
        for i, (a, b) in enumerate(zip(if_true, if_false, strict=True))
    ]


def _select_unless_all_true(
    condition: tf.Tensor, if_true: Sequence[tf.Tensor], if_false: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    if not if_true:
        return []
    all_true = tf.reduce_all(condition)
    results = []
    for a, b in zip(if_true, if_false, strict=True):
        untouched, passed = tf.raw_ops.Switch(data=a, pred=all_true)
        if b.shape != a.shape:  # broadcast on the slow path only
            b, _ = tf.raw_ops.Switch(data=_fill_value(b), pred=all_true)
        (selected,) = select_rows(condition, [untouched], [b])
        merged = tf.raw_ops.Merge(inputs=[selected, passed]).output
        merged.set_shape(a.shape)
        results.append(merged)
    return results


def computed_if(
    condition: tf.Tensor, fn: Callable, operands: Sequence[tf.Tensor], otherwise: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """`fn(*operands)` where the condition (bool []) holds, else `otherwise`; only the taken side is computed.

    `tf.cond` would be lowered to operations outside of a loop's frame. Each result of `fn` must depend on an
    operand, and have the shape of its tensor of `otherwise`.
    """
    taken = [tf.raw_ops.Switch(data=t, pred=condition).output_true for t in operands]
    for switched, t in zip(taken, operands, strict=True):
        switched.set_shape(t.shape)
    left = [tf.raw_ops.Switch(data=t, pred=condition).output_false for t in otherwise]
    merged = [tf.raw_ops.Merge(inputs=[a, b]).output for a, b in zip(fn(*taken), left, strict=True)]
    for result, t in zip(merged, otherwise, strict=True):
        result.set_shape(t.shape)
    return merged


def _fill_value(tensor: tf.Tensor) -> tf.Tensor:
    """The scalar operand, if the tensor is the result of a Fill; else the tensor."""
    return tensor.op.inputs[1] if tensor.op.type == "Fill" else tensor


def rows_from(tensor: tf.Tensor, begin: tf.Tensor, count: int) -> tf.Tensor:
    """The rows begin … begin + count - 1 of a tensor [clients, rows, …]; the last row stands in for missing ones."""
    last = tf.shape(tensor, tf.int64)[1] - 1
    return tf.gather(tensor, tf.minimum(begin + tf.range(count, dtype=tf.int64), last), axis=1)


class Window:
    """A window along the leading axis of tensors, whose position is a tensor.

    Args:
        begin: int64, position of the first entry.
        size: number of entries.
    """

    def __init__(self, begin: tf.Tensor, size: int | tf.Tensor):
        self._begin = tf.reshape(begin, [1])
        self._end = self._begin + size
        self._stride = tf.constant([1], begin.dtype)
        self._size = tf.get_static_value(size)

    def of(self, tensor: tf.Tensor) -> tf.Tensor:
        """The window of a tensor, [size, …]; TensorFlow returns a view."""
        view = tf.raw_ops.StridedSlice(input=tensor, begin=self._begin, end=self._end, strides=self._stride)
        view.set_shape([self._size, *tensor.shape[1:]])
        return view

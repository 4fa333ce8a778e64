"""Windows of rows: of some steps of each client, or of some clients, at a position that is a value."""

import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value


def rows_from(tensor: Value, begin: Value, count: int) -> Value:
    """The rows begin … begin + count - 1 of a tensor [clients, rows, …]; the last row stands in for missing ones."""
    last = ops.shape(tensor, tf.int64)[1] - 1
    return ops.gather(tensor, ops.minimum(begin + ops.range_(count, dtype=tf.int64), last), axis=1)


class Window:
    """A window along the leading axis of tensors, whose position is a tensor.

    Args:
        begin: int64, position of the first entry.
        size: number of entries.
    """

    def __init__(self, begin: Value, size: int | Value) -> None:
        self._begin = ops.reshape(begin, [1])
        self._end = self._begin + size
        self._stride = ops.constant([1], begin.dtype)
        self._size = ops.static_value(size)

    def of(self, tensor: Value) -> Value:
        """The window of a tensor, [size, …]; TensorFlow returns a view."""
        view = ops.operation("StridedSlice", tensor, self._begin, self._end, self._stride)
        view.set_shape([self._size, *tensor.shape[1:]])
        return view

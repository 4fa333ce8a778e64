"""Sequences of a group of clients inside a graph: the elements of one step for all clients at once.

In:  packed columns, row numbers and batch sizes (see `packing`). Out: for step s a batched element, [width, rows, …].

Example: width 4, batches of at most 20 rows of 7 features. `element(s, …)` gathers rows[:, s], int64 [4, 20], from the
column [n, 7]: the element is [4, 20, 7] with padded axis 0. `batch_sizes(s)` is int64 [4]; a client that has ended has
batch size 0, and its element is an arbitrary row of the call.
"""

from collections.abc import Callable

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_call import batched_call
from fedcore.graphs.batched.batched_value import batched, broadcast_to_clients
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.tensors.values import unflatten
from fedcore.ir.interpret import Callee


class Window:
    """A window of static width along the leading axis of tensors, whose position is a tensor.

    Args:
        begin: int64 [1], position of the first entry.
        end: int64 [1], the position behind the last entry.
    """

    def __init__(self, begin: tf.Tensor, end: tf.Tensor, width: int):
        self._begin = begin
        self._end = end
        self._stride = tf.constant([1], begin.dtype)
        self._width = width

    @classmethod
    def at(cls, begin: tf.Tensor, width: int) -> "Window":
        """Window from a scalar position."""
        begin = tf.reshape(begin, [1])
        return cls(begin, begin + width, width)

    def of(self, tensor: tf.Tensor) -> tf.Tensor:
        """The window of a tensor, [width, …]; TensorFlow returns a view."""
        view = tf.raw_ops.StridedSlice(input=tensor, begin=self._begin, end=self._end, strides=self._stride)
        view.set_shape([self._width, *tensor.shape[1:]])
        return view


@attrs.frozen
class BatchedSequence:
    """The sequences of a call's clients, or of one group of them.

    Args:
        columns: of all clients of the call; rows, or whole batches.
        rows: int64 [clients, steps(, rows)] row numbers; for whole batches int64 [steps], the number of the first batch
            of each step.
        sizes: int64 [clients, steps]: rows of each batch; 1 for an element that is not a batch, 0 behind a client's
            end.
        first_lane: of the group.
        maps: functions of batched elements that are applied in order.
    """

    layout: Layout
    columns: tuple
    rows: tf.Tensor
    sizes: tf.Tensor
    first_lane: tf.Tensor | None = None
    maps: tuple[Callable, ...] = ()

    def group(self, lanes: Window, first_lane: tf.Tensor) -> "BatchedSequence":
        """The sequences of the clients in a window of lanes."""
        rows = self.rows if self.rows.shape.rank == 1 else lanes.of(self.rows)
        return attrs.evolve(self, rows=rows, sizes=lanes.of(self.sizes), first_lane=first_lane)

    def batch_sizes(self, step: tf.Tensor) -> tf.Tensor:
        """int64 [clients]: rows of each client's batch; 1 for an element that is not a batch, 0 behind the end."""
        return tf.gather(self.sizes, step, axis=1)

    def element(self, step: tf.Tensor, batch_sizes: tf.Tensor):
        """The batched element of one step."""
        layout = self.layout
        tensors = self._columns_of(step)
        if layout.before:
            tensors = _map_examples(layout, tensors) if layout.batched else _map_graphs(layout.before, tensors)
        values = [batched(t, 0 if layout.batched else None) for t in tensors]
        value_type = layout.element if not layout.before else layout.before[-1].type.result
        for graph in layout.after:
            values = batched_call(graph.named("map"), graph.data, values, batch_sizes if layout.batched else None)
            value_type = graph.type.result
        element = unflatten(values, value_type)
        for fn in self.maps:
            element = at_element(fn, step)(element)
        return element

    def _columns_of(self, step: tf.Tensor) -> list[tf.Tensor]:
        """The columns of one step's elements, [clients, (rows,) …]."""
        if self.first_lane is not None and self.rows.shape.rank == 1:
            begins = tf.reshape(self.rows + self.first_lane, [-1, 1])
            width = int(self.sizes.shape[0])
            batches = Window(tf.gather(begins, step), tf.gather(begins + width, step), width)
            return [batches.of(c) for c in self.columns]
        rows = tf.gather(self.rows, step, axis=1)
        return [tf.gather(c, rows) for c in self.columns]


def at_element(fn: Callable, index: tf.Tensor) -> Callable:
    """The function with the seed of an element: random numbers depend on the element's index."""
    return fn.for_element(index) if isinstance(fn, Callee) else fn


def _map_graphs(graphs: tuple[TracedGraph, ...], tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Applies graphs to elements [K, …]."""
    values = [batched(t) for t in tensors]
    for graph in graphs:
        values = batched_call(graph.named("map"), graph.data, values)
    count = int(tensors[0].shape[0])
    return [broadcast_to_clients(value, count) for value in values]


def _map_examples(layout: Layout, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Applies the maps over single examples, with all rows of all clients along one axis: [clients * rows, …]."""
    clients, rows = tensors[0].shape[:2]
    flat = [tf.reshape(t, [clients * rows, *t.shape[2:]]) for t in tensors]
    return [tf.reshape(t, [clients, rows, *t.shape[1:]]) for t in _map_graphs(layout.before, flat)]

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
from fedcore.graphs.batched.client_select import rows_from, select_by_client
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.tensors.values import unflatten
from fedcore.ir.interpret import Callee


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


@attrs.frozen
class BatchedSequence:
    """The sequences of a call's clients, or of one group of them.

    Args:
        columns: rows of all clients of the call.
        rows: int64 [clients, steps(, rows)] row numbers; if rows are in order int64 [groups + 1], the row where each
            group begins, and the end.
        sizes: int64 [clients, steps]: rows of each batch; 1 for an element that is not a batch, 0 behind a client's
            end.
        batch_rows: the number of rows of a padded batch; 0 if elements are no batches.
        rows_in_order: the columns hold the rows of each client in the order of the steps. Those of a group are
            [clients, rows of all steps, …]; the last batch may have fewer rows than the others.
        single_step: every client takes one step; rows in order are then [clients, batch_rows, …].
        maps: functions of batched elements that are applied in order.
        first_rows: the number of rows of a padded batch that are read, from the first one on; None for all.
    """

    layout: Layout
    columns: tuple
    rows: tf.Tensor
    sizes: tf.Tensor
    batch_rows: int
    rows_in_order: bool = False
    single_step: bool = False
    maps: tuple[Callable, ...] = ()
    first_rows: int | None = None

    def group(self, lanes: Window, first_lane: tf.Tensor) -> "BatchedSequence":
        """The sequences of the clients in a window of lanes."""
        sizes = lanes.of(self.sizes)
        if not self.rows_in_order:
            return attrs.evolve(self, rows=lanes.of(self.rows), sizes=sizes)
        if self.single_step:
            return attrs.evolve(self, columns=tuple(lanes.of(c) for c in self.columns), sizes=sizes)
        width = int(sizes.shape[0])
        begin, end = tf.unstack(tf.gather(self.rows, first_lane // width + tf.range(2, dtype=tf.int64)))
        of_group = Window(begin, end - begin)
        columns = tuple(tf.reshape(of_group.of(c), [width, -1, *c.shape[1:]]) for c in self.columns)
        return attrs.evolve(self, columns=columns, sizes=sizes)

    def batch_sizes(self, step: tf.Tensor) -> tf.Tensor:
        """int64 [clients]: rows of each client's batch; 1 for an element that is not a batch, 0 behind the end."""
        return tf.gather(self.sizes, step, axis=1)

    def element(self, step: tf.Tensor, batch_sizes: tf.Tensor, tensors: list[tf.Tensor]):
        """The batched element of one step, from the columns of this step."""
        layout = self.layout
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

    def columns_of(self, step: tf.Tensor) -> list[tf.Tensor]:
        """The columns of one step's elements, [clients, (rows,) …]."""
        if not self.rows_in_order:
            rows = tf.gather(self.rows, step, axis=1)
            rows = rows if self.first_rows is None else rows[:, : self.first_rows]
            return [tf.gather(c, rows) for c in self.columns]
        if self.single_step:
            return list(self.columns)
        begin = step * self.batch_rows
        return [rows_from(c, begin, self.first_rows or self.batch_rows) for c in self.columns]

    @property
    def rows_of_batches(self) -> tf.Tensor:
        """int64 [clients]: the rows of the padded batches of each client."""
        return self.batch_rows * tf.reduce_sum(tf.cast(self.sizes > 0, tf.int64), axis=1)

    @property
    def own_rows(self) -> tf.Tensor:
        """int64 [clients]: the rows of all steps, behind which the rows of each client in `all_columns` are padded."""
        return tf.reduce_sum(self.sizes, axis=1) if self.rows_in_order else self.rows_of_batches

    def all_columns(self) -> list[tf.Tensor]:
        """The columns of the batches of a group, all steps side by side, [clients, rows, …].

        Behind a client's end there are finite rows, as long as the client's own rows are finite.
        """
        if self.rows_in_order:
            return list(self.columns)
        has_rows = tf.reduce_any(self.sizes > 0, axis=1)
        rows = tf.reshape(self.rows[:, : steps_of(self.sizes)], [self.rows.shape[0], -1])
        found = [tf.gather(c, rows) for c in self.columns]
        # The rows of a client without rows are those of another one.
        return [select_by_client(has_rows, [t], [tf.zeros_like(t)])[0] for t in found]


def steps_of(sizes: tf.Tensor) -> tf.Tensor:
    """int64: the number of steps that clients take whose batches have the given sizes, int64 [clients, steps]."""
    return tf.reduce_sum(tf.cast(tf.reduce_any(sizes > 0, axis=0), tf.int64))


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

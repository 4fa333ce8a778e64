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
from fedcore.graphs.batched.client_select import Window, rows_from, select_by_client
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.tensors.values import unflatten
from fedcore.ir.interpret import Callee


@attrs.frozen
class BatchedSequence:
    """The sequences of a call's clients, or of one group of them.

    Args:
        columns: rows of all clients of the call.
        rows: int64 [clients, steps(, rows)] row numbers; if rows are in order int64 [groups + 1], the row where each
            group begins, and the end; with own rows int64 [clients], the row where each client begins.
        sizes: int64 [clients, steps]: rows of each batch; 1 for an element that is not a batch, 0 behind a client's
            end.
        batch_rows: the number of rows of a padded batch; 0 if elements are no batches.
        rows_in_order: the columns hold the rows of each client in the order of the steps. Those of a group are
            [clients, rows of all steps, …]; the last batch may have fewer rows than the others.
        has_own_rows: rows are in order, and the columns hold the rows of each client and no other ones, also those of a
            group: they are the columns of the call.
        single_step: every client takes one step; rows in order are then [clients, batch_rows, …].
        maps: functions of batched elements that are applied in order.
        first_rows: the number of rows of a padded batch that are read, from the first one on; None for all, as with
            own rows.
    """

    layout: Layout
    columns: tuple
    rows: tf.Tensor
    sizes: tf.Tensor
    batch_rows: int
    rows_in_order: bool = False
    has_own_rows: bool = False
    single_step: bool = False
    maps: tuple[Callable, ...] = ()
    first_rows: int | None = None

    def group(self, lanes: Window, first_lane: tf.Tensor) -> "BatchedSequence":
        """The sequences of the clients in a window of lanes."""
        sizes = lanes.of(self.sizes)
        if self.has_own_rows or not self.rows_in_order:
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
        if self.has_own_rows:
            numbers = self._numbers(begin, tf.constant(self.batch_rows, tf.int64))
            return [tf.gather(c, numbers) for c in self.columns]
        return [rows_from(c, begin, self.first_rows or self.batch_rows) for c in self.columns]

    @property
    def rows_of_batches(self) -> tf.Tensor:
        """int64 [clients]: the rows of the padded batches of each client."""
        return self.batch_rows * tf.reduce_sum(tf.cast(self.sizes > 0, tf.int64), axis=1)

    @property
    def own_rows(self) -> tf.Tensor:
        """int64 [clients]: the rows of all steps, behind which the rows of each client in `all_columns` are padded."""
        return tf.reduce_sum(self.sizes, axis=1) if self.rows_in_order else self.rows_of_batches

    def rows_of_groups(self, width: int) -> tf.Tensor:
        """int64 [groups]: the rows of each client in `all_columns`, for the groups of a call; rows are in order."""
        if self.has_own_rows:
            return tf.reduce_max(tf.reshape(self.rows_of_batches, [-1, width]), axis=1)
        return (self.rows[1:] - self.rows[:-1]) // width

    @property
    def most_rows(self) -> tf.Tensor:
        """int64: the rows of the padded batches of the client that has most."""
        return tf.reduce_max(self.rows_of_batches)

    def all_columns(self) -> list[tf.Tensor]:
        """The columns of the batches of a group, all steps side by side, [clients, rows, …].

        Behind a client's end there are finite rows, as long as the client's own rows are finite.
        """
        if self.rows_in_order and not self.has_own_rows:
            return list(self.columns)
        has_rows = tf.reduce_any(self.sizes > 0, axis=1)
        if self.has_own_rows:
            rows = self._numbers(tf.constant(0, tf.int64), self.most_rows)
        else:
            rows = tf.reshape(self.rows[:, : steps_of(self.sizes)], [self.rows.shape[0], -1])
        found = [tf.gather(c, rows) for c in self.columns]
        # The rows of a client without rows are those of another one.
        return [select_by_client(has_rows, [t], [tf.zeros_like(t)])[0] for t in found]

    def columns_of_clients(self) -> list[list[tf.Tensor]]:
        """For each client of a group its columns, [own rows, …], as views of the columns, which hold own rows."""
        clients = int(self.sizes.shape[0])
        windows = map(Window, tf.unstack(self.rows, clients), tf.unstack(self.own_rows, clients))
        return [[window.of(c) for c in self.columns] for window in windows]

    def _numbers(self, begin: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """int64 [clients, count]: numbers of own rows in the columns, from row `begin` of each client on; the last one
        stands in for missing ones.
        """
        last = tf.maximum(self.own_rows, 1)[:, tf.newaxis] - 1
        return self.rows[:, tf.newaxis] + tf.minimum(begin + tf.range(count), last)


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

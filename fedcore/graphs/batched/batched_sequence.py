"""Sequences of a group of clients inside a graph: the elements of one step for all clients at once.

In:  packed rows (see `row_layouts`). Out: for step s a batched element, [width, rows, …].

Example: width 4, batches of at most 20 rows of 7 features. The element of a step is [4, 20, 7] with padded axis 0.
`batch_sizes(s)` is int64 [4]; a client that has ended has batch size 0, and its element is any row of the call.
Words: see `batched_value`.
"""

from collections.abc import Callable

import attrs

from fedcore.graphs.batched.batched_call import batched_call
from fedcore.graphs.batched.batched_value import Presence, batched, broadcast_to_clients
from fedcore.graphs.batched.row_layouts import GatheredRows, RowLayout
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.tensors.values import Nested, unflatten
from fedcore.ir.interpret import Callee


@attrs.frozen
class BatchedSequence:
    """The sequences of a call's clients, or of one group of them.

    Args:
        layout: types and step kinds of the sequences.
        rows: the packed rows of the clients.
        maps: functions of batched elements that are applied in order.
    """

    layout: Layout
    rows: RowLayout
    maps: tuple[Callable, ...] = ()

    @property
    def sizes(self) -> Value:
        """int64 [clients, steps]: rows of each batch, as `batch_sizes`."""
        return self.rows.sizes

    @property
    def batch_rows(self) -> int:
        """The padded size of a batch; 0 if elements are not batches."""
        return self.rows.batch_rows

    def group(self, lanes: Window, first_lane: Value) -> "BatchedSequence":
        """The sequences of the clients in a window of lanes."""
        return attrs.evolve(self, rows=self.rows.group(lanes, first_lane))

    def at_level(self, batch_rows: int) -> "BatchedSequence":
        """The sequences of clients whose batches have at most `batch_rows` rows."""
        assert isinstance(self.rows, GatheredRows)  # as the rows of all batches whose sizes the data decide
        return attrs.evolve(self, rows=self.rows.at_level(batch_rows))

    def halves(self) -> "BatchedSequence":
        """The sequences with the first half of the rows of each padded batch."""
        return attrs.evolve(self, rows=attrs.evolve(self.rows, first_rows=self.batch_rows // 2))

    def batch_sizes(self, step: Value) -> Value:
        """int64 [clients]: rows of each client's batch; 1 for an element that is not a batch, 0 behind the end."""
        return ops.gather(self.sizes, step, axis=1)

    def columns_of(self, step: Value) -> list[Value]:
        """The columns of one step's elements, [clients, (rows,) …]."""
        return self.rows.columns_of(step)

    def element(self, step: Value, batch_sizes: Value, tensors: list[Value]) -> Nested:
        """The batched element of one step, [clients, rows, …] for batches: the columns after the maps of the pipeline.

        Maps before batching see single examples, and maps behind it see batches.

        Args:
            step: int64, the number of the step, by which random maps draw.
            batch_sizes: int64 [clients], as the method of that name returns them.
            tensors: the columns of the step, as of `columns_of`.
        """
        layout = self.layout
        if layout.before:
            if layout.batched:
                tensors = _map_examples(layout, tensors, batch_sizes)
            else:
                tensors = _map_graphs(layout.before, tensors, lambda: batch_sizes > 0)
        values = [batched(t, 0 if layout.batched else None) for t in tensors]
        value_type = layout.element if not layout.before else layout.before[-1].type.result
        for graph in layout.after:
            sizes = batch_sizes if layout.batched else None
            values = batched_call(graph.with_name("map"), graph.data, values, sizes, occupied=lambda: batch_sizes > 0)
            value_type = graph.type.result
        element = unflatten(values, value_type)
        for fn in self.maps:
            element = at_element(fn, step)(element)
        return element


def at_element(fn: Callable, index: Value) -> Callable:
    """The function with the seed of an element: the random numbers that it draws depend on the element's index."""
    return fn.for_element(index) if isinstance(fn, Callee) else fn


def _map_graphs(graphs: tuple[TracedGraph, ...], tensors: list[Value], occupied: Presence) -> list[Value]:
    """Applies graphs one after the other to elements [K, …]; results that all clients share are repeated.

    Args:
        occupied: the elements that clients have.
    """
    values = [batched(t) for t in tensors]
    for graph in graphs:
        values = batched_call(graph.with_name("map"), graph.data, values, occupied=occupied)
    count = int(tensors[0].shape[0])
    return [broadcast_to_clients(value, count) for value in values]


def _map_examples(layout: Layout, tensors: list[Value], batch_sizes: Value) -> list[Value]:
    """Applies the maps over single examples, with all rows of all clients along one axis: [clients * rows, …]."""
    clients, rows = tensors[0].shape[:2]
    flat = [ops.reshape(t, [clients * rows, *t.shape[2:]]) for t in tensors]

    def occupied() -> Value:
        """The rows that clients have; padded rows are copies of them."""
        return ops.reshape(ops.broadcast_to(batch_sizes[:, None] > 0, [clients, rows]), [-1])

    mapped = _map_graphs(layout.before, flat, occupied)
    return [ops.reshape(t, [clients, rows, *t.shape[1:]]) for t in mapped]

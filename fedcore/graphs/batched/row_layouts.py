"""Row layouts: how the rows of clients stand in packed columns, and how a graph reads the rows of a step from them.

In:  on the host, the columns of each client and the lanes of a call. Out: packed columns, an index into them, and the
sizes of batches; in the graph, the rows of one step or of all steps of a group.

Example: 3 clients have 2, 5 and 3 rows in batches of 2. Groups have 2 lanes, which hold the clients 1, 2, 0 and none.

    sizes          int64 [4, 3]     [[2, 2, 1], [2, 1, 0], [2, 0, 0], [0, 0, 0]]: rows of each batch of a lane

    GatheredRows   columns [10, …]  rows of clients 0, 1 and 2, one after the other
                   index [4, 3, 2]  row numbers of each lane's batches; a short batch repeats its last row
    RowsInOrder    columns [16, …]  6 rows each of lanes 0 and 1, 2 rows each of lanes 2 and 3: in a group, lanes have
                                    as many rows as the largest one, and at least two for a last batch
                   index [3]        [0, 12, 16]: where groups begin, and the end

`WholeBatches` are rows in order of clients that all take one step: the columns are [lanes, batch rows, …].
"""

import abc
from collections.abc import Hashable
from typing import ClassVar

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.row_windows import Window, rows_from
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.dataflow.selection import select_by_client
from fedcore.graphs.sequences.columns import Columns, Rows
from fedcore.graphs.sequences.layout import Layout
from fedcore.types.immutable_arrays import aligned_empty, is_aligned

ABSENT = -1
"""The client of an empty lane, and the lane of an absent client."""


@attrs.frozen(eq=False)
class SequenceLanes:
    """The batches of one sequence in the lanes of a call.

    Args:
        clients: int64 [lanes], the client of each lane; `ABSENT` for an empty lane.
        sizes: int64 [lanes, steps]: rows of each batch; 1 for an element that is not a batch, 0 after the client's end.
        batch_rows: the padded size of a batch; 0 if elements are not batches.
        width: lanes of a group.
    """

    clients: np.ndarray
    sizes: np.ndarray
    batch_rows: int
    width: int

    @property
    def largest(self) -> np.ndarray:
        """int64 [groups, steps]: rows of the largest batch of a group in each step."""
        return self.sizes.reshape(len(self.sizes) // self.width, self.width, self.sizes.shape[1]).max(axis=1)

    @property
    def steps(self) -> np.ndarray:
        """int64 [groups]: steps of the client that takes most."""
        return (self.largest > 0).sum(axis=1)


@attrs.frozen(eq=False)
class RowLayout(abc.ABC):
    """The packed rows of one sequence in a graph, of all clients of a call or of one group.

    Class methods pack on the host; all others read in the graph.

    Args:
        columns: for each leaf of an element the rows of clients.
        index: int64, positions in the columns.
        sizes: int64 [clients, steps]: rows of each batch; 1 for an element that is not a batch, 0 after the client's
            end.
        batch_rows: the padded size of a batch; 0 if elements are not batches.
        first_rows: the number of rows of a padded batch that are read; None: all.
    """

    title: ClassVar[str]
    columns: tuple
    index: Value
    sizes: Value
    batch_rows: int
    first_rows: int | None = None

    # --- on the host ---

    @classmethod
    def specs(cls, layout: Layout, batch_rows: int) -> list[tf.TensorSpec]:
        """Specs of the packed columns, the index and the sizes."""
        return [*layout.column_specs(), tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, None], tf.int64)]

    @classmethod
    @abc.abstractmethod
    def pack_index(cls, lanes: SequenceLanes, columns: list[Columns], orders: list[Rows]) -> np.ndarray:
        """The index into the packed columns, which tells where the rows of each lane's batches are.

        Args:
            columns, orders: the sequence of each client, and the order in which it is read.
        """

    @classmethod
    @abc.abstractmethod
    def columns_key(cls, lanes: SequenceLanes) -> Hashable:
        """The key under which a cache keeps the columns that `pack_columns` makes of some clients."""

    @classmethod
    @abc.abstractmethod
    def pack_columns(cls, lanes: SequenceLanes, columns: list[Columns]) -> tuple:
        """For each leaf of an element the packed rows of all clients, without their order or with it."""

    # --- in the graph ---

    def group(self, lanes: Window, first_lane: Value) -> "RowLayout":
        """The rows of the clients of one group.

        Args:
            lanes: the window of the group's lanes.
            first_lane: int64 [], where it begins.
        """
        return attrs.evolve(self, sizes=lanes.of(self.sizes), index=lanes.of(self.index))

    @abc.abstractmethod
    def columns_of(self, step: Value) -> list[Value]:
        """The columns of one step's elements, [clients, (rows,) …]."""

    @property
    def rows_of_batches(self) -> Value:
        """int64 [clients]: the rows of the padded batches of each client."""
        return self.batch_rows * ops.reduce_sum(ops.cast(self.sizes > 0, tf.int64), axis=1)

    @property
    def own_rows(self) -> Value:
        """int64 [clients]: the rows of all steps, behind which the rows of each client in `all_columns` are padded."""
        return ops.reduce_sum(self.sizes, axis=1)

    @property
    def row_count(self) -> Value:
        """int64: the rows of each client in `all_columns`: those of the batches of the client that has most."""
        return ops.reduce_max(self.rows_of_batches)

    def rows_of_groups(self, width: int) -> Value:
        """int64 [groups]: the `row_count` of each group of a call."""
        return ops.reduce_max(ops.reshape(self.rows_of_batches, [-1, width]), axis=1)

    @abc.abstractmethod
    def all_columns(self) -> list[Value]:
        """The columns of the batches of a group, all steps side by side, [clients, rows, …].

        Behind a client's end there are finite rows, as long as the client's own rows are finite.
        """


class GatheredRows(RowLayout):
    """Batches of any rows in any order: the index names each row of each batch."""

    title = "gathered"

    @classmethod
    def specs(cls, layout: Layout, batch_rows: int) -> list[tf.TensorSpec]:
        *columns, _, sizes = super().specs(layout, batch_rows)
        rows = [None, None, batch_rows] if layout.batched else [None, None]
        return [*columns, tf.TensorSpec(rows, tf.int64), sizes]

    @classmethod
    def pack_index(cls, lanes: SequenceLanes, columns: list[Columns], orders: list[Rows]) -> np.ndarray:
        """int64 [lanes, steps, batch rows], or [lanes, steps] of single elements: a row number for each row.

        Steps behind a client's end, and empty lanes, read any row that there is.
        """
        lengths = np.array([len(c.arrays[0]) for c in columns])
        starts, last = np.cumsum(lengths) - lengths, max(int(lengths.sum()) - 1, 0)
        batch_shape = (lanes.batch_rows,) if lanes.batch_rows else ()
        index = np.zeros((*lanes.sizes.shape, *batch_shape), np.int64)
        for lane in np.flatnonzero(lanes.clients != ABSENT).tolist():
            order, start = orders[lanes.clients[lane]], starts[lanes.clients[lane]]
            index[lane, len(order) :] = min(start, last)
            if len(order):
                index[lane, : len(order)] = (pad_rows(order.rows, *batch_shape) if batch_shape else order.rows) + start
        return index

    @classmethod
    def columns_key(cls, lanes: SequenceLanes) -> Hashable:
        return CONCATENATED

    @classmethod
    def pack_columns(cls, lanes: SequenceLanes, columns: list[Columns]) -> tuple:
        return concatenate_columns(columns)

    def at_level(self, batch_rows: int) -> "GatheredRows":
        """The rows of clients whose batches have at most `batch_rows` rows."""
        return attrs.evolve(self, index=self.index[:, :, :batch_rows], batch_rows=batch_rows)

    def columns_of(self, step: Value) -> list[Value]:
        numbers = ops.gather(self.index, step, axis=1)
        numbers = numbers if self.first_rows is None else numbers[:, : self.first_rows]
        return [ops.gather(c, numbers) for c in self.columns]

    @property
    def own_rows(self) -> Value:
        return self.rows_of_batches  # with the copies of the last row that fill a short batch

    def all_columns(self) -> list[Value]:
        numbers = ops.reshape(self.index[:, : steps_of(self.sizes)], [self.index.shape[0], -1])
        has_rows = ops.reduce_any(self.sizes > 0, axis=1)  # the row numbers of a client without rows are another's
        rows = [ops.gather(c, numbers) for c in self.columns]
        return [select_by_client(has_rows, [t], [ops.zeros_like(t)])[0] for t in rows]


class RowsInOrder(RowLayout):
    """The rows of each lane in reading order, group after group: no row is gathered.

    The columns of a group are [clients, rows of all steps, …]; the last batch may have fewer rows than the others.
    """

    title = "in order"

    @classmethod
    def pack_index(cls, lanes: SequenceLanes, columns: list[Columns], orders: list[Rows]) -> np.ndarray:
        return np.cumsum([0, *_rows_of_lanes(lanes) * lanes.width])

    @classmethod
    def columns_key(cls, lanes: SequenceLanes) -> Hashable:
        return cls.title, lanes.batch_rows, lanes.width, lanes.clients.tobytes()

    @classmethod
    def pack_columns(cls, lanes: SequenceLanes, columns: list[Columns]) -> tuple:
        """Each column with the rows of all lanes, one lane after the other: [rows of all lanes, …].

        Each lane is filled up to the number of rows that the lanes of its group have: with copies of its client's last
        row, or, if the client has no rows, with a row of another client, or with zeros if that row is not finite. The
        graph computes with padded rows too, so they must be valid inputs of the model; products with zeros may read
        them, so they must be finite where the client's own rows are.
        """
        client_rows = lanes.sizes.sum(axis=1).tolist()  # of each lane
        padded_rows = np.repeat(_rows_of_lanes(lanes), lanes.width).tolist()  # of each lane
        results = []
        for position in range(len(columns[0].arrays)):
            arrays = [np.asarray(c.arrays[position]) for c in columns]
            filling = _filling_row(arrays)
            pieces = [filling[:0]]
            for client, count, padded_count in zip(lanes.clients.tolist(), client_rows, padded_rows, strict=True):
                if count:
                    pieces.append(arrays[client][:count])
                if count < padded_count:
                    last = arrays[client][count - 1 : count] if count else filling
                    pieces.append(np.broadcast_to(last, (padded_count - count, *last.shape[1:])))
            results.append(_concatenate(pieces))
        return tuple(results)

    def group(self, lanes: Window, first_lane: Value) -> RowLayout:
        """The rows of a group, which stand between two entries of the index, as columns [width, rows, …]."""
        sizes = lanes.of(self.sizes)
        width = int(sizes.shape[0])
        begin, end = ops.unstack(ops.gather(self.index, first_lane // width + ops.range_(2, dtype=tf.int64)))
        rows = Window(begin, end - begin)
        columns = tuple(ops.reshape(rows.of(c), [width, -1, *c.shape[1:]]) for c in self.columns)
        return attrs.evolve(self, columns=columns, sizes=sizes)

    def columns_of(self, step: Value) -> list[Value]:
        return [rows_from(c, step * self.batch_rows, self.first_rows or self.batch_rows) for c in self.columns]

    @property
    def row_count(self) -> Value:
        return ops.shape(self.columns[0], tf.int64)[1]

    def rows_of_groups(self, width: int) -> Value:
        return (self.index[1:] - self.index[:-1]) // width

    def all_columns(self) -> list[Value]:
        return list(self.columns)


class WholeBatches(RowsInOrder):
    """Rows in order of clients that all take one step: the columns are [clients, batch rows, …]."""

    title = "whole batches"

    @classmethod
    def specs(cls, layout: Layout, batch_rows: int) -> list[tf.TensorSpec]:
        *columns, index, sizes = super().specs(layout, batch_rows)
        return [*(tf.TensorSpec([None, batch_rows, *s.shape[1:]], s.dtype) for s in columns), index, sizes]

    @classmethod
    def pack_columns(cls, lanes: SequenceLanes, columns: list[Columns]) -> tuple:
        return tuple(c.reshape(-1, lanes.batch_rows, *c.shape[1:]) for c in super().pack_columns(lanes, columns))

    def group(self, lanes: Window, first_lane: Value) -> RowLayout:
        return attrs.evolve(self, columns=tuple(map(lanes.of, self.columns)), sizes=lanes.of(self.sizes))

    def columns_of(self, step: Value) -> list[Value]:
        return list(self.columns)


CONCATENATED = "concatenated"
"""The key of columns that hold all rows of all clients, one client after the other."""


def concatenate_columns(columns: list[Columns]) -> tuple:
    """Each column of all clients, one client after the other; one row of zeros if no client has rows."""
    results = []
    for i in range(len(columns[0].arrays)):
        column = _concatenate([np.asarray(c.arrays[i]) for c in columns])
        results.append(column if len(column) else _zero_row(column))
    return tuple(results)


def _zero_row(column: np.ndarray) -> np.ndarray:
    """One row of zeros, or of empty strings."""
    return np.full((1, *column.shape[1:]), b"" if column.dtype == object else 0, column.dtype)


def pad_rows(rows: np.ndarray, width: int) -> np.ndarray:
    """[steps, n] -> [steps, width]: rows are cut off, or each batch's last row is repeated."""
    missing = width - rows.shape[1]
    return rows[:, :width] if missing <= 0 else np.concatenate([rows, np.repeat(rows[:, -1:], missing, axis=1)], axis=1)


def steps_of(sizes: Value) -> Value:
    """int64: the number of steps that clients take whose batches have the given sizes, int64 [clients, steps]."""
    return ops.reduce_sum(ops.cast(ops.reduce_any(sizes > 0, axis=0), tf.int64))


def _rows_of_lanes(lanes: SequenceLanes) -> np.ndarray:
    """int64 [groups]: the number of rows of each lane of a group.

    It is that of the client with most rows; a last batch of one row has two, since products of one row have other bits.
    If no client of the call takes two steps, it is a whole batch, so that clients of a single step have equally many.
    """
    most = lanes.sizes.sum(axis=1).reshape(-1, lanes.width).max(axis=1)
    if lanes.sizes.shape[1] == 1:
        return np.where(most > 0, lanes.batch_rows, 0)
    return most + (most % max(lanes.batch_rows, 1) == 1)


def _filling_row(arrays: list[np.ndarray]) -> np.ndarray:
    """[1, …]: the first row of the first client that has rows; zeros if none has, or if the row is not finite."""
    zeros = _zero_row(arrays[0])
    row = next((a[:1] for a in arrays if len(a)), zeros)
    return zeros if row.dtype.kind in "fc" and not np.isfinite(row).all() else row


def _concatenate(arrays: list[np.ndarray]) -> np.ndarray:
    """`np.concatenate` into memory that is aligned, so that TensorFlow uses it without a copy."""
    shape, dtype = (sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype
    if dtype.hasobject:
        return np.concatenate(arrays)
    if len(arrays) == 1 and is_aligned(arrays[0]) and not arrays[0].flags.writeable:
        return arrays[0]
    return np.concatenate(arrays, out=aligned_empty(shape, dtype))

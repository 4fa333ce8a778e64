"""The rows of a lane are its client's rows, however they are packed."""

import numpy as np
import optree
import pytest
import tensorflow as tf
from run_region import run_region

import fedcore as fc
from fedcore.graphs.batched.row_layouts import (
    ABSENT,
    GatheredRows,
    RowLayout,
    RowsInOrder,
    SequenceLanes,
    WholeBatches,
)
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.batched.schedule import sizes_by_lane
from fedcore.graphs.dataflow import operations as ops

BATCH, WIDTH = 2, 2
LAYOUTS = [
    (GatheredRows, [2, 5, 3]),
    (GatheredRows, [0, 4, 1, 7]),
    (RowsInOrder, [2, 5, 3]),
    (RowsInOrder, [0, 4, 1, 7]),
    (WholeBatches, [2, 1, 2]),
]


def client(number: int, rows: int):
    """A client whose rows are [number, 0], [number, 1], …"""
    return fc.data.ClientDataset.from_columns(make_rows(number, rows)).batch(BATCH).columns


def make_rows(number: int, rows: int) -> np.ndarray:
    return np.stack([np.full(rows, number), np.arange(rows)], 1).astype("f")


def pack(rows: type[RowLayout], counts: list[int]) -> tuple[SequenceLanes, tuple, np.ndarray]:
    """The lanes, the packed columns and the index; lanes hold clients by descending rows."""
    columns = [client(number, n) for number, n in enumerate(counts)]
    orders = [c.read(0) for c in columns]
    order = np.argsort(-np.array(counts), kind="stable")
    clients = np.concatenate([order, np.full(-len(order) % WIDTH, ABSENT)])
    lanes = SequenceLanes(clients, sizes_by_lane(orders, clients), BATCH, WIDTH)
    return lanes, rows.pack_columns(lanes, columns), rows.pack_index(lanes, columns, orders)


def groups(rows: type[RowLayout], counts: list[int], read) -> list[tuple]:
    """The results of `read` for each group: with its clients, and the numbers of their rows."""
    lanes, columns, index = pack(rows, counts)

    def body(first_lane, *values):
        *columns, index, sizes = values
        whole = rows(tuple(columns), index, sizes, BATCH)
        values, structure = optree.tree_flatten(read(whole.group(Window(first_lane, WIDTH), first_lane)))
        structures.append(structure)
        return values

    results, structures = [], []
    specs = rows.specs(client(0, 1).layout, BATCH)
    tensors = [tf.constant(t) for t in (*columns, index, lanes.sizes)]
    assert all(s.is_compatible_with(t) for s, t in zip(specs, tensors, strict=True))
    shapes = {i: s.shape for i, s in enumerate(specs, 1)}
    for first in range(0, len(lanes.clients), WIDTH):
        clients = lanes.clients[first : first + WIDTH]
        client_rows = [make_rows(c, counts[c]) if c != ABSENT else make_rows(0, 0) for c in clients]
        arrays = run_region(body, np.int64(first), *(t.numpy() for t in tensors), shapes=shapes)
        results.append((client_rows, optree.tree_unflatten(structures[-1], arrays)))
    return results


def test_the_example_of_the_module():
    counts = [2, 5, 3]
    expected = {
        GatheredRows: [[0, 0], [0, 1], *[[1, i] for i in range(5)], *[[2, i] for i in range(3)]],
        RowsInOrder: [
            *[[1, min(i, 4)] for i in range(6)],
            *[[2, min(i, 2)] for i in range(6)],
            *[[0, 0], [0, 1]] + [[0, 0]] * 2,
        ],
    }
    for rows, column_rows in expected.items():
        _, (column,), _ = pack(rows, counts)
        assert column.tolist() == column_rows
    index = {rows: pack(rows, counts)[2].tolist() for rows in expected}
    assert index[GatheredRows][:2] == [[[2, 3], [4, 5], [6, 6]], [[7, 8], [9, 9], [7, 7]]]
    assert index[RowsInOrder] == [0, 12, 16]
    lanes, (column,), _ = pack(WholeBatches, [2, 1])
    assert lanes.sizes.tolist() == [[2], [1]]
    assert column.tolist() == [[[0, 0], [0, 1]], [[1, 0], [1, 0]]]


@pytest.mark.parametrize(("rows", "counts"), LAYOUTS)
def test_the_rows_of_a_step_are_the_clients(rows, counts):
    steps = -(-max(counts) // BATCH)

    def read(group: RowLayout):
        return group.sizes, [group.columns_of(ops.constant(s, tf.int64))[0] for s in range(steps)]

    for clients, (sizes, step_rows) in groups(rows, counts, read):
        for lane, own in enumerate(clients):
            batches = [x[lane, :n] for x, n in zip(step_rows, sizes[lane], strict=True)]
            np.testing.assert_array_equal(np.concatenate(batches), own)


@pytest.mark.parametrize(("rows", "counts"), [c for c in LAYOUTS if c[0] in (GatheredRows, RowsInOrder)])
def test_half_steps_have_the_first_rows(rows, counts):
    def read(group: RowLayout):
        half = type(group)(group.columns, group.index, group.sizes, group.batch_rows, first_rows=1)
        step = ops.constant(0, tf.int64)
        return group.columns_of(step)[0][:, :1], half.columns_of(step)[0]

    for _, (first, half) in groups(rows, counts, read):
        np.testing.assert_array_equal(first, half)


@pytest.mark.parametrize(("rows", "counts"), LAYOUTS)
def test_all_columns_begin_with_the_clients_rows_and_end_with_finite_ones(rows, counts):
    for clients, (column, own_rows, count) in groups(
        rows, counts, lambda g: (g.all_columns()[0], g.own_rows, g.row_count)
    ):
        assert column.shape[1] == count
        assert np.isfinite(column).all()
        for lane, own in enumerate(clients):
            assert len(own) <= own_rows[lane] < len(own) + BATCH
            np.testing.assert_array_equal(column[lane, : len(own)], own)


@pytest.mark.parametrize(("rows", "counts"), LAYOUTS)
def test_the_rows_of_groups_are_those_of_each_group(rows, counts):
    lanes, columns, index = pack(rows, counts)
    whole = rows(columns, tf.constant(index), tf.constant(lanes.sizes), BATCH)
    assert whole.rows_of_groups(WIDTH).numpy().tolist() == [
        int(count) for _, count in groups(rows, counts, lambda group: group.row_count)
    ]


def test_a_row_that_is_not_finite_fills_no_other_clients():
    columns = fc.data.ClientDataset.from_columns(np.full((3, 2), np.nan, "f")).batch(BATCH).columns
    lanes = SequenceLanes(np.array([0, ABSENT]), np.array([[2, 1], [0, 0]]), BATCH, WIDTH)
    (column,) = RowsInOrder.pack_columns(lanes, [columns])
    assert np.isnan(column[:4]).all()
    assert not column[4:].any()

"""The elements of a step, mapped for all clients at once, are those of each client's sequence."""

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

import fedcore as fc
from fedcore.graphs.batched.batched_sequence import BatchedSequence, at_element
from fedcore.graphs.batched.batched_value import broadcast_to_clients
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.row_windows import Window
from fedcore.graphs.batched.schedule import ScheduleRules, schedule_clients
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.tensors.values import flatten

BATCH, COUNTS = 2, (2, 5, 3)


def dataset(number: int, rows: int, *, batches=True, before=None, after=None):
    rng = np.random.default_rng(number)
    data = fc.data.ClientDataset.from_columns((rng.normal(size=(rows, 3)).astype("f"), np.arange(rows)))
    data = data if before is None else data.map(before)
    data = data.batch(BATCH) if batches else data
    return data if after is None else data.map(after)


def elements(data) -> list[tuple]:
    """The elements of a data set, as `tf.data` has them."""
    return [tuple(np.asarray(t) for t in tf.nest.flatten(e)) for e in data]


CASES = {
    "batches": {},
    "single examples": {"batches": False},
    "maps over examples": {"before": lambda x, n: (x * 2.0 + tf.cast(n, tf.float32), n * n)},
    "maps over single examples": {"batches": False, "before": lambda x, n: (tf.reduce_sum(x), n - 1)},
    "maps over batches": {"after": lambda x, n: (x - tf.reduce_mean(x, 0), tf.reverse(x, [1]) * 1.0)},
    "both": {"before": lambda x, n: (tf.stack([x, x]), n + 1), "after": lambda x, n: (tf.reduce_sum(x, 1), n)},
}


def steps_of(datasets, read, *, width=2) -> list[list]:
    """`read` of the sequence of each group, with the clients of its lanes."""
    leaves = ClientLeaves([(d.columns,) for d in datasets])
    orders = leaves.orders(np.arange(len(datasets)), [0])
    schedule = schedule_clients(leaves, orders, ScheduleRules(width), range(len(datasets)), len(datasets))
    lanes, columns = schedule.lanes(0), leaves.sequences[0]
    rows = schedule.layout.rows
    arrays = [*rows.pack_columns(lanes, columns), rows.pack_index(lanes, columns, orders[0]), lanes.sizes]

    def body(*tensors):
        *columns, index, sizes = tensors
        whole = BatchedSequence(
            schedule.layout.layouts[0],
            schedule.layout.rows(tuple(columns), index, sizes, schedule.layout.batch_rows[0]),
        )
        first = ops.constant(group * width, tf.int64)
        return read(whole.group(Window(first, width), first))

    results = []
    for group in range(len(lanes.clients) // width):
        clients = lanes.clients[group * width : (group + 1) * width]
        results.append([clients, lanes.sizes[group * width :][:width], *run_region(body, *arrays)])
    return results


@pytest.mark.parametrize("name", CASES)
def test_the_element_of_a_step_has_each_clients_rows(name):
    datasets = [dataset(i, n, **CASES[name]) for i, n in enumerate(COUNTS)]
    step = 1

    def read(sequence):
        s = ops.constant(step, tf.int64)
        sizes = sequence.batch_sizes(s)
        values = flatten(sequence.element(s, sizes, sequence.columns_of(s)))
        assert all(v.padded_axis == (0 if sequence.layout.batched else None) for v in values)
        return [sizes, *(broadcast_to_clients(v, 2) for v in values)]

    for clients, all_sizes, sizes, *tensors in steps_of(datasets, read):
        np.testing.assert_array_equal(sizes, all_sizes[:, step])
        for lane, client in enumerate(clients):
            own = elements(datasets[client]) if client >= 0 else []
            if step >= len(own):
                assert sizes[lane] == 0
                continue
            for have, want in zip(tensors, own[step], strict=True):
                rows = have[lane, : sizes[lane]] if CASES[name].get("batches", True) else have[lane]
                np.testing.assert_allclose(rows, want, rtol=1e-5, atol=1e-6)


def test_halves_have_the_first_rows_of_a_batch():
    datasets = [dataset(i, n) for i, n in enumerate(COUNTS)]

    def read(sequence):
        s = ops.constant(0, tf.int64)
        half = sequence.halves()
        assert half.batch_rows == sequence.batch_rows == BATCH
        return [sequence.columns_of(s)[0], half.columns_of(s)[0]]

    for _, _, whole, half in steps_of(datasets, read):
        np.testing.assert_array_equal(half, whole[:, : BATCH // 2])


def test_maps_of_the_plan_are_applied_in_order():
    datasets = [dataset(i, n) for i, n in enumerate(COUNTS)]

    def read(sequence):
        def apply(fn):
            return lambda element: (element[0].with_tensor(fn(element[0].tensor)), element[1])

        maps = apply(lambda x: x * 2.0), apply(lambda x: x + 1.0)
        mapped = BatchedSequence(sequence.layout, sequence.rows, maps)
        s = ops.constant(0, tf.int64)
        x, _ = mapped.element(s, mapped.batch_sizes(s), mapped.columns_of(s))
        return [sequence.columns_of(s)[0], x.tensor]

    for _, _, plain, mapped in steps_of(datasets, read):
        np.testing.assert_array_equal(mapped, plain * 2 + 1)


def test_only_functions_of_a_plan_have_the_seed_of_an_element():
    def plain(x):
        return x

    assert at_element(plain, 3) is plain

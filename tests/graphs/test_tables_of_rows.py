"""Tables whose changed rows are kept: what operations on them give, and which a step keeps."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.batched import changed_rows
from fedcore.graphs.batched.batched_call import call_as_function
from fedcore.graphs.batched.batched_value import BatchedValue
from fedcore.graphs.batched.changed_rows import ChangedRows, gradient_rows, table_sum, tables_of_step
from fedcore.graphs.batched.low_rank import divide_by, multiply_by, negative
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import new_region
from fedcore.graphs.emission.region_function import region_function
from fedcore.graphs.graphdef.form.captured_graph import captured_graph

SHAPE = (5, 2)
TABLE = np.arange(10, dtype="f").reshape(SHAPE)
WEIGHTS = fc.to_type([("table", ("float32", SHAPE)), ("kernel", ("float32", (2, 2)))])
WORDS = fc.TensorType("int32", (None,))


def results_of(body) -> list[np.ndarray]:
    """The results of a function that builds a region."""
    return [t.numpy() for t in region_function(new_region([], body), name="tables")()]


def table(rows: list[int], base=None) -> ChangedRows:
    """The table whose row r, of those given, is [10 r, 1]."""
    values = ops.constant(np.reshape([[10.0 * r, 1.0] for r in rows], (len(rows), 2)), tf.float32)
    return ChangedRows.of(SHAPE, ops.constant(rows, tf.int64), values, base)


def dense(rows: list[int], base=0.0) -> np.ndarray:
    result = np.zeros(SHAPE, "f") + base
    for r in rows:
        result[r] = [10 * r, 1]
    return result


@pytest.mark.parametrize("rows", [[], [3], [4, 0, 2]])
def test_a_table_is_its_base_with_other_rows(rows):
    def body():
        base = ops.constant(TABLE)
        found = [table(rows).dense()[0], table(rows, base).dense()[0]]
        return [*found, table(rows, base).gather(ops.constant([[0, 3], [3, 1]]))]

    changed, both, looked_up = results_of(body)
    assert np.array_equal(changed, dense(rows))
    assert np.array_equal(both, dense(rows, TABLE))
    assert np.array_equal(looked_up, dense(rows, TABLE)[[[0, 3], [3, 1]]])


@pytest.mark.parametrize(("left", "right"), [([], [1]), ([1, 3], [3, 0]), ([2], [])])
def test_sums_and_differences_have_the_rows_of_both(left, right):
    def body():
        base = ops.constant(TABLE)
        old, change = table(left, base), table(right)
        sums = [table_sum(old, change, subtract=s) for s in (False, True)]
        sums += [table_sum(table(left), change, subtract=True), table_sum(change, base, subtract=False)]
        sums += [table_sum(old, base, subtract=True), table_sum(old, table(right, base), subtract=True)]
        assert [t.base is base for t in sums] == [True, True, False, True, False, False]
        return [t.dense()[0] for t in sums]

    old, change = dense(left, TABLE), dense(right)
    expected = [
        old + change,
        old - change,
        dense(left) - change,
        TABLE + change,
        old - TABLE,
        old - dense(right, TABLE),
    ]
    for x, y in zip(results_of(body), expected, strict=True):
        assert np.array_equal(x, y)


def test_a_function_returns_the_base_that_it_computes():
    def body():
        def build():
            return [BatchedValue(None, True, form=table([3], ops.constant(TABLE) + 1.0))]

        (value,) = call_as_function(build, "fused")
        return [value.form.dense()[0]]

    (found,) = results_of(body)
    assert np.array_equal(found, dense([3], TABLE + 1))


def test_other_sums_are_dense():
    def body():
        first, second = ops.constant(TABLE), ops.constant(TABLE + 1)
        assert table_sum(table([1], first), table([1], second), subtract=True) is None
        assert table_sum(table([1]), table([1], first), subtract=True) is None
        assert table_sum(first, second, subtract=False) is None
        assert table([1], first).only_factors is None
        return [first]

    results_of(body)


def test_linear_functions_change_the_rows():
    def body():
        two, change = ops.constant(2.0), table([1, 4])
        tables = [change.map_linear(fn) for fn in (negative, multiply_by(two), divide_by(two))]
        tables += [change.or_zero(ops.constant(is_kept)) for is_kept in (True, False)]
        return [*(t.dense()[0] for t in tables), change.finiteness_of_sum()]

    *found, total = results_of(body)
    change = dense([1, 4])
    for x, y in zip(found, [-change, change * 2, change / 2, change, change * 0], strict=True):
        assert np.array_equal(x, y)
    assert total.tolist() == [change.sum()]


def test_the_gradient_of_a_lookup_adds_up_rows_and_leaves_out_negative_numbers():
    rows, segments = np.arange(10, dtype="f").reshape(5, 2), [3, 1, -1, 3, 3]

    def body():
        gradient = gradient_rows(SHAPE, ops.constant(rows), ops.constant(segments, tf.int32))
        return [gradient.numbers, gradient.dense()[0]]

    numbers, found = results_of(body)
    assert numbers.tolist() == [3, 1]
    assert np.array_equal(found, tf.math.unsorted_segment_sum(rows, segments, 5))


def kept_tables(monkeypatch, change) -> dict[int, tuple[int, int]]:
    """The tables of a step that sums the rows of a batch's words, and then changes the weights.

    Args:
        change: (the table, its dense gradient, the rows, the kernel) -> the new table.
    """
    monkeypatch.setattr(changed_rows, "LEAST_TABLE_BYTES", 4 * TABLE.size)

    @fc.tf_computation(WEIGHTS, WORDS)
    def step(weights, words):
        with tf.GradientTape() as tape:
            tape.watch(weights["table"])
            rows = tf.gather(weights["table"], words)
            loss = tf.reduce_sum(rows @ weights["kernel"])
        gradient = tf.convert_to_tensor(tape.gradient(loss, weights["table"]))
        return {"table": change(weights["table"], gradient, rows, weights["kernel"]), "kernel": weights["kernel"]}

    (graph,) = step.module.graphs
    return tables_of_step(captured_graph(graph, step.module.blob(graph.digest)).main, WEIGHTS, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda table, gradient, *_: table - 0.1 * gradient,
        lambda table, gradient, *_: table + -gradient / 2.0,
        lambda table, gradient, rows, _: table - tf.reduce_mean(rows) * (gradient + 2.0 * gradient),
        lambda table, *_: table,
    ],
)
def test_steps_that_look_up_rows_and_change_them_keep_tables(monkeypatch, change):
    assert kept_tables(monkeypatch, change) == {0: SHAPE}


@pytest.mark.parametrize(
    "change",
    [
        lambda table, gradient, *_: 0.9 * table - gradient,
        lambda table, gradient, *_: table - gradient / tf.norm(gradient),
        lambda table, gradient, *_: table - gradient * gradient,
        lambda table, gradient, *_: gradient - table,
        lambda table, gradient, *_: gradient,
        lambda table, gradient, rows, kernel: table - gradient @ kernel,
        lambda table, gradient, *_: table - gradient + tf.reduce_sum(table),
        lambda table, gradient, *_: table - 2.0 / gradient,
        lambda table, gradient, *_: table - tf.reduce_sum(tf.gather(table, [0], axis=1)) * gradient,
    ],
)
def test_other_steps_keep_none(monkeypatch, change):
    assert kept_tables(monkeypatch, change) == {}

"""Batching rules of branches, loops and recurrent layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import check, check_padded, run_batched, traced, why_not_batchable
from equal_rows import needs_equal_rows
from test_batching_elementwise import normal
from test_batching_models import gradients, integers

from fedcore.graphs.batched.batched_call import batched_call
from fedcore.graphs.batched.batched_value import batched
from fedcore.graphs.batched.batching_rules import control_flow
from fedcore.graphs.batched.trip_count import iterations_at_once
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Region, new_region


def region_of(graph: TracedGraph, values: list[np.ndarray], sizes: list[int]) -> Region:
    """The region of a graph for clients, whose first two arguments are padded batches."""

    def body(*tensors):
        arguments = [batched(t, 0 if i < 2 else None) for i, t in enumerate(tensors)]
        return [x.tensor for x in batched_call(graph, graph.data, arguments, ops.constant(sizes, tf.int64))]

    return new_region([(v.dtype, v.shape) for v in values], body)


def nodes_of_loops(region: Region) -> list[Node]:
    """The nodes of the regions that nodes run."""
    inner = [each for node in region.nodes for each in node.regions]
    return [node for each in inner for node in (*each.nodes, *nodes_of_loops(each))]


def test_loops_with_the_same_number_of_steps_for_all_clients():
    def fn(x, steps):
        total, _ = tf.while_loop(lambda _, i: i < steps, lambda t, i: (tf.tanh(t + x), i + 1), (tf.zeros_like(x), 0))
        return total

    check(fn, normal(8, 3, 5), np.int32(4), shared=[1])
    check_padded(fn, normal(3, 4, 5), np.int32(4), padded=[0], shared=[1], sizes=[4, 1, 2])


def test_loops_of_different_numbers_of_steps_have_no_rule():
    def fn(x, steps):
        return tf.while_loop(lambda _, i: i < steps, lambda t, i: (t + x, i + 1), (tf.zeros_like(x), 0))[0]

    graph = traced(fn, (3,), (np.int32, ()))
    refused = why_not_batchable(graph, graph.data, {0, 1})
    assert refused is not None
    assert "different numbers of steps" in str(refused)


@pytest.fixture
def built_together(monkeypatch) -> list[int]:
    """Gets for each loop how many of its iterations are built as one."""
    found: list[int] = []

    def noted(step, trips):
        found.append(iterations_at_once(step, trips))
        return found[-1]

    monkeypatch.setattr(control_flow, "iterations_at_once", noted)
    return found


@pytest.mark.parametrize(("steps", "together"), [(12, 4), (9, 3), (10, 2), (7, 1), (1, 1), (0, 1)])
def test_iterations_of_a_known_number_are_built_together(steps, together, built_together):
    """The loop of the gradient runs as often as the first loop has counted."""

    def fn(x, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            _, h = tf.while_loop(
                lambda i, h: (i < 100) & (i < steps), lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w) + x)), (0, x)
            )
            loss = tf.reduce_sum(h)
        return h, tape.gradient(loss, w)

    check(fn, normal(8, 3, 5), normal(8, 5, 5), widths=(3,), tolerance=2e-5)  # 12 products in a row
    assert set(built_together) == {together}


@pytest.mark.parametrize(
    "loop",
    [
        lambda x, n: tf.while_loop(lambda i, t: i < n, lambda i, t: (i + 1, t + x), (0, x)),
        lambda x, n: tf.while_loop(lambda i, t: i < 12, lambda i, t: (i + 2, t + x), (0, x)),
        lambda x, n: tf.while_loop(lambda i, t: i < 12, lambda i, t: (i + 1, t + x), (n, x)),
        lambda x, n: tf.while_loop(lambda i, t: i <= 11, lambda i, t: (i + 1, t + x), (0, x)),
        lambda x, n: tf.while_loop(lambda i, t: (i < 12) | (i < n), lambda i, t: (i + 1, t + x), (0, x)),
        lambda x, n: tf.while_loop(lambda i, t: (i < 12) & (n < 12), lambda i, t: (i + 1, t + x), (0, x)),
    ],
    ids=["bound", "stride", "start", "comparison", "or", "another condition"],
)
def test_iterations_of_an_unknown_number_are_built_one_by_one(loop, built_together):
    for n in (3, 8, 15):
        check(lambda x, n: loop(x, n)[1], normal(8, 3, 5), np.int32(n), shared=[1], widths=(3,))
    assert set(built_together) == {1}


def test_a_branch_that_all_clients_take():
    def fn(x, flag):
        return tf.cond(flag > 0, lambda: x * 2.0, lambda: tf.zeros_like(x) + 1.0)

    for flag in (0, 1):
        check(fn, normal(8, 3, 5), np.int32(flag), shared=[1])
        check_padded(fn, normal(3, 4, 5), np.int32(flag), padded=[0], shared=[1], sizes=[4, 1, 2])


def test_a_branch_by_the_size_of_a_padded_batch_has_no_rule():
    def fn(x):
        return tf.cond(tf.shape(x)[0] > 0, lambda: x * 2.0, lambda: x)

    graph = traced(fn, (None, 3))
    assert why_not_batchable(graph, graph.data, {0}, {0: 0}) is not None


# The others are in the training steps of test_batching_models too, and their loops in the last one.
@pytest.mark.parametrize(
    "layer",
    [*(pytest.param(x, marks=pytest.mark.soak) for x in (keras.layers.SimpleRNN, keras.layers.GRU)), keras.layers.LSTM],
)
def test_recurrent_layers(layer):
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Embedding(11, 4),
            layer(5, return_sequences=True),
            keras.layers.Dense(11),
        ]
    )
    state = [tf.constant(np.asarray(v)) for v in model.non_trainable_variables]

    def loss(x, y, *weights):
        logits, _ = model.stateless_call(list(weights), state, x, training=True)
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))

    weights = [np.asarray(v) + 0.1 * normal(8, *v.shape) for v in model.trainable_variables]
    values = [integers(11, 8, 4, 6), integers(11, 8, 4, 6, seed=1), *weights]
    check(gradients(loss), *values, widths=(3,), tolerance=2e-5)
    check_padded(gradients(loss), *values, padded=[0, 1], sizes=[4, 1, 2, 3, 4, 1, 2, 3], tolerance=2e-5)


@pytest.mark.parametrize("layer", [keras.layers.SimpleRNN, keras.layers.GRU, keras.layers.LSTM])
def test_no_step_of_a_recurrent_layers_gradient_masks_rows(layer):
    """The gradient of the results is zero in padded rows, and so are its products with what the steps stored."""
    cell = layer(5, return_sequences=True)
    cell.build((None, 6, 4))
    state = [tf.constant(np.asarray(v)) for v in cell.non_trainable_variables]
    weights = [np.asarray(v) for v in cell.trainable_variables]

    def loss(x, y, *weights):
        out, _ = cell.stateless_call(list(weights), state, x)
        logits = tf.reshape(out, [-1, 5])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(y, [-1]), logits))

    values = [normal(3, 4, 6, 4), integers(5, 3, 4, 6), *(np.stack([w] * 3) for w in weights)]
    graph = traced(
        gradients(loss), *((a.dtype.type, (None, *a.shape[2:]) if i < 2 else a.shape[1:]) for i, a in enumerate(values))
    )

    operations = [node.op for node in nodes_of_loops(region_of(graph, values, [4, 1, 2]))]
    assert "BatchMatMulV2" in operations
    assert "Select" not in operations


def recurrent(rows: int, clients: int = 3):
    """The gradients of a layer that reads the elements 0 and 1 of a list in turn, and values for clients."""

    def loss(x, y, scale, kernel, recurrent_kernel):
        elements = tf.TensorArray(tf.float32, 2, element_shape=[None, 3]).unstack(tf.transpose(x * scale, [1, 0, 2]))

        def step(i, h):
            return i + 1, tf.tanh(elements.read(i % 2) @ kernel + h @ recurrent_kernel)

        start = (0, tf.zeros([tf.shape(x)[0], 40]))
        _, h = tf.while_loop(lambda i, _: i < 5, step, start)
        return tf.reduce_mean((h - y) ** 2)

    values = [normal(clients, rows, 2, 3), normal(clients, rows, 40, seed=1), 1 + normal(clients, 3, seed=2)]
    return gradients(loss), [*values, normal(clients, 3, 40, seed=3), 0.1 * normal(clients, 40, 40, seed=4)]


def test_products_of_a_loops_gradient_are_computed_behind_it():
    fn, values = recurrent(rows=3, clients=8)
    check(fn, *values, widths=(3,), tolerance=2e-6)
    check_padded(fn, *values, padded=[0, 1], sizes=[3, 1, 2, 3, 0, 1, 2, 3], tolerance=2e-6)
    graph = traced(fn, *((None, *v.shape[2:]) if i < 2 else v.shape[1:] for i, v in enumerate(values)))

    region = region_of(graph, values, [3, 1, 2, 3, 3, 1, 2, 3])
    inside = [node for node in nodes_of_loops(region) if node.op == "BatchMatMulV2"]
    behind = [node for node in region.nodes if node.op == "BatchMatMulV2"]
    assert inside
    assert not any(node.get("adj_x") for node in inside)
    assert sum(node.get("adj_x", False) for node in behind) == 2  # the gradients of both kernels
    assert sum(node.get("adj_y", False) for node in behind) == 1  # the gradient of the elements


@needs_equal_rows
def test_the_bits_of_a_loops_products_do_not_depend_on_the_size_of_padded_batches():
    fn, values = recurrent(rows=3)
    graph = traced(fn, *((None, *v.shape[2:]) if i < 2 else v.shape[1:] for i, v in enumerate(values)))
    results = []
    for rows in (3, 8, 20):
        padded = [np.concatenate([v, v[:, -1:].repeat(rows - 3, 1)], 1) for v in values[:2]]
        found = run_batched(graph, [*padded, *values[2:]], range(5), padded={0: 0, 1: 0}, sizes=[3, 1, 2])
        results.append([kernel_gradient.tobytes() for kernel_gradient, _ in found[-2:]])
    assert results[0] == results[1] == results[2]


def test_rows_that_a_loop_changes_are_masked_behind_it():
    def fn(x):
        def step(total, seen, i):
            return total + x, seen.write(i, total), i + 1

        start = tf.zeros_like(x), tf.TensorArray(tf.float32, 3), 0
        total, seen, _ = tf.while_loop(lambda _t, _s, i: i < 3, step, start)
        return tf.reduce_sum(total, 0), tf.reduce_sum(seen.stack(), [0, 1])

    check_padded(fn, normal(3, 4, 5), padded=[0], sizes=[4, 1, 2])


def test_a_gradient_through_padded_zeros_is_not_taken_for_zero():
    def fn(x, w):
        zeros = tf.zeros_like(x)
        return tf.reduce_sum(tf.raw_ops.TanhGrad(y=zeros @ w, dy=x @ w), 0), tf.reduce_sum(tf.where(x > 0, zeros, x), 0)

    check_padded(fn, normal(3, 4, 5), normal(3, 5, 2), padded=[0], sizes=[4, 1, 2])

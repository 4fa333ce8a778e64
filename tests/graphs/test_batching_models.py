"""Batching rules over models, their gradients and whole training steps."""

import functools
from collections import OrderedDict

import batched_by_client
import keras
import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import check, check_padded, close, run_batched, run_one_client, traced, why_not_batchable
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching_elementwise import normal

import fedcore as fc
from fedcore.graphs.batched.batched_call import batched_call
from fedcore.graphs.batched.batched_value import BatchedValue, Padding, batched, shared
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.own_rows import EACH, JOINED, TILES
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, new_region
from fedcore.types import tensor_leaves


def integers(high, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


def gradients(loss):
    """A function that returns a loss and its gradients by all floating parameters."""

    def fn(*arguments):
        watched = [a for a in arguments if a.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            out = loss(*arguments)
        return [out, *(tf.convert_to_tensor(g) for g in tape.gradient(out, watched))]

    return fn


@settings(max_examples=settings.default.max_examples // 2)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 2))
def test_products_of_matrices(n, k, m, transpose_a, transpose_b, common):
    def fn(a, b):
        return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)

    a = normal(8, *((k, n) if transpose_a else (n, k)))
    b = normal(8, *((m, k) if transpose_b else (k, m)), seed=1)
    values = [a[0] if common == 1 else a, b[0] if common == 2 else b]
    check(fn, *values, shared=[common - 1] if common else [], widths=(3,), tolerance=1e-5)


@pytest.mark.parametrize("shared", [[], [0], [1]])
def test_products_have_the_same_bits_at_every_width(shared):
    a, b = normal(8, 20, 75), normal(8, 75, 33, seed=1)
    check(tf.matmul, *(v[0] if i in shared else v for i, v in enumerate((a, b))), shared=shared, tolerance=1e-5)
    a, b = normal(8, 3, 7, 15), normal(8, 3, 15, 5, seed=1)
    check(tf.matmul, *(v[0] if i in shared else v for i, v in enumerate((a, b))), shared=shared, tolerance=1e-5)


@pytest.mark.parametrize(
    "of_pairs",
    [
        lambda x: x @ tf.transpose(x),
        lambda x: tf.matmul(x[tf.newaxis], x[tf.newaxis], transpose_b=True),
        lambda x: tf.matmul(x[:, tf.newaxis], x[tf.newaxis], transpose_b=True),
    ],
)
def test_a_product_of_each_row_with_each_row_has_no_rule(of_pairs):
    """As in attention over the rows of a batch: only one axis of the result could be masked."""
    graph = traced(lambda x: tf.reduce_sum(tf.nn.relu(of_pairs(x))), (None, 5))
    refused = why_not_batchable(graph, graph.data, {0}, {0: 0})
    assert refused is not None
    assert refused.why == "the result would have two batch axes"


@pytest.mark.parametrize("products", [JOINED, EACH, TILES])
@pytest.mark.parametrize(
    "weighted",
    [
        lambda weights, x: weights[tf.newaxis] @ x,
        lambda weights, x: tf.matmul(x, weights[:, tf.newaxis], transpose_a=True),
        lambda weights, x: tf.tensordot(weights, x, 1),
        lambda weights, x: weights[tf.newaxis, tf.newaxis] @ x[tf.newaxis],
        lambda weights, x: tf.transpose(x)[tf.newaxis] @ weights[tf.newaxis, :, tf.newaxis],
    ],
)
def test_products_over_the_rows_with_what_follows_from_their_number(weighted, products, monkeypatch):
    monkeypatch.setattr(batched_by_client, "PRODUCTS", products)

    def fn(x):
        numbers, ones = tf.cast(tf.range(tf.shape(x)[0]), tf.float32), tf.ones(tf.shape(x)[:1])
        return weighted(numbers, x), weighted(ones, x), weighted(tf.zeros_like(ones), x)

    check_padded(fn, normal(4, 6, 3), padded=[0], sizes=[6, 1, 3, 0], tolerance=1e-5)


def dense(x, w, b, v):
    return tf.reduce_mean(tf.nn.softmax(tf.nn.tanh(x @ w + b) @ v)[:, 0])


def test_dense_gradients():
    check(gradients(dense), normal(8, 6, 5), normal(8, 5, 7), normal(8, 7), normal(8, 7, 3), tolerance=1e-5)


def test_dense_gradients_of_shared_weights():
    weights = normal(5, 7), normal(7), normal(7, 3)
    check(gradients(dense), normal(8, 6, 5), *weights, shared=[1, 2, 3], tolerance=1e-5)


def test_dense_gradients_over_a_padded_batch():
    values = normal(4, 6, 5), normal(4, 5, 7), normal(4, 7), normal(4, 7, 3)
    check_padded(gradients(dense), *values, padded=[0], sizes=[6, 1, 3, 0], tolerance=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "product"),
    [
        (Padding.COPIES, Padding.COPIES, Padding.COPIES),
        (Padding.COPIES, Padding.ZEROS, Padding.ZEROS),
        (Padding.ZEROS, Padding.UNKNOWN, Padding.UNKNOWN),
        (Padding.COPIES, Padding.UNKNOWN, Padding.UNKNOWN),
        (Padding.UNKNOWN, Padding.COPIES, Padding.UNKNOWN),
    ],
)
def test_the_padding_of_a_product_depends_on_both_operands(x, y, product):
    @tf.function(autograph=False)
    def both(a, b):
        arguments = BatchedValue(a, True, 0, padding=x), BatchedValue(b, True, 0, padding=y)
        evaluation = BatchedEvaluation(2, 3, tf.constant([3, 1], tf.int64))
        for op, attributes in (("BatchMatMulV2", {"T": tf.float32}), ("Mul", {"T": tf.float32})):
            (found,) = evaluation.evaluate(Node(op, (), attributes), list(arguments))
            assert found.padding is product
        return found.tensor

    both(tf.ones([2, 3, 4, 4]), tf.ones([2, 3, 4, 4]))


def test_another_tensor_may_have_padding_of_which_nothing_is_known():
    value = BatchedValue(tf.ones([2, 3]), True, 0, padding=Padding.COPIES)
    assert value.with_tensor(value.tensor, padding=Padding.UNKNOWN).padding is Padding.UNKNOWN


def test_the_gradient_of_padded_rows_is_masked_once():
    def loss(x, y, w, b, v):
        logits = tf.nn.relu(x @ w + b) @ v
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

    def fn(x, y, w, b, v):
        with tf.GradientTape() as tape:
            tape.watch([w, b, v])
            out = loss(x, y, w, b, v)
        return [out, *tape.gradient(out, [w, b, v])]

    values = [normal(4, 6, 5), integers(3, 4, 6), normal(4, 5, 7), normal(4, 7), normal(4, 7, 3)]
    check_padded(fn, *values, padded=[0, 1], sizes=[6, 1, 3, 5], tolerance=1e-5)
    shapes = [(a.dtype.type, (None, *a.shape[2:]) if i < 2 else a.shape[1:]) for i, a in enumerate(values)]
    graph = traced(fn, *shapes)

    def batched_gradients(*tensors):
        arguments = [batched(t, 0 if i < 2 else None) for i, t in enumerate(tensors)]
        sizes = ops.constant([6, 1, 3, 5], tf.int64)
        return [x.tensor for x in batched_call(graph, graph.data, arguments, sizes)]

    nodes = new_region([(v.dtype, v.shape) for v in values], batched_gradients).nodes
    masks = [node.outputs[0].shape for node in nodes if node.op in ("Select", "SelectV2")]
    # Of labels, which may raise an error in padding; of the logits' gradient, row by row; of the losses.
    assert masks == [[4, 6], [24, 3], [4, 6]]


def convolution(x, w, b, d):
    h = tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") + b)
    h = tf.nn.max_pool2d(h, 2, 2, "VALID")
    h = tf.nn.avg_pool2d(tf.nn.depthwise_conv2d(h, d, [1, 1, 1, 1], "SAME"), 2, 2, "SAME")
    return tf.reduce_mean(tf.reduce_sum(h**2, [1, 2, 3]))


def test_convolution_gradients():
    values = normal(8, 3, 8, 8, 2), normal(8, 3, 3, 2, 4), normal(8, 4), normal(8, 3, 3, 4, 1)
    check(gradients(convolution), *values, tolerance=2e-5)


def test_convolution_gradients_over_a_padded_batch():
    values = normal(4, 5, 8, 8, 2), normal(4, 3, 3, 2, 4), normal(4, 4), normal(4, 3, 3, 4, 1)
    check_padded(gradients(convolution), *values, padded=[0], sizes=[5, 1, 3, 2], tolerance=2e-5)


def test_clients_that_share_a_kernel_take_one_convolution_with_its_bias_and_activation():
    def fn(x, w, b):
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b))

    values = normal(8, 3, 8, 8, 2), normal(3, 3, 2, 4), normal(4)
    check(fn, *values, shared=[1, 2], tolerance=1e-6)
    graph = traced(fn, (None, 8, 8, 2), (3, 3, 2, 4), (4,))

    def of_clients(x, *weights):
        arguments = [batched(x, 0), *map(shared, weights)]
        return [v.tensor for v in batched_call(graph, graph.data, arguments, ops.constant([3] * 8, tf.int64))]

    nodes = new_region([(v.dtype, v.shape) for v in values], of_clients).nodes
    (relu,) = [node for node in nodes if node.op == "Relu"]
    bias = relu.inputs[0].node
    assert (bias.op, bias.inputs[0].node.op) == ("BiasAdd", "Conv2D")
    assert bias.inputs[0].shape == [24, 8, 8, 4]


def test_gradients_of_clients_that_share_kernels_take_one_convolution_for_their_images():
    def fn(x, w, v):
        return tf.reduce_mean(
            tf.reduce_sum(tf.nn.conv2d(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")), v, 2, "VALID") ** 2, 0)
        )

    values = normal(8, 3, 8, 8, 2), normal(3, 3, 2, 4), normal(3, 3, 4, 5)
    check(gradients(fn), *values, shared=[1, 2], tolerance=2e-5)
    check_padded(gradients(fn), *values, padded=[0], sizes=[3, 1, 2, 3, 3, 1, 1, 2], shared=[1, 2], tolerance=2e-5)


def embedding(table, w, ids):
    rows = tf.gather(table, ids)
    return tf.reduce_mean(tf.reduce_sum(tf.tanh(tf.reduce_mean(rows, 1) @ w), 1))


def test_embedding_gradients():
    check(gradients(embedding), normal(8, 11, 4), normal(8, 4, 3), integers(11, 8, 6, 5), tolerance=1e-5)
    check(gradients(embedding), normal(11, 4), normal(4, 3), integers(11, 8, 6, 5), shared=[0, 1], tolerance=1e-5)


def test_embedding_gradients_over_a_padded_batch():
    values = normal(4, 11, 4), normal(4, 4, 3), integers(11, 4, 6, 5)
    check_padded(gradients(embedding), *values, padded=[2], sizes=[6, 1, 3, 0], tolerance=1e-5)


def layer_norm(x, w, scale, shift):
    h = x @ w
    mean, variance = tf.nn.moments(h, [-1], keepdims=True)
    return tf.reduce_mean(((h - mean) * tf.math.rsqrt(variance + 1e-3) * scale + shift) ** 2)


def test_layer_norm_gradients():
    values = normal(8, 6, 5), normal(8, 5, 7), normal(8, 7), normal(8, 7)
    check(gradients(layer_norm), *values, tolerance=2e-5)


def test_layer_norm_gradients_over_a_padded_batch():
    values = normal(4, 6, 5), normal(4, 5, 7), normal(4, 7), normal(4, 7)
    check_padded(gradients(layer_norm), *values, padded=[0], sizes=[6, 1, 3, 2], tolerance=2e-5)


def test_classes_of_every_token_of_a_padded_batch():
    def loss(x, w, y):
        flat = tf.reshape(x @ w[tf.newaxis], [-1, w.shape[1]])
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(y, [-1]), flat)
        return tf.reduce_mean(tf.reshape(each, tf.shape(y)))

    values = normal(4, 6, 3, 5), normal(4, 5, 7), integers(7, 4, 6, 3)
    check_padded(gradients(loss), *values, padded=[0, 2], sizes=[6, 1, 3, 2], tolerance=1e-5)


def image_model():
    layers = [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential(layers), (8, 8, 1)


def dense_model():
    layers = [keras.layers.Input((12,)), keras.layers.Dense(7, activation="relu"), keras.layers.Dense(3)]
    return keras.Sequential(layers), (12,)


def normed_model():
    layers = [
        keras.layers.Input((12,)),
        keras.layers.Dense(7),
        keras.layers.BatchNormalization(),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential(layers), (12,)


def logistic_model():
    return keras.Sequential([keras.layers.Input((12,)), keras.layers.Dense(3)]), (12,)


def text_model(*layers):
    embedding = keras.layers.Embedding(9, 4)
    return keras.Sequential([keras.Input((5,), dtype="int32"), embedding, *layers, keras.layers.Dense(3)]), (5,)


def lstm_model():
    return text_model(keras.layers.LSTM(3))


def gru_model():
    return text_model(keras.layers.GRU(3))


def simple_rnn_model():
    return text_model(keras.layers.SimpleRNN(3))


def attention_model():
    x = keras.Input((5,), dtype="int32")
    h = keras.layers.Embedding(9, 4)(x)
    h = keras.layers.MultiHeadAttention(2, 3)(h, h)
    return keras.Model(x, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(h))), (5,)


def depthwise_model():
    layers = [
        keras.layers.Input((8, 8, 2)),
        keras.layers.SeparableConv2D(4, 3),
        keras.layers.DepthwiseConv2D(3),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential(layers), (8, 8, 2)


RECURRENT = [lstm_model, gru_model, simple_rnn_model, attention_model]
MODELS = [dense_model, logistic_model, image_model, normed_model, depthwise_model, *RECURRENT]


@functools.cache
def training_step(make) -> TracedGraph:
    """The graph of one local step, as federated averaging has it."""

    def model_fn():
        model, shape = make()
        return fc.learning.models.from_keras_model(
            model,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=OrderedDict(
                x=tf.TensorSpec([None, *shape], model.inputs[0].dtype), y=tf.TensorSpec([None, 1], tf.int32)
            ),
            metrics=[
                keras.metrics.SparseCategoricalAccuracy(),
                keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
            ],
        )

    optimizer = fc.learning.optimizers.build_sgdm(0.1, 0.9)
    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=optimizer)
    module = process.next.to_module("traced")
    (graph,) = [g for g in module.graphs if g.name == "step"]
    return TracedGraph(graph.type, module.blobs[graph.digest])


def arguments_of(graph: TracedGraph, clients: int, rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    values = []
    for t in tensor_leaves(graph.type.parameter):
        shape = [clients, *(rows if s is None else s for s in t.shape)]
        values.append(np.abs(rng.normal(size=shape) * (0.3 if None not in t.shape else 1)).astype(t.dtype.numpy))
    for i in batch_of(graph):
        if values[i].dtype == np.int32:
            values[i] = rng.integers(0, 3, values[i].shape).astype(np.int32)
    return values


def batch_of(graph: TracedGraph) -> list[int]:
    """The leaves of the batch: those whose first size is open."""
    return [i for i, t in enumerate(tensor_leaves(graph.type.parameter)) if t.shape and t.shape[0] is None]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("widths", [(3,), pytest.param((2, 5, 8), marks=pytest.mark.soak)])
def test_training_steps(make, widths):
    graph = training_step(make)
    values = arguments_of(graph, max(4, *widths), 3)
    everything = set(range(len(values)))
    widest = [r for r, _ in run_batched(graph, values, everything)]
    for k in range(len(values[0])):
        for have, want in zip(widest, run_one_client(graph, [v[k] for v in values]), strict=True):
            close(have[k], want, 1e-5)
    for width in widths:
        for (have, _), most in zip(run_batched(graph, [v[:width] for v in values], everything), widest, strict=True):
            assert have.tobytes() == most[:width].tobytes()


@pytest.mark.parametrize("make", MODELS)
def test_training_steps_over_padded_batches(make):
    graph = training_step(make)
    sizes = [4, 1, 3]
    values = arguments_of(graph, 3, 4)
    everything, batch = set(range(len(values))), dict.fromkeys(batch_of(graph), 0)
    assert why_not_batchable(graph, graph.data, everything, batch) is None
    for i in batch:
        for k, n in enumerate(sizes):
            values[i][k, n:] = values[i][k, 0]
    found = [r for r, _ in run_batched(graph, values, everything, padded=batch, sizes=sizes)]
    for k, n in enumerate(sizes):
        alone = run_one_client(graph, [v[k, :n] if i in batch else v[k] for i, v in enumerate(values)])
        for have, want in zip(found, alone, strict=True):
            close(have[k], want, 1e-5)


@pytest.mark.parametrize("make", MODELS)
def test_training_steps_from_shared_weights(make):
    graph = training_step(make)
    values = arguments_of(graph, 3, 5)
    batch = set(batch_of(graph))
    values = [v if i in batch else v[0] for i, v in enumerate(values)]
    found = run_batched(graph, values, batch)
    for k in range(3):
        alone = run_one_client(graph, [v[k] if i in batch else v for i, v in enumerate(values)])
        for (have, value), want in zip(found, alone, strict=True):
            close(have[k] if value.batched else have, want, 1e-5)


def counting(x):
    count = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[])
    tf.raw_ops.AssignVariableOp(resource=count, value=1.0)
    return x + tf.raw_ops.ReadVariableOp(resource=count, dtype=tf.float32)


def printing(x):
    tf.print(x)
    return x + 1.0


@pytest.mark.parametrize("fn", [counting, printing])
def test_operations_with_effects_or_state_have_no_rule(fn):
    graph = traced(fn, (3,))
    found = why_not_batchable(graph, graph.data, {0})
    assert found is not None
    assert "effects or state" in str(found)


def test_effects_have_no_rule_even_where_no_client_differs():
    graph = traced(printing, (3,))
    assert why_not_batchable(graph, graph.data, set()) is not None


def test_an_operation_without_a_rule_is_named():
    graph = traced(tf.linalg.cholesky, (3, 3))
    found = why_not_batchable(graph, graph.data, {0})
    assert found is not None
    assert found.op == "Cholesky"
    assert str(found) == "Cholesky is not vectorised over clients: the operation has no rule"
    assert why_not_batchable(graph, graph.data, set()) is None


@pytest.mark.parametrize(
    "fn",
    [lambda x: x[1:], lambda x: tf.concat([x, x], 0), lambda x: tf.reverse(x, [0]), lambda x: tf.reshape(x, [3, -1])],
)
def test_a_padded_batch_keeps_its_rows(fn):
    graph = traced(fn, (None, 3))
    assert why_not_batchable(graph, graph.data, {0}, {0: 0}) is not None
    assert why_not_batchable(graph, graph.data, {0}) is None


def test_a_slice_of_the_batch_size_has_no_rule():
    table = tf.constant(normal(9, 3))
    graph = traced(lambda x: x + table[: tf.shape(x)[0]], (None, 3))
    refused = why_not_batchable(graph, graph.data, {0}, {0: 0})
    assert refused is not None
    why = "the bounds of the slice differ between clients: `end`"
    assert str(refused) == f"StridedSlice is not vectorised over clients: {why}"


def test_an_operand_that_a_rule_refuses_is_named():
    graph = traced(lambda x: x[tf.cast(x[0], tf.int32)], (3,))
    why = "the bounds of the slice differ between clients: `begin`"
    assert str(why_not_batchable(graph, graph.data, {0})) == f"StridedSlice is not vectorised over clients: {why}"
    graph = traced(lambda x: tf.reduce_sum(x, tf.cast(x[0], tf.int32)), (3,))
    assert "has to be constant is not: `reduction_indices`" in str(why_not_batchable(graph, graph.data, {0}))


def test_a_comparison_of_the_batch_size_is_not_constant():
    def fn(x):
        some = tf.shape(x)[0] > 0
        return tf.where(some, 1.0, 2.0), tf.cast(some, tf.int32)

    check_padded(fn, normal(3, 4, 2), padded=[0], sizes=[0, 4, 1])

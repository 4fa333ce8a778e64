"""Gradients of activations and biases are computed before those of max pooling, on the pooled tensor."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fedcore as fc
from fedcore.compiler import compile_module
from fedcore.graphs.capture.graph_import import eager_callable
from fedcore.graphs.dataflow.passes.hoist_relu_gradients import hoist_relu_gradients
from fedcore.graphs.graphdef.form.graph_bodies import rewrite_graph

IMAGES = fc.TensorType(np.float32, (None, 9, 8, 3))
POOLINGS = {
    "windows side by side": {"ksize": 2, "strides": 2, "padding": "VALID"},
    "windows that overlap": {"ksize": 3, "strides": 2, "padding": "SAME"},
    "windows with gaps": {"ksize": 2, "strides": 3, "padding": "VALID"},
    "windows of all pixels": {"ksize": (9, 8), "strides": 1, "padding": "VALID"},
}


def gradients(pool, activation=tf.nn.relu, in_function: bool = False, bias_only: bool = False):
    """A computation: images [n, 9, 8, 3] and a bias [3] -> the gradients for both of a layer that ends in pooling."""

    def found(x, b):
        with tf.GradientTape() as tape:
            tape.watch([x, b])
            y = tf.nn.max_pool2d(activation(tf.nn.bias_add(x, b)), **pool)
            loss = tf.reduce_sum(y**2)
        return tape.gradient(loss, [b] if bias_only else [x, b])

    fn = tf.function(found) if in_function else found
    return fc.tf_computation(IMAGES, fc.TensorType(np.float32, (3,)))(lambda x, b: tuple(fn(x, b)))


def graph_of(computation):
    (graph,) = computation.module.graphs
    return graph, computation.module.blob(graph.digest)


def operations(data: bytes) -> list:
    graph_def = graph_pb2.GraphDef.FromString(data)
    return [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]


def reads(data: bytes, op: str, of: str) -> bool:
    """Whether an operation of the type `op` reads the result of one of the type `of`."""
    graph_def = graph_pb2.GraphDef.FromString(data)
    for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function)):
        by_name = {n.name: n for n in nodes}
        inputs = [by_name.get(i.split(":")[0]) for n in nodes if n.op == op for i in n.input]
        if any(n is not None and n.op == of for n in inputs):
            return True
    return False


def images(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images with many zeros and equal pixels, as after an activation, and a bias."""
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(size=(5, 9, 8, 3)) * 2).astype("f") / 2, rng.normal(size=3).astype("f")


@pytest.mark.parametrize("in_function", [False, True], ids=["graph", "function"])
@pytest.mark.parametrize("activation", [tf.nn.relu, tf.nn.relu6], ids=["relu", "relu6"])
@pytest.mark.parametrize("pool", POOLINGS)
def test_gradients_of_images_keep_their_bits_and_those_of_biases_agree(pool, activation, in_function):
    graph, data = graph_of(gradients(POOLINGS[pool], activation, in_function))
    after = rewrite_graph(hoist_relu_gradients, data)
    mask = "ReluGrad" if activation is tf.nn.relu else "Relu6Grad"
    assert reads(data, mask, "MaxPoolGrad")
    assert not reads(after, mask, "MaxPoolGrad")
    assert reads(after, "MaxPoolGrad", mask)
    (of_x, of_b), (want_x, want_b) = (eager_callable(graph, d)(*images()) for d in (after, data))
    assert of_x.tobytes() == want_x.tobytes()
    np.testing.assert_allclose(of_b, want_b, rtol=1e-5)


def test_a_bias_without_an_activation_sums_the_pooled_gradient():
    graph, data = graph_of(gradients(POOLINGS["windows side by side"], tf.identity, bias_only=True))
    after = rewrite_graph(hoist_relu_gradients, data)
    assert "MaxPoolGrad" in [n.op for n in operations(data)]
    assert "MaxPoolGrad" not in [n.op for n in operations(after)]  # nothing else reads it
    (found,), (want,) = (eager_callable(graph, d)(*images()) for d in (after, data))
    np.testing.assert_allclose(found, want, rtol=1e-5)


@fc.tf_computation(IMAGES)
def another_reader(x):
    """The gradient behind the pooling has two users."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = tf.nn.relu(x)
        loss = tf.reduce_sum(tf.nn.max_pool2d(h, 2, 2, "VALID") ** 2)
    return tuple(tape.gradient(loss, [h, x]))


@fc.tf_computation(IMAGES)
def other_features(x):
    """The activation is not the one that was pooled."""
    h = tf.nn.relu(x)
    y = tf.nn.max_pool2d(h, 2, 2, "VALID")
    window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    g = tf.raw_ops.MaxPoolGrad(orig_input=h, orig_output=y, grad=y, **window)
    return tf.raw_ops.ReluGrad(gradients=g, features=h - 1.0)


@fc.tf_computation(IMAGES)
def other_windows(x):
    """The pooling has other windows than its gradient."""
    h = tf.nn.relu(x)
    y = tf.nn.max_pool2d(h, 3, 2, "VALID")
    g = tf.raw_ops.MaxPoolGrad(
        orig_input=h, orig_output=y, grad=y, ksize=[1, 3, 2, 1], strides=[1, 2, 2, 1], padding="VALID"
    )
    return tf.raw_ops.ReluGrad(gradients=g, features=h)


@pytest.mark.parametrize("computation", [another_reader, other_features, other_windows], ids=lambda c: c.__name__)
def test_other_graphs_stay_as_they_are(computation):
    _, data = graph_of(computation)
    assert rewrite_graph(hoist_relu_gradients, data) is data


def test_the_pass_runs_on_plans_and_once():
    computation = gradients(POOLINGS["windows side by side"], bias_only=True)

    @fc.federated_computation(fc.FederatedType(IMAGES, fc.CLIENTS), fc.FederatedType(("float32", (3,)), fc.SERVER))
    def total(x, b):
        return fc.federated_sum(fc.federated_map(computation, (x, fc.federated_broadcast(b))))

    before = compile_module(total.module, "lowering,partition,dead-leaf-elimination,fuse")
    after = compile_module(before, "hoist-relu-gradients")
    assert [g.digest for g in after.graphs] != [g.digest for g in before.graphs]
    assert set(after.blobs) == {g.digest for g in after.graphs}
    assert compile_module(after, "hoist-relu-gradients") is after
    traced = total.to_module("traced")
    assert compile_module(traced, "hoist-relu-gradients") is traced

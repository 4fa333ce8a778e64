"""Functions with oneDNN's kernels compute what TensorFlow's compute."""

import gc

import attrs
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from onednn_faults import needs_own_convolutions

import fedcore as fc
from fedcore.compiler import compile_module
from fedcore.context import plan_of
from fedcore.errors import FedcoreError
from fedcore.graphs import private_api
from fedcore.graphs.emission.onednn_kernels import called_functions
from fedcore.graphs.stages.onednn import ONEDNN, DefinedFunction, with_kernels_of
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.ir.module import Function

pytestmark = pytest.mark.skipif(not private_api.has_onednn(), reason="this TensorFlow was built without oneDNN")

AVX2 = "avx2/small-l2/slow-memory/no-gpu"


@fc.tf_computation("float32")
def doubled(x):
    return x + x


def stage(**attributes) -> Function:
    """A function that has attributes of a stage."""
    return attrs.evolve(doubled.to_module("traced").main, name="clients", attributes=attributes)


def normal(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def with_onednn(fn, *arguments):
    specs = [tf.TensorSpec(a.shape, a.dtype) for a in arguments]
    traced = tf.function(fn, autograph=False).get_concrete_function(*specs)
    return with_kernels_of(stage(kernels=ONEDNN), traced)


def operations(function) -> set[str]:
    """The operations of a function of the process and of those that it calls."""
    name = function.name.decode() if isinstance(function.name, bytes) else function.name
    found, names = set(), [name]
    for name in names:
        for node in private_api.defined_function(name).node_def:
            found.add(node.op)
            names.extend(value.func.name for value in node.attr.values() if value.HasField("func"))
    return found


def check(fn, *arguments) -> set[str]:
    """Compares the results of `fn` with those of float64; returns the operations of the function with oneDNN's kernels.

    oneDNN has no kernels for float64. With its kernels for float32, which TensorFlow chooses itself on AVX-512, the
    convolution of no images has the images' shape.
    """
    function = with_onednn(fn, *arguments)
    found = Cancellation().call(function, list(arguments))
    expected = [tf.cast(t, a.dtype) for t, a in zip(tf.nest.flatten(fn(*map(_double, arguments))), found, strict=True)]
    assert [f.shape for f in found] == [e.shape for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5 * float(tf.reduce_max(tf.abs(e))) if tf.size(e) else 0)
    return operations(function)


def _double(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float64) if x.dtype == tf.float32 else x


def layer(images, kernel, bias, *, strides=1, padding="SAME"):
    """A convolution with its bias and ReLU, and the gradients of the sum of its squares."""
    with tf.GradientTape() as tape:
        tape.watch([images, kernel, bias])
        out = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, kernel, strides, padding), bias))
        loss = tf.reduce_sum(out * out)
    return [out, *tape.gradient(loss, [images, kernel, bias])]


def pooled(images, factor):
    with tf.GradientTape() as tape:
        tape.watch(images)
        out = tf.nn.max_pool2d(images * factor, 2, 2, "VALID")
        loss = tf.reduce_sum(out * out)
    return [out, tape.gradient(loss, images)]


@pytest.mark.parametrize("images", [0, 1, 3])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_a_layer_of_a_convolution_and_its_gradients(images, padding):
    found = check(lambda *a: layer(*a, padding=padding), normal(images, 8, 9, 3), normal(3, 2, 3, 5), normal(5))
    own = {"_MklNativeFusedConv2D", "_MklNativeConv2DBackpropFilter", "_MklNativeConv2DBackpropInput"}
    assert own <= found
    assert found.isdisjoint({"Conv2D", "BiasAdd", "Relu", "Conv2DBackpropFilter", "Conv2DBackpropInput"})


@needs_own_convolutions
def test_gradients_of_kernels_with_strides_keep_their_kernel():
    """oneDNN's writes outside of its memory for some shapes, such as this one."""
    found = check(lambda *a: layer(*a, strides=2), normal(1, 8, 10, 5), normal(1, 1, 5, 1), normal(1))
    assert {"_MklNativeFusedConv2D", "Conv2DBackpropFilter", "_MklNativeConv2DBackpropInput"} <= found


def test_what_onednn_does_not_have_keeps_its_kernel():
    paddings = [[0, 0], [1, 2], [0, 1], [0, 0]]
    arguments = normal(2, 6, 6, 4), normal(3, 3, 4, 2)
    found = check(
        lambda x, w: tf.nn.conv2d(x, w, 1, paddings) + tf.nn.depthwise_conv2d(x, w, [1] * 4, paddings)[..., :2],
        *arguments,
    )
    assert {"Conv2D", "DepthwiseConv2dNative"} <= found
    doubles = tf.cast(arguments[0], tf.float64), tf.cast(arguments[1], tf.float64)
    assert "Conv2D" in check(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), *doubles)


def test_a_tensor_that_is_read_elsewhere_is_not_fused_away():
    def fn(images, kernel, bias):
        plain = tf.nn.conv2d(images, kernel, 1, "SAME")
        shifted = tf.nn.bias_add(plain, bias)
        return plain, shifted, tf.nn.relu(shifted)

    assert {"_MklNativeConv2D", "BiasAdd", "Relu"} <= check(fn, normal(2, 5, 5, 3), normal(3, 3, 3, 4), normal(4))
    both = check(lambda *a: fn(*a)[1:], normal(2, 5, 5, 3), normal(3, 3, 3, 4), normal(4))
    assert {"_MklNativeFusedConv2D", "Relu"} <= both
    assert "BiasAdd" not in both


@pytest.mark.parametrize("images", [0, 1, 4])
def test_max_pooling_and_its_gradient(images):
    found = check(pooled, normal(images, 7, 6, 3), normal())
    assert {"_MklNativeMaxPool", "_MklNativeMaxPoolGrad"} <= found
    assert "MaxPoolGrad" not in found


def test_the_gradient_of_a_pooling_elsewhere_keeps_its_kernel():
    def gradient(images, result):
        given = {"orig_input": images, "orig_output": result, "grad": result}
        return tf.raw_ops.MaxPoolGrad(**given, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")

    images = normal(2, 4, 4, 3)
    function = with_onednn(gradient, images, tf.nn.max_pool2d(images, 2, 2, "VALID"))
    assert "MaxPoolGrad" in operations(function)


@pytest.mark.parametrize(("a", "b"), [((3, 5), (5, 2)), ((0, 5), (5, 2)), ((2, 3, 5), (1, 5, 4)), ((4, 0), (0, 3))])
def test_products(a, b):
    found = check(tf.linalg.matmul, normal(*a), normal(*b))
    assert found & {"_MklMatMul", "_MklBatchMatMulV2"}
    assert found.isdisjoint({"MatMul", "BatchMatMulV2"})


def test_functions_that_are_called_and_loops_have_them_too():
    inner = tf.function(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), autograph=False)

    def fn(images, kernel):
        images = inner(images, kernel)
        return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.nn.conv2d(x, kernel, 1, "SAME")), (0, images))[
            1
        ]

    found = check(fn, normal(2, 5, 5, 3), normal(3, 3, 3, 3))
    assert "_MklNativeConv2D" in found
    assert "Conv2D" not in found


def test_functions_that_xla_compiles_keep_their_kernels():
    """As Keras's convolutions in groups. XLA has no kernels of oneDNN."""
    compiled = tf.function(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), jit_compile=True, autograph=False)
    found = check(lambda x, w: (compiled(x, w), tf.nn.conv2d(x, w, 2, "SAME")), normal(2, 6, 6, 4), normal(3, 3, 2, 4))
    assert {"Conv2D", "_MklNativeConv2D"} <= found


@pytest.mark.parametrize("images", [0, 2])
def test_loops_of_one_graph_have_them_too(images):
    """The nodes that are added for a convolution belong to the iterations of its loop."""
    given, kernel, bias = normal(images, 5, 5, 3), normal(3, 3, 3, 3) / 10, normal(3)

    def fn(x, w, b):
        def step(i, w):
            return i + 1, w - 0.01 * layer(x, w, b)[2]

        return [tf.compat.v1.while_loop(lambda i, w: i < 3, step, [0, w])[1]]

    specs = [tf.TensorSpec([None, 5, 5, 3]), *(tf.TensorSpec(t.shape) for t in (kernel, bias))]
    traced = private_api.unordered_function(fn, specs)
    function = with_kernels_of(stage(kernels=ONEDNN), traced)
    (found,) = Cancellation().call(function, [given, kernel, bias])
    assert "_MklNativeConv2DBackpropFilter" in operations(function)
    for _ in range(3):
        kernel -= 0.01 * layer(given, kernel, bias)[2]
    np.testing.assert_allclose(found, kernel, atol=1e-5)


def test_the_process_forgets_the_functions_with_their_object():
    inner = tf.function(tf.linalg.matmul, autograph=False, experimental_attributes={"_noinline": True})
    function = with_onednn(lambda x, y: inner(x, y) + tf.linalg.matmul(y, x), normal(3, 3), normal(3, 3))
    nodes = private_api.defined_function(function.name).node_def
    names = [function.name, *(v.func.name for n in nodes for v in n.attr.values() if v.HasField("func"))]
    assert isinstance(function, DefinedFunction)
    assert len(names) == 2
    assert all(private_api.is_defined(name) for name in names)
    del function, nodes
    gc.collect()
    assert not any(private_api.is_defined(name) for name in names)


def test_a_function_without_such_operations_and_another_stage_stay_as_traced():
    traced = tf.function(lambda x: x + 1, autograph=False).get_concrete_function(tf.TensorSpec([2]))
    assert with_kernels_of(stage(kernels=ONEDNN), traced) is traced
    product = tf.function(lambda x: x @ x, autograph=False).get_concrete_function(tf.TensorSpec([2, 2]))
    assert with_kernels_of(stage(), product) is product


def test_a_tensorflow_without_onednn_refuses_the_plan(monkeypatch):
    traced = tf.function(lambda x: x @ x, autograph=False).get_concrete_function(tf.TensorSpec([2, 2]))
    monkeypatch.setattr(private_api, "op_definition", lambda op: None)
    with pytest.raises(FedcoreError) as error:
        with_kernels_of(stage(kernels=ONEDNN), traced)
    assert str(error.value) == (
        "@clients has kernels of oneDNN, which this TensorFlow was built without\n"
        "  make the plan for a target that ends with /no-onednn, such as "
        "target=avx2/small-l2/slow-memory/no-gpu/no-onednn"
    )


def network():
    stack = [layers.Conv2D(4, 3, activation="relu"), layers.MaxPool2D(), layers.Flatten(), layers.Dense(3)]
    return fc.learning.from_keras_model(
        keras.Sequential([keras.Input((8, 8, 1)), *stack]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=(tf.TensorSpec([None, 8, 8, 1]), tf.TensorSpec([None], tf.int32)),
    )


def recurrent():
    stack = [layers.Embedding(80, 8), layers.LSTM(128), layers.Dense(80)]
    return fc.learning.from_keras_model(
        keras.Sequential([keras.Input((20,), dtype="int32"), *stack]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=(tf.TensorSpec([None, 20], tf.int32), tf.TensorSpec([None], tf.int32)),
    )


def process_of(model):
    return fc.learning.algorithms.build_weighted_fed_avg(
        model, client_optimizer_fn=fc.learning.optimizers.build_sgdm(0.1)
    )


def strategy(process) -> dict:
    functions = plan_of(process.next.module).functions
    (found,) = [dict(f.attributes) for f in functions if "strategy" in f.attributes]
    return found


def test_plans_for_avx2_name_them():
    process = process_of(network)

    def kernels(**settings) -> str | None:
        with fc.use(fc.runtime.local(**settings)):
            return strategy(process).get("kernels")

    assert kernels(target=AVX2) == kernels(target=AVX2, vectorize=False) == ONEDNN
    assert kernels(target=AVX2.replace("no-gpu", "nvidia-gpu")) is None
    assert kernels(target=f"{AVX2}/no-onednn") is None
    assert kernels(target="avx512/large-l2/fast-memory/no-gpu") is None


def test_stages_without_products_have_none():
    total = fc.federated_computation(lambda xs: fc.federated_sum(xs), fc.FederatedType("float32", fc.CLIENTS))
    assert "kernels=" not in str(
        compile_module(total.to_module("traced"), f"lowering,partition,fuse,plan{{target={AVX2}}}")
    )


def test_recurrent_layers_stay_in_groups_on_avx2():
    """A loop over clients would start the operations of a time step once for each client."""
    with fc.use(fc.runtime.local(target=AVX2)):
        assert strategy(process_of(recurrent))["strategy"] == "vectorised"


@pytest.mark.parametrize("settings", [{}, {"vectorize": False, "low_rank": False}, {"block_size": 2}])
def test_a_round_is_that_of_tensorflows_kernels(settings):
    process = process_of(network)
    rng = np.random.default_rng(0)

    def batch(rows: int) -> tuple:
        return rng.normal(size=(rows, 8, 8, 1)).astype("f"), rng.integers(0, 3, rows).astype("i")

    clients = [[batch(3), batch(2)], [batch(3)], [batch(1)], []]
    # A batch without images changes nothing. TensorFlow's convolutions of none fail where they are oneDNN's.
    with_empty = [clients[0], [*clients[1], batch(0)], *clients[2:]]
    found = []
    for target, given in (AVX2, with_empty), (f"{AVX2}/no-onednn", clients):
        with fc.use(fc.runtime.local(target=target, **settings), seed=1):
            assert ("kernels" in strategy(process)) == (target == AVX2)
            state, metrics = process.next(process.initialize(), given)
        found.append([*state.global_model_weights.trainable, metrics["client_work"]["train"]["loss"]])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_functions_that_xla_compiles_are_not_looked_into():
    compiled, plain = tf.function(lambda x: x + x, jit_compile=True), tf.function(lambda x: x * x)
    traced = tf.function(lambda x: compiled(x) + plain(x)).get_concrete_function(tf.TensorSpec([], tf.float32))
    (name,) = [called.name for called in called_functions(private_api.defined_function(traced.name.decode()))]
    assert name.encode() == plain.get_concrete_function(tf.TensorSpec([], tf.float32)).name

"""`compute_dtype="bfloat16"`: products of client stages are computed in bfloat16, with float32 sums."""

import importlib

import attrs
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from equal_rows import needs_equal_rows

import fedcore as fc
from fedcore import context
from fedcore.compiler import compile_module
from fedcore.context import plan_of
from fedcore.errors import FedcoreError
from fedcore.ir import parse_module, verify
from fedcore.runtime import client_work
from fedcore.testing.faults import out_of_memory


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def model_fn():
    model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
    model.set_weights([np.random.default_rng(i).normal(size=w.shape) * 0.3 for i, w in enumerate(model.get_weights())])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = (tf.TensorSpec([None, 16]), tf.TensorSpec([None], tf.int32))
    return fc.learning.models.from_keras_model(model, loss=loss, input_spec=spec)


@pytest.fixture(scope="module")
def process():
    sgd = fc.learning.optimizers.build_sgdm(0.1)
    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=sgd)


@pytest.fixture(scope="module")
def data() -> list:
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(3, 16))
    labels = [rng.integers(0, 3, n).astype("i") for n in (11, 5, 20, 8, 7, 13, 6, 9, 15, 4, 10)]
    columns = [((centers[y] + rng.normal(size=(len(y), 16))).astype("f"), y) for y in labels]
    return [fc.data.ClientDataset.from_columns(c).batch(5) for c in columns]


def trained(process, data, rounds: int = 2, runtime=None, **settings):
    with fc.use(runtime or fc.runtime.local(**settings), seed=3):
        state = process.initialize()
        for _ in range(rounds):
            state, metrics = process.next(state, data)
    weights = [np.asarray(w) for w in state.global_model_weights.trainable]
    return weights, float(metrics["client_work"]["train"]["loss"])


def plan(process, **settings):
    with fc.use(fc.runtime.local(**settings)):
        return plan_of(process.next.module)


def test_products_have_rounded_operands_and_results_and_add_in_float32():
    x, w = (np.random.default_rng(i).normal(size=s).astype("f") for i, s in enumerate([(4, 64), (64, 3)]))

    @fc.federated_computation(
        fc.FederatedType(fc.SequenceType(fc.TensorType(np.float32, [None, 64])), fc.CLIENTS),
    )
    def products(batches):
        @fc.tf_computation
        def total(ds):
            return ds.reduce(tf.zeros([4, 3]), lambda s, b: s + tf.matmul(b, tf.constant(w)))

        return fc.federated_sum(fc.federated_map(total, batches))

    one = [fc.data.ClientDataset.from_columns(x).batch(4)]
    with fc.use(fc.runtime.local(compute_dtype="bfloat16")):
        found = products(one)
    exact = rounded(x).astype("d") @ rounded(w).astype("d")
    assert rounded(found).tobytes() == np.asarray(found).tobytes()
    np.testing.assert_allclose(found, exact, rtol=2**-8, atol=1e-6)  # sums in bfloat16 would be 64 roundings away
    assert np.abs(found - x @ w).max() > 1e-3


def rounding(product):
    """The product as one writes it by hand; the gradient of a rounding rounds too."""

    def round_(t):
        return tf.cast(tf.cast(t, tf.bfloat16), tf.float32)

    return lambda x, y: round_(product(round_(x), round_(y)))


def in_a_loop(product):
    """A loop whose body returns products only, and reads one of them again."""

    def body(i, a, b):
        a = product(a, b)
        return i + 1, a, product(b, a)

    return lambda x, y: tf.while_loop(lambda i, *_: i < 3, body, (0, x, y))[2]


def in_a_branch(product):
    return lambda x, y: tf.cond(tf.reduce_sum(x) > 0, lambda: product(x, y), lambda: product(y, x))


def matmul_v3(x, y):
    return tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=tf.float32)


def alone(product):
    return product


PRODUCTS = {
    "matmul": ([6, 6], [6, 6], tf.matmul, alone),
    "batch matmul": ([2, 5, 7], [2, 7, 3], tf.matmul, alone),
    "batch matmul v3": ([2, 5, 7], [2, 7, 3], matmul_v3, alone),
    "einsum": ([5, 7], [7, 3], lambda x, y: tf.einsum("ab,bc->ca", x, y), alone),
    "conv2d": ([2, 8, 8, 3], [3, 3, 3, 4], lambda x, y: tf.nn.conv2d(x, y, 1, "SAME"), alone),
    "depthwise": ([2, 8, 8, 3], [3, 3, 3, 2], lambda x, y: tf.nn.depthwise_conv2d(x, y, [1] * 4, "SAME"), alone),
    "conv3d": ([2, 5, 5, 5, 2], [3, 3, 3, 2, 4], lambda x, y: tf.nn.conv3d(x, y, [1] * 5, "SAME"), alone),
    "loop": ([4, 4], [4, 4], tf.matmul, in_a_loop),
    "branch": ([4, 4], [4, 4], tf.matmul, in_a_branch),
}


ONE_BY_ONE = ["matmul", "conv2d", "loop"]
"""Products that are tested for clients one by one too; `make soak` has all."""


@pytest.mark.parametrize(
    ("name", "vectorize"),
    [
        *((name, "auto") for name in PRODUCTS),
        *(pytest.param(n, False, marks=() if n in ONE_BY_ONE else pytest.mark.soak) for n in PRODUCTS),
    ],
)
def test_products_and_their_gradients_are_those_that_one_writes_by_hand(name, vectorize):
    shape_x, shape_y, product, around = PRODUCTS[name]

    def results(of):
        @fc.tf_computation
        def total(ds):
            def step(state, batch):
                x, y = batch["x"][0], batch["y"][0]
                with tf.GradientTape() as tape:
                    tape.watch([x, y])
                    z = of(x, y)
                    loss = tf.reduce_sum(tf.sin(z))
                return tuple(s + g for s, g in zip(state, (z, *tape.gradient(loss, (x, y))), strict=True))

            x, y = (np.zeros(s, "f") for s in (shape_x, shape_y))
            return ds.reduce(tuple(map(tf.zeros_like, (of(x, y), x, y))), step)

        batch = fc.StructType([(k, fc.TensorType("float32", [None, *s])) for k, s in (("x", shape_x), ("y", shape_y))])

        @fc.federated_computation(fc.FederatedType(fc.SequenceType(batch), fc.CLIENTS))
        def sums(batches):
            return fc.federated_sum(fc.federated_map(total, batches))

        return sums

    rng = np.random.default_rng(1)
    columns = [{k: rng.normal(size=(n, *s)).astype("f") for k, s in (("x", shape_x), ("y", shape_y))} for n in (2, 3)]
    data = [fc.data.ClientDataset.from_columns(c).batch(1) for c in columns]
    with fc.use(fc.runtime.local(compute_dtype="bfloat16", vectorize=vectorize)):
        found = results(around(product))(data)
    with fc.use(fc.runtime.local(vectorize=vectorize)):
        by_hand, plain = results(around(rounding(product)))(data), results(around(product))(data)
    for a, b, c in zip(found, by_hand, plain, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.asarray(a).tobytes() != np.asarray(c).tobytes()


def model_of(layers, shape):
    model = keras.Sequential([keras.Input(shape), *layers, keras.layers.Flatten(), keras.layers.Dense(5)])
    model.set_weights([np.random.default_rng(i).normal(size=w.shape) * 0.1 for i, w in enumerate(model.get_weights())])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = (tf.TensorSpec([None, *shape]), tf.TensorSpec([None], tf.int32))
    return lambda: fc.learning.models.from_keras_model(model, loss=loss, input_spec=spec)


def convolutions():
    layers = [keras.layers.Conv2D(8, 5, padding="same", activation="relu"), keras.layers.MaxPool2D()]
    return model_of([*layers, keras.layers.Conv2D(16, 3, activation="relu")], (12, 12, 3))


def dense(units=48):
    return model_of([keras.layers.Flatten(), keras.layers.Dense(units, "relu")], (12, 12, 3))


KERNELS = {
    "groups": (dense, {}, "strategy=vectorised"),
    "loop": (dense, {"vectorize": False}, "strategy=loop"),
    "loop in the graph": (
        lambda: dense(400),
        {"target": "avx2/small-l2/slow-memory/no-gpu"},
        "strategy=loop, block=8, parallel",
    ),
    "convolutions": (convolutions, {}, "strategy=loop"),
    "recurrent": (
        lambda: model_of([keras.layers.LSTM(16, return_sequences=True)], (7, 12)),
        {},
        "strategy=vectorised",
    ),
}


@needs_equal_rows  # oneDNN has these kernels with AVX-512
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_bfloat16_compute_what_is_rounded_in_float32(name, monkeypatch):
    """TensorFlow's own kernels, in the place of oneDNN's, would make all results smaller by 0.2 %."""
    model, settings, strategy = KERNELS[name]
    process = fc.learning.algorithms.build_weighted_fed_avg(
        model(), client_optimizer_fn=fc.learning.optimizers.build_sgdm(1e-3)
    )
    shape = (7, 12) if name == "recurrent" else (12, 12, 3)
    rng = np.random.default_rng(2)
    columns = [(rng.normal(size=(n, *shape)).astype("f"), rng.integers(0, 5, n).astype("i")) for n in (10, 4, 7, 10, 9)]
    data = [fc.data.ClientDataset.from_columns(c).batch(5) for c in columns]
    assert strategy in str(plan(process, compute_dtype="bfloat16", **settings))

    def change(has_kernels: bool) -> np.ndarray:
        monkeypatch.setattr(client_work, "has_bfloat16_products", lambda: has_kernels)
        with fc.use(fc.runtime.local(compute_dtype="bfloat16", **settings), seed=3):
            state = process.initialize()
            after, _ = process.next(state, data)
        pairs = zip(after.global_model_weights.trainable, state.global_model_weights.trainable, strict=True)
        return np.concatenate([(np.asarray(a, "d") - np.asarray(b, "d")).reshape(-1) for a, b in pairs])

    found, expected = change(True), change(False)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    smaller = np.mean(np.abs(expected) - np.abs(found)) / np.mean(np.abs(expected))
    assert abs(smaller) < 3e-4


def test_kernels_of_bfloat16_are_switched_off_by_name(process, data, monkeypatch):
    def refuse(region):
        raise AssertionError("it runs")

    monkeypatch.setattr(client_work, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(client_work, "bfloat16_kernels", refuse)
    with fc.use(pipeline="default{without=bfloat16-kernels}"):
        trained(process, data, 1, compute_dtype="bfloat16")
    with fc.use(pipeline="default{without=dce}"), pytest.raises(AssertionError, match="it runs"):
        trained(process, data, 1, compute_dtype="bfloat16")


@pytest.mark.parametrize(
    ("name", "fix"),
    [("round-products", "use compute_dtype=float32"), ("hoist-relu-gradients", "leave the pass out of the pipeline")],
)
def test_passes_before_the_plan_are_not_switched_off_in_it(process, name, fix):
    with pytest.raises(FedcoreError, match=f"without={name} has no effect in plan, before which it runs: {fix}"):
        compile_module(process.next.module, f"default{{without={name}}}")


@pytest.mark.parametrize("has_kernels", [True, False])
def test_the_report_says_where_it_is_slow(process, data, monkeypatch, has_kernels):
    local = importlib.import_module("fedcore.runtime.local")  # `fedcore.runtime.local` is the function
    monkeypatch.setattr(local, "has_bfloat16_products", lambda: has_kernels)
    with fc.use(fc.runtime.local(compute_dtype="bfloat16")):
        process.next(process.initialize(), data)
    notes = context.last_report().notes
    says = "compute_dtype='bfloat16': the processor has no instructions for products of bfloat16, so it is slower"
    assert sum(says in note for note in notes) == (0 if has_kernels else 1)


def test_the_plan_says_it_and_only_on_request(process):
    plain, asked, other = plan(process), plan(process, compute_dtype="float32"), plan(process, compute_dtype="bfloat16")
    assert str(plain) == str(asked)
    assert "compute_dtype" not in str(plain)
    assert "compute_dtype=bfloat16" in str(other)
    assert "low_rank" not in str(other)
    assert other.digest() != plain.digest()
    assert verify(attrs.evolve(parse_module(str(other)), blobs=other.blobs)) == other
    assert compile_module(other, "plan{compute_dtype=bfloat16}") is other
    server = {g.name: g for g in plain.graphs if g.name.startswith(("join", "clients_fold", "server"))}
    assert server == {g.name: g for g in other.graphs if g.name in server}  # the aggregation is not rounded


def test_bits_depend_neither_on_workers_nor_on_widths_nor_on_memory(process, data):
    expected, _ = trained(process, data, compute_dtype="bfloat16", vectorize=8, workers_per_device=1)
    runtime = fc.runtime.local(compute_dtype="bfloat16", vectorize=8)
    with out_of_memory(runtime, "CPU:0", calls=[0]) as failed:
        alone, _ = trained(process, data, runtime=runtime)
    assert failed == [0]
    others = [
        trained(process, data, compute_dtype="bfloat16", vectorize=8, workers_per_device=2)[0],
        trained(process, data, compute_dtype="bfloat16", vectorize=4)[0],
        alone,
    ]
    for found in others:
        assert [w.tobytes() for w in found] == [w.tobytes() for w in expected]


def test_training_stays_near_that_in_float32(process, data):
    weights, loss = trained(process, data, 5, compute_dtype="bfloat16")
    expected, loss_of_float32 = trained(process, data, 5)
    assert loss == pytest.approx(loss_of_float32, rel=0.01)
    assert any(a.tobytes() != b.tobytes() for a, b in zip(weights, expected, strict=True))


@pytest.mark.parametrize("given", ["float16", True, None, np.float32])
def test_other_dtypes_are_refused(given):
    with pytest.raises(FedcoreError, match="compute_dtype is 'float32' or 'bfloat16', not ") as raised:
        fc.runtime.local(compute_dtype=given)
    assert isinstance(raised.value, ValueError)


def test_the_pass_refuses_other_dtypes(process):
    with pytest.raises(FedcoreError, match="the option compute_dtype of plan is float32 or bfloat16, not 'half'"):
        compile_module(process.next.module, "lowering,partition,plan{compute_dtype=half}")


def test_the_ray_runtime_passes_its_dtype_and_its_target_on_to_the_plan(process, monkeypatch):
    pytest.importorskip("ray")
    from fedcore.runtime.cluster import connection, executor

    clients = fc.runtime.local()._clients
    monkeypatch.setattr(connection, "connect", lambda address, cpus: lambda: None)
    monkeypatch.setattr(executor, "RayClientsExecutor", lambda *settings: clients)
    target = "avx2/small-l2/slow-memory/no-gpu"
    with fc.use(fc.runtime.ray(compute_dtype="bfloat16", target=target)):
        found = plan_of(process.next.module)
    assert "compute_dtype=bfloat16" in str(found)
    assert found.main.attributes["target"] == target

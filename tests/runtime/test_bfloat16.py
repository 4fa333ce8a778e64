"""`compute_dtype="bfloat16"`: products of client stages read rounded operands."""

import attrs
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.compiler import compile_module
from fedcore.context import plan_of
from fedcore.errors import FedcoreError
from fedcore.ir import parse_module, verify
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


def test_products_read_rounded_operands_and_add_in_float32():
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
    np.testing.assert_allclose(found, rounded(x) @ rounded(w), rtol=1e-5, atol=1e-5)
    assert np.abs(found - x @ w).max() > 1e-3


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

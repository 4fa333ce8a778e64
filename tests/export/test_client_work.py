"""A client's work that runs without fedcore: as a SavedModel with the same bits, and as a LiteRT file."""

import json
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.seeds import fold_in

X = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
Y = (np.arange(7) % 3).astype(np.int32)
SHUFFLED = fc.data.ClientDataset.from_columns((X, Y)).map(lambda x, y: (2 * x, y)).shuffle(7, seed=3).repeat(2).batch(2)


@pytest.fixture(scope="module")
def process():
    def model_fn():
        layers = [keras.Input((5,)), keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(3)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(keras.Sequential(layers), loss, SHUFFLED.element_spec)

    return fc.learning.algorithms.build_unweighted_fed_avg(model_fn, fc.learning.optimizers.build_sgdm(0.1))


PLAIN_TENSORFLOW = """
import sys
import numpy as np
import tensorflow as tf

train = tf.saved_model.load(sys.argv[1]).signatures["train"]
with np.load(sys.argv[2]) as given:
    found = train(**{name: tf.constant(given[name]) for name in given.files})
np.savez(sys.argv[3], **{name: value.numpy() for name, value in found.items()})
assert "fedcore" not in sys.modules
"""


def test_plain_tensorflow_makes_the_same_update_to_the_bit(process, tmp_path):
    interface = fc.export.save_client_work(process.next, SHUFFLED, tmp_path / "work")
    assert json.loads((tmp_path / "work" / "interface.json").read_text()) == interface
    state = process.initialize.invoke(seed=1)
    with fc.use(fc.runtime.local(vectorize=False)):
        after, metrics = process.next(state, [SHUFFLED])

    seed = fold_in(int(state.seed), int(state.round))
    batches = [
        y for _, y in fc.data.ClientDataset.from_columns((X, np.arange(7))).shuffle(7, seed=3).repeat(2).batch(2)
    ]
    given = {
        "seed": fold_in(seed, 0),
        **{f"shared_trainable_{i}": w for i, w in enumerate(state.model.trainable)},
        "shared_2_learning_rate": np.float32(0.1),
        "data_0": X,
        "data_1": Y,
        "data_rows": np.stack(batches),
        "data_sizes": np.array([2] * 7),
    }
    assert list(interface["inputs"]) == list(given)
    np.savez(tmp_path / "given.npz", **given)
    files = [tmp_path / "work", tmp_path / "given.npz", tmp_path / "found.npz"]
    subprocess.run([sys.executable, "-c", PLAIN_TENSORFLOW, *map(str, files)], check=True, cwd=tmp_path)
    with np.load(tmp_path / "found.npz") as found:
        assert sorted(found.files) == sorted(interface["outputs"])
        for i, (before, weights) in enumerate(zip(state.model.trainable, after.model.trainable, strict=True)):
            assert (before + found[f"update_trainable_{i}"]).tobytes() == weights.tobytes()
        loss = found["metrics_loss_0"] / found["metrics_loss_1"]
        assert loss == metrics["client_work"]["train"]["loss"]


def test_examples_of_different_shapes_are_exported(tmp_path):
    @fc.tf_computation(fc.SequenceType(fc.TensorType("float32", [None, None])))
    def total(batches):
        return batches.reduce(0.0, lambda total, batch: total + tf.reduce_sum(batch))

    @fc.federated_computation(fc.FederatedType(total.type_signature.parameter, fc.CLIENTS))
    def add(clients):
        return fc.federated_sum(fc.federated_map(total, clients))

    interface = fc.export.save_client_work(add, [np.float32([[1, 2]]), np.float32([[3]])], tmp_path)
    columns = {
        "clients": np.float32([1, 2, 3]),
        "clients_shapes": [[1, 2], [1, 1]],
        "clients_starts": [0, 2],
        "clients_rows": [1, 0, 1],
    }
    assert list(interface["inputs"]) == ["seed", *columns]
    inputs = {name: tf.constant(t, interface["inputs"][name]["dtype"]) for name, t in columns.items()}
    train = tf.saved_model.load(tmp_path).signatures["train"]
    assert [float(v) for v in train(seed=tf.constant(0, tf.int64), **inputs).values()] == [9.0]


def test_the_reading_order_is_that_of_repeat_and_batch(process, tmp_path):
    fc.export.save_client_work(process.next, SHUFFLED, tmp_path)
    order = tf.saved_model.load(tmp_path).signatures["reading_order"]
    for count, batch_size, epochs in [(7, 2, 2), (5, 3, 1), (1, 4, 3), (0, 2, 2)]:
        numbers = {"count": count, "batch_size": batch_size, "epochs": epochs}
        found = order(**{name: tf.constant(n, tf.int64) for name, n in numbers.items()})
        batches = [r[:n].tolist() for r, n in zip(found["rows"].numpy(), found["sizes"].numpy(), strict=True)]
        want = tf.data.Dataset.range(count).repeat(epochs).batch(batch_size) if count else []
        assert batches == [b.numpy().tolist() for b in want]


def test_a_litert_file_has_the_signature_and_names_the_operations_that_litert_lacks(process, tmp_path):
    path = tmp_path / "client.tflite"
    lacking = fc.export.save_client_work_for_litert(process.next, SHUFFLED, path)
    assert {"FlexReluGrad", "FlexStatelessRandomUniformV2"} <= set(lacking)
    assert "FlexMatMul" not in lacking
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the interpreter has moved to a package of its own
        signature = tf.lite.Interpreter(str(path)).get_signature_list()["train"]
    assert {"data_rows", "shared_trainable_0"} <= set(signature["inputs"])
    assert {"update_trainable_0", "update_trainable_1"} <= set(signature["outputs"])


@fc.federated_computation(fc.FederatedType(tf.float32, fc.CLIENTS), fc.FederatedType(tf.float32, fc.SERVER))
def largest_difference(values, reference):
    difference = fc.tf_computation(lambda v, r: {"difference": v - r})
    found = fc.federated_map(difference, (values, fc.federated_broadcast(reference)))
    return fc.federated_max(found.difference)


def test_any_computation_with_one_client_stage_is_exported(tmp_path):
    interface = fc.export.save_client_work(largest_difference, 1.0, tmp_path)
    train = tf.saved_model.load(tmp_path).signatures["train"]
    assert len(interface["inputs"]) == 3
    seed, shared, value = interface["inputs"]
    found = train(**{seed: tf.constant(0, tf.int64), shared: tf.constant(1.5), value: tf.constant(4.0)})
    assert [t.numpy() for t in found.values()] == [2.5]


def test_names_have_the_characters_that_tensorflow_keeps(tmp_path):
    @fc.federated_computation(*[fc.FederatedType(tf.float32, fc.CLIENTS)] * 3)
    def total(größe, _2x, 重):
        return fc.federated_sum(fc.federated_map(fc.tf_computation(lambda a, b, c: {"Σ": a + b + c}), (größe, _2x, 重)))

    interface = fc.export.save_client_work(total, (1.0, 2.0, 3.0), tmp_path)
    assert list(interface["inputs"]) == ["seed", "gr_e", "value_2x", "value"]
    train = tf.saved_model.load(tmp_path).signatures["train"]
    assert set(train.structured_input_signature[1]) == set(interface["inputs"])
    assert list(train.structured_outputs) == list(interface["outputs"])


def test_names_that_stand_twice_are_numbered(tmp_path):
    pair = fc.types.StructType([("a", fc.types.StructType([("b", np.float32)])), ("a_b", np.float32)])

    @fc.federated_computation(fc.FederatedType(pair, fc.CLIENTS), fc.FederatedType(tf.float32, fc.CLIENTS))
    def scaled(x, seed):
        scale = fc.tf_computation(lambda x, seed: {"a": {"b": x["a"]["b"] * seed}, "a_b": x["a_b"] * seed})
        return fc.federated_sum(fc.federated_map(scale, (x, seed)))

    client = {"a": {"b": 2.0}, "a_b": 3.0}
    interface = fc.export.save_client_work(scaled, (client, 10.0), tmp_path)
    assert list(interface["inputs"]) == ["seed", "x_a_b", "x_a_b_1", "seed_1"]
    train = tf.saved_model.load(tmp_path).signatures["train"]
    values = {"x_a_b": tf.constant(2.0), "x_a_b_1": tf.constant(3.0), "seed_1": tf.constant(10.0)}
    results = train(seed=tf.constant(0, tf.int64), **values)
    assert [results[name].numpy() for name in interface["outputs"]] == [20.0, 30.0]


def test_what_cannot_be_exported_is_named(tmp_path):
    @fc.federated_computation(fc.FederatedType(tf.float32, fc.CLIENTS))
    def twice(values):
        mean = fc.federated_broadcast(fc.federated_mean(values))
        return fc.federated_sum(fc.federated_map(fc.tf_computation(lambda v, m: v - m), (values, mean)))

    with pytest.raises(FedcoreError, match="one client stage can be exported; twice has 2: @clients, @clients_1"):
        fc.export.save_client_work(twice, 1.0, tmp_path)


def test_a_process_is_no_computation_and_its_next_is_named(process, tmp_path):
    for save in (fc.export.save_client_work, fc.export.save_client_work_for_litert):
        with pytest.raises(TypeMismatch, match=r"such as process.next, not .*LearningProcess"):
            save(process, SHUFFLED, tmp_path)


def test_an_example_client_of_another_type_is_refused(process, tmp_path):
    with pytest.raises(TypeMismatch, match=r"client does not fit\n.*\n.*float64"):
        fc.export.save_client_work(process.next, SHUFFLED.map(lambda x, y: (tf.cast(x, tf.float64), y)), tmp_path)
    with pytest.raises(TypeMismatch, match="the clients hold 1 values, and the example client has 2"):
        fc.export.save_client_work(process.next, (SHUFFLED, SHUFFLED), tmp_path)

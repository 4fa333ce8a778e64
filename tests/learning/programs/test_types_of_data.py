"""`train` compares the clients' data with the model before it runs or writes anything."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TypeMismatch

X = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
Y = np.arange(12, dtype=np.int32) % 3
CAST = "fix: tf.cast in a .map() of the data; or give the model their type: from_keras_model(…, input_spec=)"


def model_fn():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    return fc.learning.from_keras_model(model, "sparse_categorical_crossentropy")


@pytest.fixture(scope="module")
def process():
    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, keras.optimizers.SGD(0.1))


@pytest.fixture(scope="module")
def evaluation():
    return fc.learning.algorithms.build_fed_eval(model_fn, per_client=[])


def client_data(x=X, y=Y, batch=4):
    data = fc.simulation.datasets.from_arrays((x, y), np.arange(12) % 3)
    return data.preprocess(lambda dataset: dataset.batch(batch)) if batch else data


def message_of(call):
    with pytest.raises(TypeMismatch) as caught:
        call()
    return str(caught.value)


MISFITS = {
    "numbers of other dtypes": (client_data(X.astype(np.float64)), [CAST]),
    "no batches": (
        client_data(batch=None),
        ["fix: data is not batched: data.preprocess(lambda dataset: dataset.batch(n))"],
    ),
    "no batches, and other dtypes": (
        client_data(y=Y.astype(np.int64), batch=None),
        ["fix: data is not batched: data.preprocess(lambda dataset: dataset.batch(n))", CAST],
    ),
    "too many batches": (client_data().preprocess(lambda dataset: dataset.batch(2)), ["fix: data is batched: leave"]),
    "other columns": (client_data(X[:, :5]), []),
    "a list": ([tf.data.Dataset.from_tensor_slices((X, Y))], ["fix: data is not batched"]),
}


@pytest.mark.parametrize("name", MISFITS)
def test_data_that_do_not_fit_are_shown_beside_the_model_before_the_first_round(process, name, tmp_path):
    data, fixes = MISFITS[name]
    directory = tmp_path / "run"
    text = message_of(lambda: fc.learning.programs.train(process, data, 1, clients_per_round=1, directory=directory))
    title, wants, has, carets, *rest = text.splitlines()
    assert title == "data does not fit the model of process"
    assert wants == "  model  wants  <float32[?,6],int32[?]>*"
    assert has.startswith("  data   has    <")
    assert re.fullmatch(r" +\^[\^ ]*", carets)
    assert len(rest) == len(fixes)
    for line, fix in zip(rest, fixes, strict=True):
        assert line.startswith(f"  {fix}")
    assert not directory.exists()


def test_rows_of_one_length_train_a_model_that_takes_any():
    def any_length():
        layers = [keras.Input((None, 1)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(keras.Sequential(layers), loss)

    process = fc.learning.algorithms.build_weighted_fed_avg(any_length, keras.optimizers.SGD(0.1))
    history = fc.learning.programs.train(process, client_data(X[:, :, None]), 1, clients_per_round=3)
    bias = process.get_model_weights(history.state).trainable[1]
    np.testing.assert_allclose(np.sum(bias), 0, atol=1e-6)
    assert np.any(bias)


@pytest.mark.parametrize(
    "data", [client_data(X[:, :5]), (X[:, :5], Y), tf.data.Dataset.from_tensor_slices((X[:, :5], Y)).batch(4)]
)
def test_data_to_evaluate_on_are_compared_before_the_first_round(process, evaluation, data):
    options = {"clients_per_round": 1, "evaluation": evaluation, "evaluation_data": data}
    text = message_of(lambda: fc.learning.programs.train(process, client_data(), 20, **options))
    assert text.startswith("evaluation_data does not fit the model of evaluation\n  model")


def test_data_of_an_evaluation_of_clients_are_compared(evaluation):
    weights = evaluation.get_model_weights(evaluation.initialize())
    text = message_of(lambda: fc.learning.programs.evaluate_clients(evaluation, weights, client_data(batch=None)))
    assert text.startswith("data does not fit the model of evaluation\n")


def test_what_is_no_evaluation_is_refused(process):
    options = {"clients_per_round": 1, "evaluation": model_fn, "evaluation_data": client_data()}
    text = message_of(lambda: fc.learning.programs.train(process, client_data(), 1, **options))
    assert text.startswith("evaluation is a process, as of build_fed_eval(model_fn), not ")

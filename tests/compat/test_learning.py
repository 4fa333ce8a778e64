"""The older builders: their names, the shapes of their results, the numbers of the modern ones."""

import keras
import numpy as np
import pytest

import fedcore as fc
from tests.learning.conftest import model_fn, random_clients  # noqa: F401


@pytest.fixture(scope="module")
def process(model_fn):  # noqa: F811
    return fc.learning.build_federated_averaging_process(model_fn, lambda: keras.optimizers.SGD(0.1))


def test_metrics_have_the_older_parts(process):
    _, metrics = process.next(process.initialize(), random_clients([7, 3]))
    assert list(metrics) == ["broadcast", "aggregation", "train", "stat"]
    assert metrics["stat"]["num_examples"] == 10
    assert {"loss", "accuracy"} <= set(metrics["train"])


def test_a_round_is_that_of_the_modern_builder(process, model_fn):  # noqa: F811
    modern = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
    older, newer = process.initialize.invoke(seed=3), modern.initialize.invoke(seed=3)
    older, _ = process.next(older, random_clients([7, 3]))
    newer, _ = modern.next(newer, random_clients([7, 3]))
    for a, b in zip(older.model.trainable, newer.model.trainable, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_model_of_a_state_goes_into_keras_and_back(process, model_fn):  # noqa: F811
    state = process.initialize()
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(3)])
    state.model.assign_weights_to(model)
    again = state.replace(model=fc.learning.ModelWeights.from_model(model))
    for a, b in zip(again.model.trainable, state.model.trainable, strict=True):
        np.testing.assert_array_equal(a, b)
    process.next(again, random_clients([4]))


def test_evaluation_takes_a_model_and_gives_its_metrics(process, model_fn):  # noqa: F811
    evaluate = fc.learning.build_federated_evaluation(model_fn)
    metrics = evaluate(process.initialize().model, random_clients([7, 3]))["eval"]
    assert {"loss", "accuracy"} <= set(metrics)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'build_nothing'"):
        _ = fc.learning.build_nothing

"""Federated evaluation against Keras, and its totals."""

import keras
import numpy as np
import pytest

import fedcore as fc

from .conftest import random_clients


@pytest.fixture(scope="module")
def evaluation(model_fn):
    return fc.learning.algorithms.build_fed_eval(model_fn)


def test_metrics_equal_keras_on_the_union(evaluation):
    clients = random_clients([7, 3, 12])
    state = evaluation.initialize()
    _, metrics = evaluation.next(state, clients)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)])
    evaluation.get_model_weights(state).assign_weights_to(model)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], run_eagerly=True
    )
    x, y = (np.concatenate([c.columns.arrays[i] for c in clients]) for i in (0, 1))
    loss, accuracy = model.evaluate(x, y, verbose=0)
    current = metrics["client_work"]["eval"]["current_round_metrics"]
    np.testing.assert_allclose([current["loss"], current["accuracy"]], [loss, accuracy], rtol=1e-5)


def test_totals_add_up_over_rounds(evaluation):
    state = evaluation.initialize()
    for _ in range(3):
        state, metrics = evaluation.next(state, random_clients([4, 5]))
    assert metrics["client_work"]["eval"]["total_rounds_metrics"]["num_examples"] == 27


def test_no_clients_give_counts_and_a_loss_of_zero(evaluation):
    _, metrics = evaluation.next(evaluation.initialize(), [])
    current = metrics["client_work"]["eval"]["current_round_metrics"]
    assert current["num_examples"] == 0
    assert current["loss"] == 0

"""Federated averaging with local steps and client states of one's own, against the algorithms written in numpy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TypeMismatch
from fedcore.learning import ModelWeights
from fedcore.learning.models import gradients_of, trace_model

RATE = 0.1


def client(number: int, examples: int | None = None) -> fc.data.ClientDataset:
    rng = np.random.default_rng(number)
    x = rng.normal(size=(4 + number if examples is None else examples, 2)).astype(np.float32)
    return fc.data.ClientDataset.from_columns((x, x @ np.array([[number], [1]], np.float32))).batch(3)


def model_fn():
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), client(1).element_spec)


@pytest.fixture(scope="module")
def model():
    return trace_model(model_fn)


def descended(weights, gradients):
    return ModelWeights(tuple(w - RATE * g for w, g in zip(weights.trainable, gradients, strict=True)), ())


@pytest.fixture(scope="module")
def fed_dyn(model):
    """FedDyn's clients (Acar et al. 2021, Algorithm 1): h_k moves by -strength * (w_k - w)."""

    def local_step(weights, own, metrics, batch, sent):
        gradients, _, _, metrics = gradients_of(model, weights, metrics, batch)
        parts = zip(gradients, own, weights.trainable, sent.trainable, strict=True)
        return descended(weights, [g - h + 0.5 * (w - s) for g, h, w, s in parts]), own, metrics

    def finish(weights, own, sent):
        return tuple(h - 0.5 * (w - s) for h, w, s in zip(own, weights.trainable, sent.trainable, strict=True))

    def zeros():
        return tuple(tf.zeros_like(w) for w in model.initial_weights().trainable)

    return fc.learning.algorithms.build_fed_avg_with_client_states(model, local_step, zeros, finish=finish)


def trained_by_hand(weights, own, dataset):
    """(The weights after a client's steps, its next h)."""
    sent, (kernel, bias) = weights, weights
    for x, y in dataset.as_numpy_iterator():
        error = 2 * (x @ kernel + bias - y) / len(x)
        gradients = (x.T @ error, error.sum(0))
        parts = zip((kernel, bias), gradients, own, sent, strict=True)
        kernel, bias = (w - RATE * (g - h + 0.5 * (w - s)) for w, g, h, s in parts)
    return (kernel, bias), tuple(h - 0.5 * (w - s) for h, w, s in zip(own, (kernel, bias), sent, strict=True))


def test_rounds_are_those_of_the_algorithm_in_numpy(fed_dyn):
    clients = [client(i) for i in (1, 2, 3)]
    state, own = fed_dyn.initialize(), [fed_dyn.initial_client_state()] * 3
    weights, own_by_hand = [np.asarray(w) for w in state.global_model_weights.trainable], own
    for _ in range(3):
        state, _, own = fed_dyn.next(state, clients, own)
        after, own_by_hand = zip(
            *(trained_by_hand(weights, h, c) for h, c in zip(own_by_hand, clients, strict=True)), strict=True
        )
        weights = [np.average(leaves, axis=0, weights=[5, 6, 7]) for leaves in zip(*after, strict=True)]
    for ours, by_hand in zip(state.global_model_weights.trainable, weights, strict=True):
        np.testing.assert_allclose(ours, by_hand, rtol=1e-4, atol=1e-5)
    for ours, by_hand in zip(tf.nest.flatten(own), tf.nest.flatten(own_by_hand), strict=True):
        np.testing.assert_allclose(ours, by_hand, rtol=1e-4, atol=1e-5)


def test_clients_train_side_by_side(fed_dyn):
    assert "strategy=vectorised" in fed_dyn.next.to_text("planned")


def test_a_client_without_examples_or_that_diverges_keeps_its_state_and_adds_nothing(fed_dyn):
    own = (np.ones((2, 1), np.float32), np.ones(1, np.float32))
    x = np.full((3, 2), np.inf, np.float32)
    diverging = fc.data.ClientDataset.from_columns((x, x[:, :1])).batch(3)
    state = fed_dyn.initialize()
    after, metrics, kept = fed_dyn.next(state, [client(1), client(2, 0), diverging], [own] * 3)
    alone, _, (changed,) = fed_dyn.next(state, [client(1)], [own])
    for ours, expected in zip(
        (*after.global_model_weights.trainable, *kept[0], *kept[1], *kept[2]),
        (*alone.global_model_weights.trainable, *changed, *own, *own),
        strict=True,
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)
    assert metrics["client_work"]["train"]["num_non_finite_clients"] == 1


def test_a_round_without_clients_changes_nothing(fed_dyn):
    state = fed_dyn.initialize()
    after, _, own = fed_dyn.next(state, [], [])
    assert own == []
    for before, now in zip(state.global_model_weights.trainable, after.global_model_weights.trainable, strict=True):
        np.testing.assert_array_equal(before, now)


def test_mistakes_of_the_functions_are_named(model):
    build = fc.learning.algorithms.build_fed_avg_with_client_states
    with pytest.raises(TypeMismatch, match="local_step is a function, not None"):
        build(model, None, lambda: 0.0)
    with pytest.raises(TypeMismatch, match=r"local_step returns \(weights, own state, metric states\)"):
        build(model, lambda weights, own, metrics, batch, sent: weights, lambda: tf.zeros([]))


def test_error_feedback_trains_and_resumes(tmp_path):
    def top_half(spec):
        return fc.aggregators.encoders.top_k(0.5)

    process = fc.learning.algorithms.build_fed_avg_with_error_feedback(
        model_fn, lambda: keras.optimizers.SGD(RATE), encoder_fn=top_half
    )
    datasets = {str(i): client(i) for i in range(4)}
    data = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(datasets, datasets.get)
    options = {"clients_per_round": 2, "seed": 3, "progress": False}
    whole = fc.learning.programs.train(process, data, 4, **options)
    for rounds in (2, 4):
        resumed = fc.learning.programs.train(process, data, rounds, directory=tmp_path, **options)
    assert resumed.rows == whole.rows
    for client_id, state in whole.client_states.items():
        for left, right in zip(state.trainable, resumed.client_states[client_id].trainable, strict=True):
            np.testing.assert_array_equal(left, right)

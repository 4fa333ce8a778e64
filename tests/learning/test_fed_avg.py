"""Federated averaging against an independent numpy computation, and at its edges."""

import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import TypeMismatch

from .conftest import client, random_clients

RATE = 0.1


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def numpy_client(weights, x, y, batch):
    """One epoch of gradient descent on a tanh layer and a linear layer, in float64."""
    w1, b1, w2, b2 = (np.array(w, np.float64) for w in weights)
    for i in range(0, len(y), batch):
        xb, yb = x[i : i + batch].astype(np.float64), y[i : i + batch]
        h = np.tanh(xb @ w1 + b1)
        p = softmax(h @ w2 + b2)
        p[np.arange(len(yb)), yb] -= 1
        p /= len(yb)
        dh = (p @ w2.T) * (1 - h * h)
        w2, b2 = w2 - RATE * h.T @ p, b2 - RATE * p.sum(0)
        w1, b1 = w1 - RATE * xb.T @ dh, b1 - RATE * dh.sum(0)
    return [w1, b1, w2, b2]


def test_one_round_equals_numpy(process):
    clients = random_clients([7, 3, 12, 4, 1])
    state = process.initialize()
    start = process.get_model_weights(state).trainable
    columns = [c.columns.arrays for c in clients]
    after, _ = process.next(state, clients)
    trained = [numpy_client(start, x, y, 4) for x, y in columns]
    sizes = np.array([len(y) for _, y in columns], np.float64)
    for i, got in enumerate(process.get_model_weights(after).trainable):
        want = sum(n * w[i] for n, w in zip(sizes, trained, strict=True)) / sizes.sum()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_uniform_weighting_equals_the_plain_mean(model_fn):
    process = fc.learning.algorithms.build_weighted_fed_avg(
        model_fn, lambda: keras.optimizers.SGD(RATE), client_weighting=fc.learning.ClientWeighting.UNIFORM
    )
    clients = random_clients([7, 3, 12])
    state = process.initialize()
    start = process.get_model_weights(state).trainable
    trained = [numpy_client(start, *c.columns.arrays, 4) for c in clients]
    after, _ = process.next(state, clients)
    for i, got in enumerate(process.get_model_weights(after).trainable):
        np.testing.assert_allclose(got, np.mean([t[i] for t in trained], axis=0), rtol=1e-5, atol=1e-6)


def test_counts_are_exact(process):
    _, metrics = process.next(process.initialize(), random_clients([7, 3, 12]))
    train = metrics["client_work"]["train"]
    assert (train["num_examples"], train["num_batches"]) == (22, 2 + 1 + 3)


def test_local_and_reference_runtime_agree(process):
    clients = random_clients([5, 2, 9])
    state = process.initialize()
    local, _ = process.next(state, clients)
    with fc.use(fc.runtime.reference()):
        reference, _ = process.next(state, clients)
    for a, b in zip(local.global_model_weights.trainable, reference.global_model_weights.trainable, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_plan_of_a_round_is_server_broadcast_clients_merge_server(process):
    operations = process.next.to_module("planned").main.operations
    kinds = [op.kind for op in operations if op.kind not in ("item", "struct")]
    assert kinds == ["run", "broadcast", "fold", "merge", "run"]


def test_no_clients_leave_the_model_as_it_was(process):
    state = process.initialize()
    after, metrics = process.next(state, [])
    for a, b in zip(after.global_model_weights.trainable, state.global_model_weights.trainable, strict=True):
        np.testing.assert_array_equal(a, b)
    assert metrics["client_work"]["train"]["num_examples"] == 0
    assert metrics["client_work"]["train"]["loss"] == 0


def test_a_client_without_examples_counts_for_nothing(process):
    clients = random_clients([6, 4])
    empty = client(np.zeros((0, 5)), np.zeros((0,)))
    state = process.initialize()
    with_empty, _ = process.next(state, [clients[0], empty, clients[1]])
    without, _ = process.next(state, clients)
    for a, b in zip(with_empty.global_model_weights.trainable, without.global_model_weights.trainable, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_client_whose_loss_is_nan_has_no_weight_and_adds_nothing_to_the_loss(process):
    good = random_clients([6])[0]
    bad = client(np.full((4, 5), np.nan), [0, 1, 2, 0])
    state = process.initialize()
    with_bad, metrics = process.next(state, [good, bad])
    without, metrics_without = process.next(state, [good])
    for a, b in zip(with_bad.global_model_weights.trainable, without.global_model_weights.trainable, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    train, train_without = (m["client_work"]["train"] for m in (metrics, metrics_without))
    assert train["loss"] == pytest.approx(float(train_without["loss"]), rel=1e-6)
    assert train["num_non_finite_clients"] == 1


def test_a_client_of_the_wrong_dtype_is_named_and_the_state_stays_usable(process):
    good = random_clients([6])[0]
    columns = (np.zeros((4, 5), np.float64), np.zeros(4, np.int32))
    wrong = fc.data.ClientDataset.from_columns(columns).batch(4)
    state = process.initialize()
    with pytest.raises(TypeMismatch, match=r"data\[1\] does not fit"):
        process.next(state, [good, wrong])
    after, metrics = process.next(state, [good])
    assert metrics["client_work"]["train"]["num_examples"] == 6
    assert after.round == 1


def test_a_dataset_instead_of_a_list_of_clients_is_an_error_that_says_so(process):
    with pytest.raises(TypeMismatch, match="give a list with one element per client"):
        process.next(process.initialize(), random_clients([6])[0])


def test_the_same_seed_gives_the_same_bits(model_fn):
    def run():
        process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(RATE))
        with fc.use(seed=11):
            state = process.initialize()
        clients = [c.shuffle(10) for c in random_clients([9, 5, 8])]
        for _ in range(2):
            state, _ = process.next(state, clients)
        return state.global_model_weights.trainable

    for a, b in zip(run(), run(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_shuffles_differ_between_rounds(process):
    clients = [
        c.shuffle(10)
        for c in [fc.data.ClientDataset.from_columns((np.eye(5, dtype=np.float32), np.arange(5, dtype=np.int32) % 3))]
    ]
    clients = [c.batch(1) for c in clients]
    state = process.initialize()
    first, _ = process.next(state, clients)
    second, _ = process.next(state.replace(round=np.int64(1)), clients)
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(first.global_model_weights.trainable, second.global_model_weights.trainable, strict=True)
    )


def test_weights_go_into_a_keras_model(process):
    state = process.initialize()
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(3)])
    process.get_model_weights(state).assign_weights_to(model)
    for variable, value in zip(model.trainable_variables, state.global_model_weights.trainable, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_weights_that_do_not_fit_change_no_variable(process):
    weights = process.get_model_weights(process.initialize())
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    before = [v.numpy() for v in model.variables]
    with pytest.raises(ValueError, match=r"kernel has the shape \(4, 2\) where these weights have \(4, 3\)"):
        weights.assign_weights_to(model)
    with pytest.raises(ValueError, match="the model has 2 variables where these weights have 4"):
        weights.assign_weights_to(keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)]))
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_building_twice_gives_one_digest(model_fn):
    digests = {
        fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(RATE)).next.digest
        for _ in range(2)
    }
    assert len(digests) == 1


def test_initial_weights_do_not_depend_on_the_randomness_around(model_fn):
    import random

    weights = []
    for seed in (1, 2):
        random.seed(seed)
        process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(RATE))
        weights.append(process.initialize.invoke(seed=1).global_model_weights.trainable)
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)

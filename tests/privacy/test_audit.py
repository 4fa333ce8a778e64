"""Audits: a right program's bound is below the ledger's, one without noise is found."""

import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import gaussian_mechanism

import fedcore as fc
from fedcore.aggregators import differential_privacy
from fedcore.errors import FedcoreError
from fedcore.privacy.audit import epsilon_between

DP = fc.aggregators.DifferentiallyPrivateFactory
VECTOR = fc.to_type({"w": ("float32", [40, 20]), "b": ("float32", [200])})
ALL = fc.simulation.build_random_permutation_sampling_fn(range(60), 60, seed=1)


def audited(factory, sampler=ALL, **options):
    return fc.privacy.audit(factory.create(VECTOR), sampler, rounds=4, delta=1e-3, canaries=60, **options)


@pytest.mark.parametrize(
    "factory",
    [DP.gaussian_adaptive(1.5, 60), DP.tree_aggregation(2.0, 60, 1.0, 4)],
    ids=["adaptive", "tree"],
)
def test_a_right_program_reveals_no_more_than_the_ledger_says(factory):
    found = audited(factory)
    assert found.passed
    assert 0.2 * found.epsilon < found.lower < found.estimate < 1.5 * found.epsilon
    assert (found.rounds, found.canaries) == (4, 60)


def test_a_program_whose_noise_was_removed_reveals_more(monkeypatch):
    monkeypatch.setattr(differential_privacy, "normal_from_seed", lambda stream, size: tf.zeros([size]))
    found = audited(DP.gaussian_fixed(1.5, 60, 0.7))
    assert found.lower > 2 * found.epsilon
    assert not found.passed


def test_a_program_with_a_third_of_the_noise_reveals_more(monkeypatch):
    full = differential_privacy.normal_from_seed
    monkeypatch.setattr(differential_privacy, "normal_from_seed", lambda stream, size: full(stream, size) / 3)
    assert not audited(DP.gaussian_fixed(1.5, 60, 0.7)).passed


def test_clients_that_are_no_canaries_take_part():
    others = {"w": np.ones((40, 20), np.float32), "b": np.ones(200, np.float32)}
    sampler = fc.simulation.build_poisson_sampling_fn(range(120), 0.5, seed=2)
    assert audited(DP.gaussian_fixed(1.5, 60, 0.7), sampler, others=lambda identifier: others).passed


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_the_estimate_of_gaussian_scores_is_the_epsilon_of_the_mechanism(noise):
    rng = np.random.default_rng(0)
    inside, outside = 1 + noise * rng.normal(size=400_000), noise * rng.normal(size=400_000)
    estimate, lower = epsilon_between(inside, outside, 1e-4, 0.95)
    exact = gaussian_mechanism.get_epsilon_gaussian(noise, 1e-4)
    assert 0.8 * exact < lower < estimate < 1.01 * exact


def test_scores_that_are_not_finite_pass_no_audit():
    with pytest.raises(FedcoreError, match="a canary's score is not a finite number"):
        epsilon_between(np.array([1.0, np.nan]), np.array([0.0, 1.0]), 1e-4, 0.95)


def test_what_cannot_be_audited_says_why():
    process = DP.gaussian_fixed(1.5, 60, 0.7).create(VECTOR)
    for options, says in (
        ({"canaries": np.int64(61)}, "61 canaries need the places of so many clients; the sampler has 60"),
        ({"confidence": 1.0}, "confidence is below 1"),
        ({"rounds": 0}, "rounds is a whole number, 1 or more"),
        ({"score": max}, "score is its own"),
    ):
        with pytest.raises(FedcoreError, match=says):
            fc.privacy.audit(process, ALL, **{"rounds": 1, "delta": 1e-3, **options})


def test_a_learning_process_is_audited_by_a_score_of_its_model():
    import keras

    def data(x, y):
        columns = np.asarray([x], np.float32), np.asarray([[y]], np.float32)
        return fc.data.ClientDataset.from_columns(columns).batch(1)

    rng = np.random.default_rng(3)
    directions = rng.normal(size=(40, 600))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)

    def model_fn():
        model = keras.Sequential(
            [keras.Input((600,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        return fc.learning.from_keras_model(
            model, keras.losses.MeanSquaredError(), data(directions[0], 1.0).element_spec
        )

    process = fc.learning.algorithms.build_unweighted_fed_avg(
        model_fn, lambda: keras.optimizers.SGD(1.0), model_aggregator=DP.gaussian_fixed(1.0, 20, 1.0)
    )
    canaries = [(row, data(row, 1e3)) for row in directions]
    sampler = fc.simulation.build_random_permutation_sampling_fn(range(20), 20, seed=1)
    found = fc.privacy.audit(
        process,
        sampler,
        rounds=2,
        delta=1e-2,
        canaries=[batch for _, batch in canaries],
        others=lambda identifier: data(np.zeros(600), 0.0),
        score=lambda first, last, canary: float(
            directions[[batch for _, batch in canaries].index(canary)] @ last.global_model_weights.trainable[0][:, 0]
        ),
    )
    assert found.passed
    assert found.lower > 0.2 * found.epsilon

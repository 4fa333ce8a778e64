"""Sums with the clients' own discrete noise: distribution, rotation, rounding, and their accounting."""

import math

import attrs
import dp_accounting as dp
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting.rdp import RdpAccountant
from scipy import special, stats

import fedcore as fc
from fedcore import aggregators as agg
from fedcore.aggregators.distributed_privacy import _round_randomly, rounded_norm
from fedcore.aggregators.private_noise.discrete_gaussian import ROUNDED, discrete_gaussian, distribution, normal
from fedcore.aggregators.private_noise.rotation import padded_size, rotate_back, rotate_vector
from fedcore.errors import FedcoreError

SIZE, CLIENTS, DELTA = 1000, 8, 1e-3
VALUE = fc.to_type({"w": ("float32", [SIZE - 1]), "b": "float64"})
EVERYBODY = fc.simulation.build_random_permutation_sampling_fn(range(CLIENTS), CLIENTS, seed=1)


@pytest.mark.parametrize("stddev", [0.4, 3.0, 150.0])
def test_discrete_noise_has_its_distribution(stddev):
    tf.random.set_seed(5)
    x = discrete_gaussian(100_000, stddev).numpy()
    assert abs(x.mean()) < 5 * stddev / x.size**0.5
    k = np.arange(-2000, 2001)
    weights = np.exp(-(k**2) / (2 * stddev**2))
    variance = np.sum(k**2 * weights) / weights.sum()
    assert abs(x.var() - variance) < 6 * variance * (2 / x.size) ** 0.5
    common = weights / weights.sum() * x.size > 50
    expected = weights[common] / weights.sum() * x.size
    found = np.array([np.sum(x == v) for v in k[common]])
    rest = x.size - expected.sum()
    chance = stats.chi2.sf(np.sum((found - expected) ** 2 / expected), max(len(expected) - (rest < 1), 1))
    assert chance > 1e-6


def test_without_noise_the_table_has_one_number():
    assert (discrete_gaussian(50, 0.0).numpy() == 0).all()
    table, reach = distribution(2.0)
    assert len(table) == 2 * reach
    np.testing.assert_allclose(table[reach] - table[reach - 1], 1 / (2 * (2 * math.pi) ** 0.5), rtol=1e-6)


@pytest.mark.parametrize("stddev", [4.0, 16.0, 64.0])
def test_a_rounded_normal_number_has_the_discrete_distribution_up_to_its_fourth_cumulant(stddev):
    table, reach = distribution(stddev)
    k = np.arange(-reach, reach)
    rounded = special.ndtr((k + 0.5) / math.sqrt(stddev**2 - 1 / 12))
    most = np.abs(rounded - table.numpy()).max()  # of He₃(z) φ(z) / (2880 stddev⁴), 0.55 at z = 0.74
    assert 0.5 < most * 2880 * stddev**4 < 0.6
    assert most < np.abs(special.ndtr((k + 0.5) / stddev) - table.numpy()).max() / (8 * stddev**2)


@pytest.mark.parametrize("size", [1, 2, 100_001])
def test_large_discrete_noise_is_rounded(size):
    tf.random.set_seed(6)
    x = discrete_gaussian(size, ROUNDED).numpy()
    assert x.dtype == np.int64
    assert x.shape == (size,)
    if size > 2:
        assert (
            stats.kstest(x + np.random.default_rng(0).uniform(-0.5, 0.5, size), stats.norm(0, ROUNDED).cdf).pvalue
            > 1e-6
        )
        assert np.unique(x % 7, return_counts=True)[1].min() > 0.97 * size / 7


def test_the_tails_of_normal_numbers_are_not_cut(monkeypatch):
    monkeypatch.setattr(tf.random, "uniform", lambda shape, dtype: tf.zeros(shape, dtype))
    assert 8.5 < normal(2, 1.0).numpy().max() < 9


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
def test_a_rotation_spreads_a_vector_and_is_undone(size):
    seed, vector = tf.constant(7, tf.int64), np.zeros(size, np.float32)
    vector[size // 2] = 3.0
    turned = rotate_vector(tf.constant(vector), seed).numpy()
    assert turned.shape == (padded_size(size),)
    np.testing.assert_allclose(np.abs(turned), 3 / padded_size(size) ** 0.5, rtol=1e-5)
    np.testing.assert_allclose(rotate_back(tf.constant(turned), seed, size), vector, atol=1e-5)
    if size > 5:
        one, other = (rotate_vector(tf.ones([size]), seed + i).numpy() for i in (0, 1))
        assert (one != other).any()


@pytest.mark.parametrize("scale", [0.5, 20.0])
def test_rounding_keeps_the_mean_and_the_norm(scale):
    tf.random.set_seed(2)
    vector = np.random.default_rng(1).normal(size=256).astype(np.float32)
    vector *= scale * 16 / np.linalg.norm(vector)
    longest = rounded_norm(float(np.linalg.norm(vector)), 256)
    once = tf.function(lambda: _round_randomly(tf.constant(vector), longest))
    rounded = np.array([once().numpy() for _ in range(400)])
    assert (np.linalg.norm(rounded, axis=1) <= longest).all()
    assert np.abs(rounded - vector).max() < 1
    assert np.abs(rounded.mean(0) - vector).max() < 6 * 0.5 / 400**0.5


def test_what_no_rounding_makes_short_enough_is_rounded_towards_0():
    vector = tf.constant([1.5, -1.5, 0.25])
    np.testing.assert_array_equal(_round_randomly(vector, 1.42), [1, -1, 0])


def value(rng, norm):
    x = rng.normal(size=SIZE)
    x *= norm / np.linalg.norm(x)
    return {"w": x[1:].astype(np.float32), "b": np.float64(x[0])}


def flat(result):
    return np.concatenate([[result["b"]], result["w"]]).astype(np.float64)


def test_without_noise_the_mean_is_that_of_the_clipped_values():
    process = agg.DistributedDiscreteGaussianFactory(0.0, CLIENTS, clip=2.0, bits=24).create(VALUE)
    rng = np.random.default_rng(0)
    values = [value(rng, norm) for norm in (0.1, 1.0, 1.9, 2.1, 50.0, 1e6)]
    values.append({"w": np.full(SIZE - 1, np.nan, np.float32), "b": np.float64(1)})
    output = process.next(process.initialize(), values)
    want = sum(flat(v) * min(1, 2 / np.linalg.norm(flat(v))) for v in values[:-1]) / CLIENTS
    assert output.result["b"].dtype == np.float64
    assert np.abs(flat(output.result) - want).max() < 6 * output.measurements["step"] * CLIENTS**0.5
    assert output.state.clients == 7
    none = process.next(output.state, [])
    np.testing.assert_array_equal(flat(none.result), np.zeros(SIZE))


@pytest.fixture(scope="module")
def noisy():
    """A process whose noise is 3 times the clip; results and errors of rounds with all and with half of the clients."""
    process = agg.DistributedDiscreteGaussianFactory(3.0, CLIENTS, clip=0.5, bits=18).create(VALUE)
    rng, first = np.random.default_rng(0), process.initialize()
    values = [value(rng, 0.5) for _ in range(CLIENTS)]
    outputs = [process.next.invoke(first, values[:n], seed=n) for n in (CLIENTS, CLIENTS // 2)]
    errors = [
        flat(o.result) * CLIENTS - sum(map(flat, values[:n]))
        for o, n in zip(outputs, (CLIENTS, CLIENTS // 2), strict=True)
    ]
    return process, outputs, errors


def test_the_clients_noise_adds_to_the_wanted_one(noisy):
    _, outputs, errors = noisy
    for error, clients in zip(errors, (CLIENTS, CLIENTS // 2), strict=True):
        step = outputs[0].measurements["step"]
        variance = 1.5**2 * clients / CLIENTS + clients * step**2 / 4
        assert abs(error.mean()) < 5 * (variance / SIZE) ** 0.5
        assert abs(error.var() / variance - 1) < 6 * (2 / SIZE) ** 0.5


def test_only_secure_sums_reach_the_server(noisy):
    text = noisy[0].next.to_text()
    assert text.count("= federated_secure_modular_sum(") == text.count("= federated_secure_sum(") == 1
    assert not any(f"= {op}(" in text for op in ("federated_sum", "federated_aggregate", "federated_collect"))


def ledger_of(process, state, sampler=EVERYBODY, **changes):
    found = fc.privacy.Ledger(process, sampler, delta=DELTA)
    found.record(attrs.evolve(state, **changes), CLIENTS)
    return found


def test_the_ledger_counts_the_noise_of_the_clients_that_came(noisy):
    process, (all_came, half_came), _ = noisy
    full, half = ledger_of(process, all_came.state), ledger_of(process, half_came.state)
    step, dimension = float(all_came.measurements["step"]), 1024
    sensitivity = rounded_norm(0.5 / step, dimension) * step
    rho = (sensitivity / 1.5) ** 2 / 2
    theirs = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    assert full.epsilon() == pytest.approx(theirs.compose(dp.ZCDpEvent(rho)).get_epsilon(DELTA), rel=1e-5)
    assert half.epsilon() > 1.3 * full.epsilon()


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_stddev": np.float32(100)},
        {"noise_stddev": np.float32(0)},
        {"sensitivity": np.float32(1e6)},
        {"clients": np.int64(1)},
        {"noise_stddev": np.float32(np.nan)},
        {"dimension": np.int64(0)},
    ],
    ids=str,
)
def test_less_noise_in_the_state_is_more_epsilon_or_refused(noisy, changes):
    process, (right, _), _ = noisy
    assert right.state.noise_stddev > 110
    try:
        mutated = ledger_of(process, right.state, **changes)
    except FedcoreError:
        return
    assert mutated.epsilon() > 1.01 * ledger_of(process, right.state).epsilon()


def test_coarse_noise_is_not_the_gaussians(noisy):
    process, (right, _), _ = noisy
    coarse = {"noise_stddev": np.float32(0.3), "sensitivity": np.float32(0.3 * CLIENTS**0.5)}
    epsilon = ledger_of(process, right.state, **coarse).epsilon()
    gaussian = RdpAccountant().compose(dp.GaussianDpEvent(1.0)).get_epsilon(DELTA)
    assert epsilon > 3 * gaussian


def test_sampling_amplifies_nothing_and_the_tighter_accountant_is_refused(noisy):
    process, (right, _), _ = noisy
    often = fc.simulation.build_poisson_sampling_fn(range(100), 0.08, seed=1)
    assert ledger_of(process, right.state, often).epsilon() == ledger_of(process, right.state).epsilon()
    with pytest.raises(FedcoreError, match="'pld' does not cover discrete noise"):
        ledger_of(process, right.state).epsilon(accountant="pld")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: f(1.0, 10, 1.0, bits=25), "bits is at most 24"),
        (lambda f: f(1.0, 1000, 1.0, bits=7), "7 bits are too few for the rounding errors of 1000 clients"),
        (lambda f: f(-1.0, 10, 1.0), "noise_multiplier is a finite number, 0 or more"),
        (lambda f: f(1.0, 10, 0.0), "clip is a finite number above 0"),
        (lambda f: f(1.0, 10, 1.0).create(fc.to_type("int32")), "inexact values"),
        (lambda f: f(1.0, 10, 1.0).create(fc.to_type("complex64")), "real values"),
        (lambda f: agg.MeanFactory(f(1.0, 10, 1.0)), "takes no DistributedDiscreteGaussianFactory"),
    ],
)
def test_what_is_not_private_is_refused(make, says):
    with pytest.raises(FedcoreError, match=says):
        make(agg.DistributedDiscreteGaussianFactory)


def test_more_bits_cost_less_privacy():
    loss = []
    for bits in (12, 16, 24):
        step = agg.DistributedDiscreteGaussianFactory(3.0, CLIENTS, 0.5, bits).step(1024)
        loss.append(rounded_norm(0.5 / step, 1024) * step / 0.5)
    assert loss[0] > loss[1] > loss[2] > 1
    assert math.isclose(loss[2], 1, rel_tol=1e-4)

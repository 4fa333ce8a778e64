"""Epsilon of hierarchical histograms by dp-accounting."""

import math

import dp_accounting
import dp_accounting.pld
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import InvalidValue

CENTRAL = {"num_bins": 4, "dp_mechanism": "central-gaussian", "noise_multiplier": 2.0}
DISTRIBUTED = {"num_bins": 4, "dp_mechanism": "distributed-discrete-gaussian", "noise_multiplier": 2.0}


def test_the_epsilon_is_that_of_gaussian_noise_for_each_round():
    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 3))
    found = fc.privacy.histogram_epsilon(1e-5, rounds=3, accountant="pld", **CENTRAL)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


def test_it_is_the_epsilon_of_a_ledger_that_followed_the_rounds():
    process = fc.analytics.hierarchical_histogram.create_hierarchical_histogram_aggregation_factory(
        **DISTRIBUTED, clients_per_round=3
    ).create(fc.TensorType("int32", [4]))
    ids = [f"client_{i}" for i in range(3)]
    sampler = fc.simulation.build_uniform_sampling_fn(ids, seed=0)
    ledger = fc.privacy.Ledger(process, sampler, delta=1e-5)
    state = process.next(process.initialize(), [np.ones(4, np.int32)] * 3).state
    ledger.record(state, sampler(0, 3))
    assert fc.privacy.histogram_epsilon(1e-5, **DISTRIBUTED, clients_per_round=3) == pytest.approx(ledger.epsilon())


def test_discrete_noise_costs_more_than_that_of_the_server():
    central, distributed = (
        fc.privacy.histogram_epsilon(1e-5, **options) for options in (CENTRAL, {**DISTRIBUTED, "clients_per_round": 9})
    )
    assert 0 < central < distributed < 1.5 * central


def test_without_noise_epsilon_is_infinite():
    assert fc.privacy.histogram_epsilon(1e-5, num_bins=4) == math.inf
    assert fc.privacy.histogram_epsilon(1e-5, rounds=0, num_bins=4) == 0
    assert fc.privacy.histogram_epsilon(1e-5, **{**CENTRAL, "noise_multiplier": 0.0}) == math.inf


def test_options_that_do_not_fit_are_named():
    with pytest.raises(InvalidValue, match="needs enable_secure_sum=True and clients_per_round"):
        fc.privacy.histogram_epsilon(1e-5, **DISTRIBUTED)
    with pytest.raises(InvalidValue, match="delta"):
        fc.privacy.histogram_epsilon(2.0, **CENTRAL)

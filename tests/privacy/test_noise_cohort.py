"""Noise for a larger cohort than the one that is simulated, and its epsilon."""

import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue

DP = fc.aggregators.DifferentiallyPrivateFactory
VECTOR = fc.to_type(("float32", [1000]))
IDS = [f"client {i}" for i in range(40)]
SAMPLER = fc.simulation.build_poisson_sampling_fn(IDS, 0.25, seed=1)
PoissonParticipation = fc.simulation.participation.PoissonParticipation
MEANT = PoissonParticipation(population=100_000, rate=0.005)
FACTORIES = {
    "fixed": lambda n, **o: DP.gaussian_fixed(2.0, n, 1.0, **o),
    "adaptive": lambda n, **o: DP.gaussian_adaptive(2.0, n, 1.0, **o),
    "tree": lambda n, **o: DP.tree_aggregation(2.0, n, 1.0, 4, **o),
    "adaptive tree": lambda n, **o: DP.tree_adaptive(2.0, n, initial_l2_norm_clip=1.0, restart_frequency=4, **o),
    "banded": lambda n, **o: DP.banded_matrix_factorization(2.0, n, 1.0, rounds=8, bands=2, **o),
}


def run(factory, values, seed=0):
    process = factory.create(VECTOR)
    return process.next.invoke(process.initialize(), values, seed=seed)


@pytest.fixture(scope="module")
def simulated():
    return DP.gaussian_fixed(2.0, 10, 1.0, noise_cohort_size=500)


@pytest.mark.parametrize("name", FACTORIES)
def test_the_noise_of_the_mean_is_that_of_the_larger_cohort(name):
    zeros = [np.zeros(1000, np.float32)] * 10
    small = run(FACTORIES[name](10, noise_cohort_size=500), zeros)
    large = run(FACTORIES[name](500), zeros)
    np.testing.assert_array_equal(small.result, large.result)  # of zeros only the noise is left
    assert small.measurements["noise_stddev"] == large.measurements["noise_stddev"]


def test_the_mean_without_noise_is_that_of_the_simulated_clients():
    values = [np.full(1000, 0.001 * i, np.float32) for i in range(10)]
    output = run(DP.gaussian_fixed(0.0, 10, 1.0, noise_cohort_size=500), values)
    np.testing.assert_allclose(output.result, np.mean(values, 0), rtol=1e-6)


def test_the_fraction_below_the_clip_is_that_of_the_simulated_clients():
    values = [np.full(1000, x, np.float32) for x in (0.001, 0.001, 0.001, 1.0)]
    output = run(DP.gaussian_adaptive(0.0, 4, 1.0, noise_cohort_size=400), values)
    np.testing.assert_allclose(output.measurements["unclipped_fraction"], 0.75)


def test_the_noise_of_the_count_is_that_of_the_larger_cohort():
    process = DP.gaussian_adaptive(1.0, 10, noise_cohort_size=500).create(VECTOR)
    assert process.initialize()["private"].count_stddev == 25


def recorded(factory, sampler, cohort, rounds=3):
    process = factory.create(fc.to_type("float32"))
    ledger, state = fc.privacy.Ledger(process, sampler, delta=1e-6), process.initialize()
    for number in range(rounds):
        state = process.next(state, [np.float32(1)] * 10).state
        record = ledger.record(state, cohort(number))
    return ledger, record


def test_the_ledger_reports_the_epsilon_of_the_rounds_that_are_meant(simulated):
    ledger, record = recorded(simulated, MEANT, SAMPLER)
    _, large = recorded(DP.gaussian_fixed(2.0, 500, 1.0), MEANT, lambda number: 500)
    assert record == large
    assert [r["cohort"] for r in ledger.get_state()["rounds"]] == [500] * 3


def test_without_replacement_the_rounds_have_as_many_clients_as_are_meant(simulated):
    meant = fc.simulation.participation.FixedSizeParticipation(100_000, replace=False)
    _, record = recorded(simulated, meant, SAMPLER)
    _, large = recorded(DP.gaussian_fixed(2.0, 500, 1.0), meant, lambda number: 500)
    assert record["epsilon"] == large["epsilon"]


def test_calibration_finds_the_noise_of_the_rounds_that_are_meant():
    noise = fc.privacy.calibrate(2.0, 1e-6, 3, MEANT)
    _, record = recorded(DP.gaussian_fixed(noise, 10, 1.0, noise_cohort_size=500), MEANT, SAMPLER)
    assert 1.99 < record["epsilon"] <= 2


@pytest.mark.parametrize(
    ("sampler", "says"),
    [
        (SAMPLER, r"rounds of 500 clients \(noise_cohort_size\), but the ledger's sampler draws 10 of 40; give Ledger"),
        (PoissonParticipation(100_000, 0.006), "draws 600 of 100000"),
        (
            fc.simulation.build_uniform_sampling_fn(IDS, seed=1),
            "draws at most 40 of 40; .* a FixedSizePart",
        ),
        (fc.simulation.participation.PassParticipation(4000, 100), "draws at most 40 of 4000"),
    ],
)
def test_a_sampling_that_does_not_draw_so_many_is_refused(simulated, sampler, says):
    process = simulated.create(fc.to_type("float32"))
    state = process.next(process.initialize(), [np.float32(1)] * 10).state
    ledger = fc.privacy.Ledger(process, sampler, delta=1e-6)
    with pytest.raises(InvalidValue, match=says):
        ledger.record(state, SAMPLER(0))


def test_a_smaller_cohort_than_the_simulated_one_is_refused():
    with pytest.raises(FedcoreError, match=r"noise_cohort_size is a finite number, 10.0 or more, not 9"):
        DP.gaussian_fixed(1.0, 10, 1.0, noise_cohort_size=9)


def test_the_aggregator_of_a_model_takes_it():
    process = fc.learning.dp_aggregator(0.5, 20, noise_cohort_size=1000).create(VECTOR)
    private = process.initialize()["private"]
    assert (private.clients_per_round, private.simulated_clients) == (1000, 20)

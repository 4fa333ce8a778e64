"""Accounting: dp-accounting's own figures, the tutorial's, and sensitivities by brute force."""

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import fedcore as fc
from fedcore.aggregators.private_noise.banded import optimal_coefficients
from fedcore.errors import FedcoreError
from fedcore.privacy.events import Round, _renyi, account, epsilon_of, poisson_sampled, squared_sensitivity
from fedcore.privacy.mechanism import Mechanism
from fedcore.simulation.participation import (
    FixedSizeParticipation,
    PassParticipation,
    PoissonParticipation,
    every_round,
)

DP = fc.aggregators.DifferentiallyPrivateFactory
SPECIAL, REPLACE, ADD = (
    dp.NeighboringRelation.REPLACE_SPECIAL,
    dp.NeighboringRelation.REPLACE_ONE,
    dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
)


def epsilon(mechanism, rounds, participation, delta, cohort=10, accountant="rdp"):
    return epsilon_of(account([Round(mechanism, cohort)] * rounds, participation), delta, accountant)


def poisson(z, rate, rounds, delta):
    """Ours, and dp-accounting's by its own events."""
    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z))
    theirs = RdpAccountant(neighboring_relation=ADD).compose(event, rounds).get_epsilon(delta)
    return epsilon(Mechanism(z), rounds, PoissonParticipation(1000, rate), delta), theirs


def fixed(z, population, cohort, rounds, delta):
    event = dp.SampledWithoutReplacementDpEvent(population, cohort, dp.GaussianDpEvent(z / 2))
    theirs = RdpAccountant(neighboring_relation=REPLACE).compose(event, rounds).get_epsilon(delta)
    return epsilon(Mechanism(z), rounds, FixedSizeParticipation(population, False), delta, cohort), theirs


def passes(z, rounds, of_pass, delta):
    theirs = RdpAccountant(neighboring_relation=SPECIAL).compose(dp.GaussianDpEvent(z), math.ceil(rounds / of_pass))
    return epsilon(Mechanism(z), rounds, PassParticipation(1000, of_pass), delta), theirs.get_epsilon(delta)


def tree(z, rounds, restart, delta):
    """Trees in each of which a client takes part once."""
    theirs = RdpAccountant(neighboring_relation=SPECIAL)
    for first in range(0, rounds, restart):
        theirs.compose(dp.SingleEpochTreeAggregationDpEvent(z, min(restart, rounds - first)))
    ours = epsilon(Mechanism(z, restart_every=restart), rounds, PassParticipation(1000, restart), delta)
    return ours, theirs.get_epsilon(delta)


SETTINGS = [
    *((poisson, z, rate, rounds, delta) for z, rate, rounds, delta in [
        (1.2, 120 / 3383, 100, 1e-5), (0.5, 0.01, 50, 1e-6), (5.0, 0.3, 200, 1e-4), (1.0, 1.0, 3, 1e-5),
        (0.8, 0.001, 2000, 1e-9), (2.0, 0.05, 1, 1e-5),
    ]),
    *((fixed, z, population, cohort, rounds, delta) for z, population, cohort, rounds, delta in [
        (4.0, 1000, 10, 100, 1e-5), (2.0, 5000, 5, 300, 1e-6), (8.0, 100, 50, 20, 1e-4), (6.0, 50, 50, 2, 1e-3),
    ]),
    *((passes, z, rounds, of_pass, delta) for z, rounds, of_pass, delta in [
        (3.0, 100, 10, 1e-5), (1.0, 7, 7, 1e-5), (2.0, 8, 7, 1e-6), (9.0, 50, 1, 1e-4), (0.7, 1, 30, 1e-5),
    ]),
    *((tree, z, rounds, restart, delta) for z, rounds, restart, delta in [
        (4.0, 32, 32, 1e-5), (4.0, 33, 32, 1e-5), (2.0, 7, 7, 1e-6), (6.0, 100, 10, 1e-4), (5.0, 64, 100, 1e-5),
    ]),
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s[0].__name__}-{'-'.join(f'{x:g}' for x in s[1:])}")
def test_epsilon_is_that_of_dp_accounting(setting):
    compare, *numbers = setting
    ours, theirs = compare(*numbers)
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_there_are_twenty_settings():
    assert len(SETTINGS) == 20


def test_the_tutorials_figures():
    # TensorFlow Federated, "Differential privacy in TFF": 3383 clients, 100 rounds, noise 0.01 per client, epsilon 2 at
    # 1e-5 takes 120 clients a round and the noise multiplier 1.2.
    def of(clients):
        return epsilon(Mechanism(0.01 * clients), 100, PoissonParticipation(3383, clients / 3383), 1e-5)

    assert of(120) <= 2 < of(119)
    found = fc.privacy.calibrate(2.0, 1e-5, 100, PoissonParticipation(3383, 120 / 3383))
    assert found == pytest.approx(1.2, rel=0.01)


@pytest.mark.parametrize(
    "factory",
    [
        lambda z: DP.gaussian_fixed(z, 20, 1.0),
        lambda z: DP.gaussian_adaptive(z, 500),
        lambda z: DP.tree_aggregation(z, 20, 1.0, 16),
        lambda z: DP.tree_adaptive(z, 500, restart_frequency=16),
        lambda z: DP.banded_matrix_factorization(z, 20, 1.0, 40, 8),
    ],
    ids=["fixed", "adaptive", "tree", "adaptive tree", "banded"],
)
def test_calibrated_noise_gives_the_epsilon(factory):
    sampler = fc.simulation.build_min_separation_sampling_fn(range(100), 8)
    z = fc.privacy.calibrate(3.0, 1e-3, 40, sampler, clients_per_round=5, factory=factory)
    noise = factory(z).noise
    known = {
        "restart_every": getattr(noise, "restart_every", None),
        "coefficients": getattr(noise, "coefficients", None),
    }
    found = epsilon(Mechanism(z, **known), 40, sampler.participation, 1e-3)
    assert 2.99 < found <= 3.0


def test_banded_noise_needs_least_and_a_tree_more_for_equal_privacy_of_a_pass():
    sampler = fc.simulation.build_min_separation_sampling_fn(range(100), 8)

    def z(factory):
        return fc.privacy.calibrate(3.0, 1e-3, 8, sampler, factory=factory)

    banded = z(lambda z: DP.banded_matrix_factorization(z, 1, 1.0, 8, 8))
    assert banded == pytest.approx(z(lambda z: DP.gaussian_fixed(z, 1, 1.0)), rel=1e-3)
    assert z(lambda z: DP.tree_aggregation(z, 1, 1.0, 8)) == pytest.approx(2 * banded, rel=1e-3)  # 4 levels


def schedules(participation, rounds):
    """All sets of rounds in which a client can take part."""
    for chosen in itertools.product([0, 1], repeat=rounds):
        at = np.flatnonzero(chosen)
        apart = all(b - a >= participation.separation for a, b in itertools.pairwise(at))
        if apart and len(set(at // participation.rounds)) == len(at):
            yield at


def tree_matrix(rounds, restart):
    rows = [
        [float(a <= t < b) for t in range(rounds)]
        for first in range(0, rounds, restart)
        for level in range(restart.bit_length())
        for a in range(first, min(first + restart, rounds), 1 << level)
        if (b := a + (1 << level)) <= min(first + restart, rounds)
    ]
    return np.array(rows)


def banded_matrix(rounds, coefficients):
    return sum(np.diag(np.full(rounds - k, c), -k) for k, c in enumerate(coefficients) if k < rounds)


@pytest.mark.parametrize(
    "participation",
    [PassParticipation(9, 4, 4), PassParticipation(9, 4, 1), PassParticipation(9, 3, 2), every_round(9)],
    ids=["every 4th", "once in 4", "once in 3, 2 apart", "always"],
)
@pytest.mark.parametrize("rounds", [1, 6, 10])
def test_no_schedule_moves_more_than_the_sensitivity(participation, rounds):
    c = optimal_coefficients(12, 4)
    for mechanism, matrix in (
        (Mechanism(1.0, coefficients=c), banded_matrix(rounds, c)),
        (Mechanism(1.0, restart_every=6), tree_matrix(rounds, 6)),
    ):
        bound = squared_sensitivity(mechanism, participation, rounds)
        worst = max(np.sum(matrix[:, at].sum(1) ** 2) for at in schedules(participation, rounds))
        assert worst <= bound + 1e-9
        assert bound <= 2.2 * worst


def test_participation_at_the_bands_distance_adds_no_more_than_its_number():
    c = optimal_coefficients(12, 4)
    assert squared_sensitivity(Mechanism(1.0, coefficients=c), PassParticipation(9, 4, 4), 12) == pytest.approx(3)


@pytest.mark.parametrize("participation", [PassParticipation(9, 4, 1), PassParticipation(9, 5, 3), every_round(3)])
def test_the_most_participations_are_those_of_all_schedules(participation):
    for first, after in [(0, 1), (0, 8), (3, 9), (4, 5), (2, 2)]:
        found = max(sum(first <= t < after for t in at) for at in schedules(participation, 10))
        assert participation.most(first, after) == found


def test_sampling_amplifies_banded_noise_only_if_a_client_waits_for_all_bands():
    banded = Mechanism(1.0, coefficients=optimal_coefficients(40, 4))
    sampled, too_soon, sure = (
        epsilon(banded, 40, participation, 1e-4)
        for participation in (
            PoissonParticipation(1000, 0.1, 4),
            PoissonParticipation(1000, 0.1, 3),
            PassParticipation(1000, 4, 4),
        )
    )
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))
    assert sampled == pytest.approx(RdpAccountant(neighboring_relation=SPECIAL).compose(event, 10).get_epsilon(1e-4))
    assert sampled < sure < too_soon


def test_the_tighter_accountant_is_below_and_says_what_it_does_not_cover():
    rdp, pld = (
        epsilon(Mechanism(1.2), 20, PoissonParticipation(1000, 0.03), 1e-5, accountant=a) for a in ("rdp", "pld")
    )
    event = dp.PoissonSampledDpEvent(0.03, dp.GaussianDpEvent(1.2))
    assert pld == pytest.approx(PLDAccountant(neighboring_relation=ADD).compose(event, 20).get_epsilon(1e-5))
    assert pld < rdp
    with pytest.raises(FedcoreError, match="'pld' does not cover fixed-size sampling without replacement: use 'rdp'"):
        epsilon(Mechanism(1.2), 20, FixedSizeParticipation(1000, False), 1e-5, accountant="pld")


@pytest.mark.parametrize(
    "participation", [PoissonParticipation(9, 0.5), FixedSizeParticipation(9, False), every_round(9)]
)
@pytest.mark.parametrize("how", [{}, {"restart_every": 4}, {"coefficients": (1.0,)}])
def test_without_noise_nothing_is_private(participation, how):
    assert epsilon(Mechanism(0.0, **how), 3, participation, 1e-2) == math.inf


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fc.privacy.calibrate(0.0, 1e-5, 10, every_round(9)), "target_epsilon is a finite number above 0"),
        (lambda: fc.privacy.calibrate(1.0, 0.2, 10, every_round(9)), "delta is below 1/9"),
        (lambda: fc.privacy.calibrate(1.0, 1e-5, 0, every_round(9)), "rounds is a whole number, 1 or more"),
        (lambda: fc.privacy.calibrate(1.0, 1e-5, 9, FixedSizeParticipation(9, False)), "needs clients_per_round"),
        (lambda: fc.privacy.calibrate(1.0, 1e-5, 9, len), "the sampler does not say how it draws"),
        (lambda: fc.privacy.calibrate(1.0, 1e-5, 9, every_round(9), factory=lambda z: z), "factory makes a Differenti"),
        (lambda: fc.privacy.calibrate(1e-9, 1e-9, 1000, every_round(9)), "no noise multiplier up to 10"),
    ],
)
def test_what_cannot_be_calibrated_says_why(call, says):
    with pytest.raises(FedcoreError, match=says):
        call()


@pytest.mark.parametrize(
    "participation",
    [PassParticipation(9, 4, 4), PassParticipation(9, 4, 1), PassParticipation(9, 3, 2), every_round(9)],
    ids=["every 4th", "once in 4", "once in 3, 2 apart", "always"],
)
@pytest.mark.parametrize("first_round", [1, 2, 3, 5])
def test_no_schedule_that_begins_inside_a_pass_moves_more_than_the_sensitivity(participation, first_round):
    c, rounds = optimal_coefficients(12, 4), 6
    for mechanism, matrix in (
        (Mechanism(1.0, coefficients=c), banded_matrix(rounds, c)),
        (Mechanism(1.0, restart_every=6), tree_matrix(rounds, 6)),
    ):
        bound = squared_sensitivity(mechanism, participation, rounds, first_round)
        late = [at[at >= first_round] - first_round for at in schedules(participation, first_round + rounds)]
        worst = max(np.sum(matrix[:, at].sum(1) ** 2) for at in late)
        assert worst <= bound + 1e-9
        assert bound <= 2.2 * worst


@pytest.mark.parametrize("first_round", range(5))
@pytest.mark.parametrize("participation", [PassParticipation(9, 3, 1), PassParticipation(9, 3, 3), every_round(9)])
def test_independent_noise_counts_the_participations_of_the_worst_schedule(participation, first_round):
    rounds = 5
    event = account([Round(Mechanism(2.0), 3)] * rounds, participation, first_round).parts[0][0]
    late = [np.sum(at >= first_round) for at in schedules(participation, first_round + rounds)]
    assert event.noise_multiplier == pytest.approx(2.0 / math.sqrt(max(late)))


def test_several_results_of_a_round_are_one_of_less_noise():
    parts = account([Round(Mechanism(2.0), 3, releases=4)], PoissonParticipation(100, 0.1)).parts
    assert parts == ((dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)), 1),)


def test_several_results_of_correlated_noise_are_refused():
    with pytest.raises(FedcoreError, match="round 1 of correlated noise has 2 results"):
        account([Round(Mechanism(2.0, restart_every=4), 3, releases=2)], every_round(9))


def test_calibration_inside_a_pass_counts_both_passes():
    thirds = PassParticipation(1000, 3, 1)
    begun = fc.privacy.calibrate(2.0, 1e-4, 2, thirds, first_round=2)
    assert begun == pytest.approx(math.sqrt(2) * fc.privacy.calibrate(2.0, 1e-4, 2, thirds), rel=1e-3)


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.1, 0.3, 0.5, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("noise", [0.05, 0.4, 1.0, 3.0, 30.0])
def test_orders_that_dp_accounting_leaves_out_are_not_asked_for(rate, noise, caplog):
    event = poisson_sampled(noise, rate)
    found = _renyi.__wrapped__(event, "ADD_OR_REMOVE_ONE")
    assert caplog.records == []
    expected = RdpAccountant().compose(event).rdp
    np.testing.assert_array_equal(found, expected)

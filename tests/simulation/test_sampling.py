import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.simulation import (
    build_min_separation_sampling_fn,
    build_poisson_sampling_fn,
    build_random_permutation_sampling_fn,
    build_uniform_sampling_fn,
    sampling,
)
from fedcore.simulation.participation import PassParticipation, PoissonParticipation

IDS = [f"client_{i}" for i in range(30)]


@given(seed=st.integers(0, 2**40), round_num=st.integers(0, 10**6), size=st.integers(0, 30))
def test_a_round_is_drawn_alike_by_any_function_of_the_same_seed(seed, round_num, size):
    one, other = (build_uniform_sampling_fn(IDS, seed=seed) for _ in range(2))
    other(round_num + 1, 3)  # what was drawn before makes no difference
    assert one(round_num, size) == other(round_num, size)


@given(round_num=st.integers(0, 1000), size=st.integers(0, 30))
def test_without_replacement_no_client_comes_twice(round_num, size):
    drawn = build_uniform_sampling_fn(IDS, seed=1)(round_num, size)
    assert len(set(drawn)) == len(drawn) == size
    assert set(drawn) <= set(IDS)


def test_with_replacement_more_than_all_can_be_drawn():
    assert len(build_uniform_sampling_fn(IDS, replace=True, seed=1)(0, 100)) == 100


def test_without_replacement_more_than_all_is_an_error():
    with pytest.raises(ValueError, match="cannot draw 31 of 30 clients"):
        build_uniform_sampling_fn(IDS)(0, 31)


def test_rounds_differ():
    sample = build_uniform_sampling_fn(IDS, seed=1)
    assert sample(0, 10) != sample(1, 10)


def test_seeds_differ():
    assert build_uniform_sampling_fn(IDS, seed=1)(0, 10) != build_uniform_sampling_fn(IDS, seed=2)(0, 10)


def test_without_a_seed_one_function_still_repeats_its_rounds():
    sample = build_uniform_sampling_fn(IDS)
    assert sample(5, 10) == sample(5, 10)


def test_the_seed_has_two_names_and_one_value():
    one = build_uniform_sampling_fn(sample_range=IDS, replace=False, random_seed=1)
    assert one(3, 5) == build_uniform_sampling_fn(IDS, seed=1)(3, 5)
    with pytest.raises(ValueError, match="random_seed and seed are one argument"):
        build_uniform_sampling_fn(IDS, random_seed=1, seed=1)


def test_ids_come_back_as_they_were_given():
    assert type(build_uniform_sampling_fn(["a"])(0, 1)[0]) is str


def test_the_examples_of_the_docs_run():
    assert doctest.testmod(sampling).failed == 0


@given(seed=st.integers(0, 2**40), rate=st.floats(0.01, 1))
def test_poisson_samples_are_drawn_client_by_client(seed, rate):
    sample = build_poisson_sampling_fn(IDS, rate, seed=seed)
    assert sample(3) == sample(3) == sample(3, round(30 * rate))
    assert len(set(sample(3))) == len(sample(3))
    assert sample.participation == PoissonParticipation(30, rate)


def test_poisson_samples_have_the_rate_in_number_and_in_pairs():
    sample = build_poisson_sampling_fn(range(50), 0.2, seed=1)
    drawn = np.array([np.isin(np.arange(50), sample(r)) for r in range(4000)])
    assert abs(drawn.mean() - 0.2) < 5 * (0.16 / drawn.size) ** 0.5
    pairs = np.cov(drawn.T)[np.triu_indices(50, 1)]
    assert np.abs(pairs).max() < 6 * 0.16 / 4000**0.5  # independent, also of the other rounds
    assert abs(np.corrcoef(drawn.sum(1)[1:], drawn.sum(1)[:-1])[0, 1]) < 0.08


@pytest.mark.parametrize("rate", [None, 0.5])
def test_a_client_rests_for_the_separation(rate):
    sample = build_min_separation_sampling_fn(IDS, 4, rate, seed=2)
    last: dict = {}
    for r in range(60):
        for client in sample(r, 3 if rate is None else None):
            assert r - last.get(client, r - 4) >= 4
            last[client] = r
    assert set(last) == set(IDS)
    kind = PassParticipation(30, 4, 4) if rate is None else PoissonParticipation(30, 0.5, 4)
    assert sample.participation == kind


def test_the_groups_are_not_those_of_the_first_round():
    by_group, uniform = build_min_separation_sampling_fn(IDS, 1, seed=5), build_uniform_sampling_fn(IDS, seed=5)
    assert by_group(0, 30) != uniform(0, 30)


@pytest.mark.parametrize("reshuffle", [True, False])
def test_a_pass_has_each_client_once(reshuffle):
    sample = build_random_permutation_sampling_fn(IDS, 7, reshuffle, seed=3)
    passes = [[client for r in range(4 * p, 4 * p + 4) for client in sample(r)] for p in range(3)]
    assert all(len(set(clients)) == 28 for clients in passes)
    assert (passes[0] == passes[1]) is not reshuffle
    assert sample.participation == PassParticipation(30, 4, 1 if reshuffle else 4)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: build_poisson_sampling_fn(IDS, 0.0), "rate is a finite number above 0"),
        (lambda: build_poisson_sampling_fn(IDS, 1.5), "rate is a probability, at most 1"),
        (lambda: build_poisson_sampling_fn(IDS, 0.5)(0, 3), "draws 15 clients a round, not 3, and needs no size"),
        (lambda: build_uniform_sampling_fn(IDS)(0), "needs the number of clients"),
        (lambda: build_min_separation_sampling_fn(IDS, 31), "cannot divide 30 clients into 31 groups"),
        (lambda: build_min_separation_sampling_fn(IDS, 4)(0, 9), "cannot draw 9 of the 8 clients of a group"),
        (lambda: build_random_permutation_sampling_fn(IDS, 31), "cannot draw 31 of 30 clients"),
        (lambda: build_random_permutation_sampling_fn(IDS, 5)(0, 9), "draws 5 clients a round, not 9"),
    ],
)
def test_what_a_sampler_cannot_draw_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()

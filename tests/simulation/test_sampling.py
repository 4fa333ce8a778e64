import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.simulation import build_uniform_sampling_fn, sampling

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

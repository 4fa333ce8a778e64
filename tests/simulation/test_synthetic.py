"""synthetic(α, β) has the distributions of Li et al. 2020, section 5.1."""

import doctest

import numpy as np
import pytest

from fedcore.errors import FedcoreError
from fedcore.simulation.datasets import synthetic


def clients(data):
    features, labels = data._columns["features"], data._columns["label"]
    return [(features[start:stop], labels[start:stop]) for start, stop in data._ranges.values()]


def test_inputs_vary_as_the_paper_says():
    train, _ = synthetic.load_data(1.0, 4.0, num_clients=400, max_examples=100)
    means = np.array([features.mean(0) for features, _ in clients(train)])
    deviations = np.mean([features.std(0) for features, _ in clients(train)], 0)
    np.testing.assert_allclose(deviations, np.arange(1, 61) ** -0.6, rtol=0.05)
    assert means.mean(1).var() == pytest.approx(4.0, rel=0.15)  # B_k
    assert (means - means.mean(1, keepdims=True)).var() == pytest.approx(1.0, rel=0.05)  # v_k around B_k


def test_beta_moves_the_inputs_and_alpha_no_label():
    """One number for all classes of a client, as in the paper, moves no argmax."""
    alike, apart = (synthetic.load_data(alpha, 0.0, num_clients=5, seed=3)[0] for alpha in (0.0, 9.0))
    for (features, labels), (others, other_labels) in zip(clients(alike), clients(apart), strict=True):
        np.testing.assert_array_equal(features, others)
        np.testing.assert_array_equal(labels, other_labels)
    assert not np.array_equal(clients(alike)[0][0], clients(synthetic.load_data(0.0, 1.0, 5, seed=3)[0])[0][0])


def test_sizes_are_those_of_the_authors_code_and_can_be_bounded():
    train, test = synthetic.load_data(num_clients=200)
    sizes = np.array([len(a[1]) + len(b[1]) for a, b in zip(clients(train), clients(test), strict=True)])
    assert sizes.min() >= 50
    assert np.median(np.log(sizes - 49)) == pytest.approx(4.0, abs=0.4)
    train, test = synthetic.load_data(num_clients=9, max_examples=30, test_fraction=0.25)
    assert {(len(a[1]), len(b[1])) for a, b in zip(clients(train), clients(test), strict=True)} == {(22, 8)}


def test_one_seed_gives_one_data_set():
    first, again, other = (synthetic.load_data(num_clients=3, seed=seed)[0]._columns["label"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[:50], other[:50])


def test_the_synthetic_data_of_tests_have_the_type():
    wants = synthetic.load_data(num_clients=1)[0].element_type_structure
    assert synthetic.get_synthetic().element_type_structure == wants
    assert (wants["features"].shape, wants["label"].dtype.name) == ([60], "int32")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"alpha": -1}, "alpha"),
        ({"test_fraction": 1.0}, "test_fraction is below 1, not 1"),
        ({"max_examples": 1}, "max_examples"),
        ({"num_clients": 0}, "num_clients"),
    ],
)
def test_numbers_outside_their_range_are_named(options, says):
    with pytest.raises(FedcoreError, match=says):
        synthetic.load_data(**options)


def test_the_examples_of_the_docs_run():
    assert doctest.testmod(synthetic).failed == 0

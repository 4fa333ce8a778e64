import doctest
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.simulation import partition

PARTITIONERS = {
    "iid": partition.iid,
    "dirichlet, one label each": lambda labels, n, seed: partition.dirichlet(labels, n, 1e-4, seed),
    "dirichlet, mixed": lambda labels, n, seed: partition.dirichlet(labels, n, 1.0, seed),
    "shards": lambda labels, n, seed: partition.shards(labels, n, 1, seed),
    "quantity skew, extreme": lambda labels, n, seed: partition.quantity_skew(labels, n, 1e-3, seed),
    "quantity skew, mild": lambda labels, n, seed: partition.quantity_skew(labels, n, 1.0, seed),
    "power law": lambda labels, n, seed: partition.power_law(labels, n, 1.5, seed),
}
each_partitioner = pytest.mark.parametrize("split", PARTITIONERS.values(), ids=PARTITIONERS.keys())


@st.composite
def splits_to_make(draw):
    labels = draw(st.lists(st.integers(-3, 5), min_size=1, max_size=80))
    return np.array(labels), draw(st.integers(1, len(labels))), draw(st.integers(0, 2**32))


@each_partitioner
@given(splits_to_make())
def test_each_example_goes_to_exactly_one_client(split, case):
    labels, num_clients, seed = case
    everything = np.concatenate(split(labels, num_clients, seed))
    np.testing.assert_array_equal(np.sort(everything), np.arange(len(labels)))


@each_partitioner
@given(splits_to_make())
def test_each_client_gets_at_least_one_example_in_ascending_order(split, case):
    labels, num_clients, seed = case
    parts = split(labels, num_clients, seed)
    assert len(parts) == num_clients
    assert all(len(part) >= 1 and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


@each_partitioner
@given(splits_to_make())
def test_equal_arguments_give_equal_splits(split, case):
    for one, other in zip(split(*case), split(*case), strict=True):
        np.testing.assert_array_equal(one, other)


@each_partitioner
def test_another_seed_gives_another_split(split):
    labels = np.repeat(np.arange(10), 30)
    pairs = zip(split(labels, 20, 0), split(labels, 20, 1), strict=True)
    assert any(not np.array_equal(one, other) for one, other in pairs)


@each_partitioner
def test_more_clients_than_examples_is_an_error(split):
    with pytest.raises(ValueError, match=r"of 3 examples|cut 3 examples"):
        split(np.zeros(3), 4, 0)


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("split", [partition.dirichlet, partition.quantity_skew])
def test_alpha_must_be_above_zero(split, alpha):
    with pytest.raises(ValueError, match=f"alpha is a finite number above 0, not {alpha}"):
        split(np.zeros(9), 3, alpha)


def test_labels_must_be_a_vector():
    with pytest.raises(ValueError, match=r"shape \[n\], not \[4, 2\]"):
        partition.iid(np.zeros((4, 2)), 2)


@pytest.mark.parametrize("split", [partition.iid, lambda *args: partition.dirichlet(*args, alpha=0.3)])
def test_iid_and_dirichlet_give_even_sizes(split):
    assert sorted({len(part) for part in split(np.arange(103) % 7, 10)}) == [10, 11]


def test_a_large_alpha_gives_every_client_the_mix_of_the_whole():
    labels = np.repeat([0, 1], [3000, 1000])
    shares = [labels[part].mean() for part in partition.dirichlet(labels, 4, alpha=1e6)]
    np.testing.assert_allclose(shares, 0.25, atol=0.05)


def test_a_smaller_alpha_gives_fewer_labels_a_client():
    labels = np.repeat(np.arange(10), 200)

    def labels_per_client(alpha):
        return np.mean([len(np.unique(labels[p])) for p in partition.dirichlet(labels, 50, alpha)])

    assert labels_per_client(0.01) < labels_per_client(0.3) < labels_per_client(100)


def test_quantity_skew_makes_sizes_uneven():
    sizes = [len(part) for part in partition.quantity_skew(np.zeros(1000), 10, alpha=0.1)]
    assert max(sizes) > 4 * np.median(sizes)


def test_sizes_follow_a_power_law():
    sizes = sorted((len(part) for part in partition.power_law(np.zeros(100_000), 50, exponent=1.2)), reverse=True)
    slope = np.polyfit(np.log(np.arange(1, 51)), np.log(sizes), 1)[0]
    assert slope == pytest.approx(-1.2, abs=0.01)


def test_an_exponent_must_be_above_zero():
    with pytest.raises(ValueError, match="exponent is a finite number above 0, not 0"):
        partition.power_law(np.zeros(9), 3, 0)


def test_the_examples_of_the_docs_run():
    assert doctest.testmod(partition).failed == 0


# --- the plot ---


@pytest.mark.parametrize(("classes", "clients"), [(3, 4), (15, 30), (62, 300)])
def test_the_plot_shows_each_clients_examples_by_label(classes, clients, tmp_path):
    labels = np.arange(3000) % classes
    parts = partition.quantity_skew(labels, clients, alpha=1.0)
    axes = partition.plot(labels, parts, title="skewed")
    axes.figure.savefig(tmp_path / "parts.png")
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == ("client", "examples", "skewed")
    tallest = max(len(part) for part in parts)
    assert tallest <= axes.get_ylim()[1] <= 1.1 * tallest
    if clients <= 30:
        heights = np.reshape([bar.get_height() for bar in axes.patches], (classes, clients))
        np.testing.assert_array_equal(heights.sum(axis=0), [len(part) for part in parts])
        assert heights[1, 2] == (labels[parts[2]] == 1).sum()
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [str(i) for i in range(classes)][::-1]


def test_the_legend_of_the_plot_has_labels_that_begin_with_an_underscore():
    axes = partition.plot(["_silence_", "$1", "yes"], [np.array([0, 1, 2])])
    texts = axes.get_legend().get_texts()
    assert [text.get_text() for text in texts] == ["yes", "_silence_", "$1"]
    assert not any(text.get_parse_math() for text in texts)


def test_the_plot_goes_on_the_axes_that_are_given():
    from matplotlib.figure import Figure

    axes, neighbour = Figure(figsize=(9, 3)).subplots(1, 2)
    assert partition.plot(["cat", "dog"], [np.array([0]), np.array([1])], axes=axes) is axes
    axes.figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x1 <= neighbour.get_tightbbox().x0


def test_the_plot_says_what_is_missing(monkeypatch):
    with pytest.raises(ValueError, match="there are no clients"):
        partition.plot([0], [])
    with pytest.raises(TypeError, match=r"parts holds for each client the indices of its examples, and begins with 1"):
        partition.plot([np.array([0]), np.array([1])], [1, 1])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'fedcore\[data\]'"):
        partition.plot([0], [np.array([0])])

"""The examples run and do what they say."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_custom_algorithm_finds_the_weights():
    weights, truth = load("custom_algorithm").main()
    np.testing.assert_allclose(weights, truth, atol=1e-3)


def test_custom_aggregator_learns():
    pytest.importorskip("sklearn")
    losses = load("custom_aggregator").main()
    assert losses[-1] < 0.7 * losses[0]


def test_federated_averaging_by_hand_learns_and_a_block_of_it_is_replaced():
    pytest.importorskip("sklearn")
    found = load("federated_averaging").main(rounds=8)
    assert found["mean"] > 0.85
    assert found["trimmed mean, one client broken"] > 0.85 > found["mean, one client broken"]


def test_bounds_that_tune_themselves_keep_a_broken_client_out():
    pytest.importorskip("sklearn")
    found = load("tuned_aggregators").main(rounds=10)
    assert found["robust mean"] > found["plain mean"] + 0.2


def test_a_median_trains_against_hostile_clients():
    losses = load("hostile_clients").main()
    assert losses["median"][-1] < 0.7 * losses["median"][0]
    assert losses["mean"][-1] > losses["mean"][0]


@pytest.mark.slow
def test_analytics_finds_what_the_clients_have():
    found, true, (low, high), distinct = load("analytics").main(count=40)
    assert found == {word: count for word, count in true.items() if count >= 5}
    assert 25 < low < high < 37
    assert abs(distinct - 46) <= 3


@pytest.mark.slow
def test_text_generation_learns_to_write_words():
    losses, written = load("text_generation").main(rounds=8, clients=8, per_round=4)
    assert losses[-1] < 0.5 * losses[0]
    assert "the " in written[4:]


@pytest.mark.slow
def test_private_learning_spends_the_epsilon_that_was_asked_for(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    curves = load("private_learning").main(tmp_path / "curves.png", rounds=6)
    assert list(curves) == ["DP-FedAvg", "DP-FTRL, tree", "DP-FTRL, bands"]
    assert all(7.9 < points[-1][0] <= 8 for points in curves.values())
    assert max(points[-1][1] for points in curves.values()) > 0.6
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.slow
def test_image_classification_learns():
    pytest.importorskip("sklearn")
    assert load("image_classification").main() > 0.85


@pytest.mark.slow
def test_fairness_finds_the_client_whose_labels_are_wrong():
    pytest.importorskip("sklearn")
    found, odd = load("fairness").main(rounds=20)
    assert list(found.worst("accuracy", 1)) == [odd]
    assert found.quantile("accuracy", 0.1) < found.quantile("accuracy", 0.5)


def test_compare_algorithms_draws_four_curves(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    curves = load("compare_algorithms").main(tmp_path / "curves.png", rounds=2)
    assert list(curves) == ["FedAvg", "FedProx", "FedAdam", "SCAFFOLD"]
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.slow
def test_compression_sends_less_and_draws_it(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    curves = load("compression").main(tmp_path / "curves.png", tmp_path / "logs", rounds=2)
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert len(list((tmp_path / "logs").rglob("events*"))) == 4
    sent = {name: found[-1][1:] for name, found in curves.items()}
    assert sent["8 bits"][1] < 0.4 * sent["plain"][1]
    assert sent["entropy-coded"][1] < 0.25 * sent["plain"][1]
    assert sent["top 5 %, feedback"][1] < 0.25 * sent["plain"][1]
    accuracy = {name: found[-1][0] for name, found in curves.items()}
    assert min(accuracy.values()) > accuracy["plain"] - 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras with numpy 2
def test_adapters_of_a_small_frozen_transformer_are_trained_and_saved(capsys):
    example = load("frozen_transformer")
    example.LENGTH, example.WIDTH, example.CLIENTS, example.PRETRAINING = 4, 8, 4, 100
    assert len(example.main(rounds=1)) == 2
    assert re.search(r"adapters: \d+ KiB; base: \d+ KiB", capsys.readouterr().out)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras with numpy 2
def test_adapters_of_a_frozen_transformer_learn_another_task():
    accuracies = load("frozen_transformer").main()
    assert accuracies[-1] > accuracies[0] + 0.3


@pytest.mark.soak
def test_time_to_accuracy_is_less_without_waiting(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    histories = load("time_to_accuracy").main(tmp_path / "curves.png", hours=0.5)
    synchronous, over_selected, buffered = (max(h["val_accuracy"]) for h in histories.values())
    assert synchronous < over_selected < buffered
    assert (tmp_path / "curves.png").stat().st_size > 10_000

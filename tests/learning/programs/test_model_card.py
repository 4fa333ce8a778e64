"""The Markdown page that is written beside a model."""

import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.learning import programs

RNG = np.random.default_rng(0)


def columns(count):
    return RNG.normal(size=(count, 2)).astype(np.float32), np.ones([count, 1], np.float32)


DATA = fc.simulation.datasets.TestClientData({f"client {n}": columns(n) for n in (4, 6, 2)}).preprocess(
    lambda dataset: dataset.batch(2)
)


def keras_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.layers[0].trainable = False
    return model


def build(**options):
    return fc.learning.algorithms.build_unweighted_fed_avg(
        lambda: fc.learning.from_keras_model(keras_model(), "mse", DATA.element_type_structure),
        lambda: keras.optimizers.SGD(0.1),
        **options,
    )


def train(tmp_path, process, *callbacks, **options):
    write = programs.ModelCheckpoint(tmp_path / "linear.keras", keras_model())
    programs.train(process, DATA, 2, progress=False, callbacks=[*callbacks, write], **options)
    return (tmp_path / "linear.md").read_text()


def test_a_card_has_data_rounds_metrics_sizes_and_versions(tmp_path):
    card = train(tmp_path, build(), clients_per_round=2, seed=0)
    for line in (
        "# linear",
        "| clients | 3 |",
        "| type of a client | `<float32[?,2],float32[?,1]>*` |",
        "| rounds | 2 of 2 |",
        "| clients a round | 2 |",
        "| weights | 13 (52 bytes) |",
        "| trained weights | 4 (16 bytes) |",
        "| epsilon | not measured: no fc.privacy.EpsilonCallback |",
        f"| keras | {keras.__version__} |",
    ):
        assert line in card.splitlines()
    assert "| loss |" in card


def test_a_card_has_the_epsilon_that_was_spent(tmp_path):
    pytest.importorskip("dp_accounting")
    factory = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 2, clip=1.0)
    process = build(model_aggregator=factory)
    sampler = fc.simulation.build_poisson_sampling_fn(DATA.client_ids, 0.5, seed=1)
    ledger = fc.privacy.EpsilonCallback(fc.privacy.Ledger(process, sampler, delta=1e-3))
    card = train(tmp_path, process, ledger, sampler=sampler)
    (line,) = (line for line in card.splitlines() if "epsilon" in line)
    assert float(line.split("|")[2]) > 0

"""A training whose rows have epsilon, also after it was resumed."""

import csv

import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.learning.programs import train

IDS = [f"client {i}" for i in range(12)]
SAMPLER = fc.simulation.build_poisson_sampling_fn(IDS, 0.5, seed=4)


@pytest.fixture(scope="module")
def data():
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    columns = {i: {"x": x, "y": x.sum(1, keepdims=True)} for i in IDS}
    return fc.simulation.datasets.TestClientData(columns).preprocess(
        lambda dataset: dataset.batch(2).map(lambda e: (e["x"], e["y"]))
    )


@pytest.fixture(scope="module")
def process(data):
    spec = data.create_tf_dataset_for_client(IDS[0]).element_spec

    def model_fn():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), spec)

    aggregator = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(2.0, 6, 1.0)
    return fc.learning.algorithms.build_unweighted_fed_avg(
        model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=aggregator
    )


def run(process, data, rounds, sampler=SAMPLER, **options):
    callback = fc.privacy.EpsilonCallback(fc.privacy.Ledger(process, SAMPLER, delta=1e-2))
    return train(process, data, rounds, sampler=sampler, callbacks=[callback], seed=1, progress=False, **options)


def test_epsilon_stands_in_every_row_and_file_and_goes_on_from_a_checkpoint(process, data, tmp_path):
    run(process, data, 2, directory=tmp_path)
    resumed = run(process, data, 3, directory=tmp_path)
    whole = run(process, data, 3)
    assert resumed["epsilon"] == whole["epsilon"]
    assert 0 < whole["epsilon"][0] < whole["epsilon"][1] < whole["epsilon"][2]
    assert [row["clients"] for row in whole] == [len(SAMPLER(r)) for r in range(3)]
    with (tmp_path / "metrics.csv").open() as file:
        assert [float(row["epsilon"]) for row in csv.DictReader(file)] == pytest.approx(whole["epsilon"])


def test_clients_that_another_sampler_draws_are_refused(process, data):
    uniform = fc.simulation.build_uniform_sampling_fn(IDS, seed=4)
    with pytest.raises(FedcoreError, match="epsilon would be about another training"):
        run(process, data, 1, sampler=uniform, clients_per_round=6)


def test_what_is_no_sampler_or_ledger_is_refused(process, data):
    with pytest.raises(FedcoreError, match="sampler is one of"):
        run(process, data, 1, sampler=lambda r: IDS)
    with pytest.raises(FedcoreError, match="EpsilonCallback takes a"):
        fc.privacy.EpsilonCallback(SAMPLER)

"""A training whose rows have epsilon, also after it was resumed."""

import asyncio
import csv
import json

import attrs
import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.learning.programs import Callback, train

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


@pytest.fixture(scope="module")
def secure_process(process, data):
    """As `process`, with noise from keys of the operating system."""
    spec = data.create_tf_dataset_for_client(IDS[0]).element_spec

    def model_fn():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), spec)

    aggregator = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(2.0, 6, 1.0, secure_noise=True)
    return fc.learning.algorithms.build_unweighted_fed_avg(
        model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=aggregator
    )


def run(process, data, rounds, sampler=SAMPLER, callbacks=(), ledger=None, **options):
    epsilon = fc.privacy.EpsilonCallback(ledger or fc.privacy.Ledger(process, SAMPLER, delta=1e-2))
    callbacks = [*callbacks, epsilon]
    return train(process, data, rounds, sampler=sampler, callbacks=callbacks, seed=1, progress=False, **options)


class CrashAt(Callback):
    """Ends a training after a round has been looked at, before its checkpoint."""

    def __init__(self, round_number):
        self.round_number = round_number

    def on_round_end(self, round_number, logs):
        if round_number == self.round_number:
            raise KeyboardInterrupt


def crash(process, data, round_number, directory, **options):
    with pytest.raises(KeyboardInterrupt):
        run(process, data, 9, callbacks=[CrashAt(round_number)], directory=directory, **options)


def test_results_of_noise_are_not_chosen_from(process, data):
    with pytest.raises(FedcoreError, match="should_retry_round looks at results of a process that adds noise") as error:
        run(process, data, 1, retries=4, should_retry_round=lambda output: True)
    assert "fix: leave out should_retry_round" in str(error.value)


def test_tffs_program_does_not_choose_from_results_of_noise_either(process, data):
    program = fc.learning.programs.train_model(
        train_process=process,
        train_data_source=fc.program.DatasetDataSource([data.create_tf_dataset_for_client(IDS[0])], seed=0),
        train_per_round_clients=1,
        train_total_rounds=1,
        should_retry_round=lambda output: True,
        program_state_manager=None,
        model_output_manager=None,
    )
    with pytest.raises(FedcoreError, match="should_retry_round looks at results of a process that adds noise"):
        asyncio.run(program)


def test_a_round_that_is_run_again_with_its_noise_costs_nothing(process, data, tmp_path):
    crash(process, data, 3, tmp_path, checkpoint_every=2)
    ledger = fc.privacy.Ledger(process, SAMPLER, delta=1e-2)
    resumed = run(process, data, 3, directory=tmp_path, ledger=ledger)
    assert resumed["epsilon"] == run(process, data, 3)["epsilon"]
    assert ledger.epsilon() == resumed["epsilon"][-1]


def test_a_round_that_is_run_again_with_new_noise_is_spent_twice(secure_process, data, tmp_path):
    crash(secure_process, data, 2, tmp_path)
    ledger = fc.privacy.Ledger(secure_process, SAMPLER, delta=1e-2)
    run(secure_process, data, 2, directory=tmp_path, ledger=ledger)
    assert [entry["releases"] for entry in ledger.get_state()["rounds"]] == [1, 2]
    whole = run(secure_process, data, 2)
    assert ledger.epsilon() > whole["epsilon"][-1]


def test_rounds_released_after_the_checkpoint_that_is_resumed_are_spent(process, data, tmp_path):
    crash(process, data, 4, tmp_path, checkpoint_every=9)
    ledger = fc.privacy.Ledger(process, SAMPLER, delta=1e-2)
    resumed = run(process, data, 1, directory=tmp_path, ledger=ledger)
    whole = run(process, data, 4)["epsilon"]
    assert resumed["epsilon"] == whole[:1]
    assert ledger.epsilon() == whole[3]


def test_a_round_with_the_same_noise_and_another_result_is_refused(process, data, tmp_path):
    crash(process, data, 1, tmp_path)
    path = tmp_path / "releases.jsonl"
    (release,) = map(json.loads, path.read_text().splitlines())
    path.write_text(json.dumps({**release, "digest": "0" * 64}) + "\n")
    with pytest.raises(FedcoreError, match="round 1 of noise has another result, and both have the same noise"):
        run(process, data, 1, directory=tmp_path)


def test_a_release_that_a_crash_cut_off_is_none(process, data, tmp_path):
    crash(process, data, 1, tmp_path)
    path = tmp_path / "releases.jsonl"
    path.write_text(path.read_text()[:-9])
    assert run(process, data, 1, directory=tmp_path)["epsilon"] == run(process, data, 1)["epsilon"]
    assert len(path.read_text().splitlines()) == 1


def test_a_damaged_journal_is_named(process, data, tmp_path):
    (tmp_path / "releases.jsonl").write_text('{"count": 1}\n')
    with pytest.raises(FedcoreError, match=r"releases\.jsonl is damaged: it holds the releases of a training"):
        run(process, data, 1, directory=tmp_path)


def test_the_noise_of_a_round_is_read_before_another_callback_changes_it(process, data):
    class MoreNoise(Callback):
        def on_round_end(self, round_number, logs):
            def louder(part):
                return attrs.evolve(part, noise_multiplier=np.float32(1e6))

            state = self.training.state
            aggregator = state.aggregator
            self.training.state = attrs.evolve(
                state, aggregator={**aggregator, "private": louder(aggregator["private"])}
            )

    changed = run(process, data, 1, callbacks=[MoreNoise()])
    assert changed["epsilon"] == run(process, data, 1)["epsilon"]


def test_the_process_of_another_ledger_is_refused(process, data):
    other = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(2.0, 6, 1.0).create(fc.to_type("float32"))
    with pytest.raises(FedcoreError, match="the ledger follows another process"):
        run(process, data, 1, ledger=fc.privacy.Ledger(other, SAMPLER, delta=1e-2))


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
        run(process, data, 1, sampler=IDS)
    with pytest.raises(FedcoreError, match="EpsilonCallback takes a"):
        fc.privacy.EpsilonCallback(SAMPLER)

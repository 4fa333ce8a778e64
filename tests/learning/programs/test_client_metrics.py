"""Metrics of each client: quantiles at the server, and the worst clients, by their ids, at the caller."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import InvalidValue, NotFound, TypeMismatch
from fedcore.learning import programs

WEIGHTS = fc.learning.ModelWeights((np.ones([2, 1], np.float32), np.zeros([1], np.float32)), ())


def client(number: int) -> fc.data.ClientDataset:
    """Client i is off by i; client 0 has no examples."""
    x = np.random.default_rng(number).normal(size=(3 * number, 2)).astype(np.float32)
    return fc.data.ClientDataset.from_columns((x, x.sum(1, keepdims=True) + np.float32(number))).batch(4)


@pytest.fixture(scope="module")
def data():
    datasets = {f"client_{i}": client(i) for i in range(12)}
    return fc.simulation.datasets.ClientData.from_clients_and_tf_fn(datasets, datasets.get)


def build(**options):
    def model_fn():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        loss, metrics = keras.losses.MeanSquaredError(), [keras.metrics.MeanAbsoluteError(name="error")]
        return fc.learning.from_keras_model(net, loss, client(1).element_spec, metrics=metrics)

    return fc.learning.algorithms.build_fed_eval(model_fn, **options)


@pytest.fixture(scope="module")
def evaluation():
    return build(per_client=[0.1, 0.5])


@pytest.fixture(scope="module")
def found(evaluation, data):
    return programs.evaluate_clients(evaluation, WEIGHTS, data)


def test_each_client_has_its_metrics_under_its_id(found):
    assert list(found.rows) == sorted(f"client_{i}" for i in range(12))
    assert {i: found.rows[f"client_{i}"]["num_examples"] for i in range(12)} == {i: 3 * i for i in range(12)}
    for i in range(1, 12):
        assert found.rows[f"client_{i}"]["error"] == pytest.approx(i, rel=1e-5)


def test_data_sets_in_a_list_are_clients(evaluation, found):
    listed = programs.evaluate_clients(evaluation, WEIGHTS, [client(0), client(1), client(2)])
    assert listed.rows == {i: found.rows[i] for i in ("client_0", "client_1", "client_2")}


def test_clients_without_examples_are_in_no_statistic(found):
    assert found.rows["client_0"]["loss"] == 0
    assert len(found.values("loss")) == 11
    assert found.quantile("error", 0.5) == pytest.approx(6, rel=1e-5)
    counts, edges = found.histogram("error", bins=[0.5, 3.5, 11.5])
    assert counts.tolist() == [3, 8]
    assert edges.tolist() == [0.5, 3.5, 11.5]


def test_the_worst_clients_are_named_and_the_direction_is_that_of_the_metric(found):
    assert list(found.worst("error", 2)) == ["client_11", "client_10"]
    assert list(found.worst("error", 2, mode="max")) == ["client_1", "client_2"]
    accuracies = programs.ClientMetrics({i: {"accuracy": i / 10} for i in range(5)})
    assert accuracies.worst("accuracy", 2) == {0: 0.0, 1: 0.1}


def test_the_server_has_the_quantiles(evaluation, data, found):
    state = evaluation.set_model_weights(evaluation.initialize(), WEIGHTS)
    output = evaluation.next(state, [data.create_tf_dataset_for_client(i) for i in data.client_ids])
    work = output.metrics["client_work"]["eval"]
    expected = [found.quantile("error", q) for q in (0.1, 0.5)]
    np.testing.assert_allclose(work["current_round_metrics"]["per_client"]["error"], expected, rtol=1e-5)
    assert "per_client" not in work["total_rounds_metrics"]
    assert len(output.client_metrics) == 12


def test_without_quantiles_clients_run_side_by_side_and_have_the_same_metrics(data, found):
    evaluation = build(per_client=[])
    assert "strategy=vectorised" in evaluation.next.to_text("planned")
    again = programs.evaluate_clients(evaluation, WEIGHTS, data)
    assert again.rows.keys() == found.rows.keys()
    for client_id, row in found.rows.items():
        np.testing.assert_allclose(again.rows[client_id]["error"], row["error"], rtol=1e-5)


def test_quantiles_stand_in_the_rows_of_a_training(evaluation, data):
    def model_fn():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), client(1).element_spec)

    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.01))
    history = programs.train(
        process, data, 1, clients_per_round=3, seed=0, evaluation=evaluation, evaluation_data=data, progress=False
    )
    low, median = history["val_per_client/error"][0]
    assert 0 < low < median
    again = programs.evaluate_clients(evaluation, history.state.global_model_weights, data)
    assert again.quantile("error", 0.5) == pytest.approx(median, rel=1e-5)


def test_a_client_that_is_dropped_has_no_row(evaluation, data):
    def create(client_id):
        if client_id == "client_7":
            raise OSError("no file")
        return data.create_tf_dataset_for_client(client_id)

    failing = fc.simulation.datasets.ClientData.from_clients_and_tf_fn([*data.client_ids[:3], "client_7"], create)
    policy = fc.runtime.drop()
    with fc.use(fc.runtime.local(on_client_failure=policy)):
        found = programs.evaluate_clients(evaluation, WEIGHTS, failing)
    assert "client_7" not in found.rows


def test_a_table_of_the_clients(found):
    pytest.importorskip("pandas")
    table = found.to_pandas()
    assert table.shape[0] == 12
    assert table.loc["client_3", "num_examples"] == 9


def test_mistakes_are_named(data, found):
    with pytest.raises(TypeMismatch, match=r"evaluate_clients takes an evaluation with per_client, as build_fed_eval"):
        programs.evaluate_clients(build(), WEIGHTS, data)
    with pytest.raises(NotFound, match="clients have no number accuracy; they have error, loss"):
        found.worst("accuracy")
    with pytest.raises(InvalidValue, match="quantiles are between 0 and 1"):
        build(per_client=[2.0])


def test_personal_models_are_evaluated_as_the_docs_say(data):
    def model_fn():
        frozen = keras.layers.Dense(2, trainable=False, kernel_initializer="identity")
        net = keras.Sequential([keras.Input((2,)), frozen, keras.layers.Dense(1)])
        return fc.learning.from_keras_model(net, "mse", client(1).element_spec)

    page = (Path(__file__).parents[3] / "docs/training.md").read_text()
    (block,) = re.findall(r"```python\n(rows = \{\}\n.*?)```", page, re.DOTALL)
    process = fc.learning.algorithms.build_ditto(model_fn, 0.0, keras.optimizers.SGD(0.1))
    history = programs.train(process, data, 2, clients_per_round=4, seed=1)
    clients = fc.learning.algorithms.build_fed_eval(model_fn, per_client=[])
    names = {"fc": fc, "history": history, "test": data, "clients": clients}
    exec(block, names)
    found = names["found"]
    assert set(found.rows) == set(history.client_states)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for client_id, personal in history.client_states.items():
        model.set_weights(personal.trainable)
        errors = [(np.asarray(model(x)) - y) ** 2 for x, y in data.create_tf_dataset_for_client(client_id)]
        assert found.rows[client_id]["loss"] == pytest.approx(np.concatenate(errors or [[0.0]]).mean(), rel=1e-4)

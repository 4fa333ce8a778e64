"""Clients whose work is not finite count for nothing, in every algorithm, and every round says how many they are."""

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import warm_processes

import fedcore as fc
from fedcore import context
from fedcore.learning import algorithms, metrics, models, optimizers

SPEC = (tf.TensorSpec([None, 2]), tf.TensorSpec([None]))
NAME = "num_non_finite_clients"


def line():
    """Least squares for y = w · x."""

    def forward_pass(weights, batch, training):
        x, y = batch
        predictions = tf.linalg.matvec(x, weights.trainable[0])
        return fc.learning.BatchOutput(tf.reduce_mean((predictions - y) ** 2), predictions, tf.shape(y)[0])

    start = fc.learning.ModelWeights((np.zeros([2], np.float32),), ())
    return models.FunctionalModel(start, forward_pass, SPEC)


def client(seed, rows=4, factor=1.0):
    x = np.random.default_rng(seed).normal(size=(rows, 2)).astype(np.float32)
    return fc.data.ClientDataset.from_columns((x * np.float32(factor), x.sum(1))).batch(2)


GOOD = [client(0), client(1, 6)]
POISONED = [client(0), client(2, factor=np.nan), client(1, 6), client(3, factor=np.inf)]
RATE = optimizers.build_sgdm(0.1)

BUILDERS = {
    "fed avg": lambda: algorithms.build_weighted_fed_avg(line, RATE),
    "unweighted": lambda: algorithms.build_unweighted_fed_avg(line, RATE),
    "fed prox": lambda: algorithms.build_weighted_fed_prox(line, 0.1, RATE),
    "fed sgd": lambda: algorithms.build_fed_sgd(line),
    "schedule": lambda: algorithms.build_weighted_fed_avg_with_optimizer_schedule(line, lambda r: 0.1, RATE),
    "mime lite": lambda: algorithms.build_weighted_mime_lite(line, optimizers.build_sgdm(0.1, momentum=0.9)),
    "scaffold": lambda: algorithms.build_scaffold(line, 0.1, num_clients=4),
    "fed nova": lambda: algorithms.build_fed_nova(line, 0.1),
    "q fed avg": lambda: algorithms.build_q_fed_avg(line, 1.0, 0.1),
    "fed dyn": lambda: algorithms.build_fed_dyn(line, 0.1, 0.1, num_clients=4),
    "ditto": lambda: algorithms.build_ditto(line, 0.1, RATE),
    "optimizer states": lambda: algorithms.build_fed_avg_with_optimizer_states(line, optimizers.build_adam(0.1)),
    "older": lambda: fc.learning.build_federated_averaging_process(line, RATE),
    "secure metrics": lambda: algorithms.build_weighted_fed_avg(
        line, RATE, metrics_aggregator=metrics.secure_sum_then_finalize
    ),
    "sampled metrics": lambda: algorithms.build_weighted_fed_avg(
        line, RATE, metrics_aggregator=metrics.finalize_then_sample
    ),
    "k-means": lambda: algorithms.build_fed_kmeans(2, [2]),
}


@pytest.fixture(scope="module")
def built():
    """Each process of BUILDERS, built and compiled once."""
    return functools.cache(lambda name: BUILDERS[name]())


def run(process, name, clients):
    """The weights after a round, and its training metrics."""
    if name == "k-means":
        clients = [c.map(lambda x, y: x).unbatch() for c in clients]
    start, states = process.initialize.invoke(seed=1), []
    if isinstance(process, fc.learning.ClientStateProcess):
        takes_state = bool(process.initial_client_state.module.main.parameters)
        states = [[process.initial_client_state(*([start] if takes_state else []))] * len(clients)]
    state, found, *_ = process.next(start, clients, *states)
    train = found["train"] if name == "older" else found["client_work"]["train"]
    return state.model.trainable[0], train


@pytest.mark.parametrize("name", BUILDERS)
def test_they_are_counted_in_the_metrics_and_in_the_report_and_change_nothing(built, name):
    weights, train = run(built(name), name, POISONED)
    assert np.sum(train[NAME]) == 2
    assert context.last_report().non_finite_clients == 2
    assert any("the work of 2 of 4 clients is not finite" in note for note in context.last_report().notes)
    without, train = run(built(name), name, GOOD)
    assert np.sum(train[NAME]) == 0
    assert context.last_report().non_finite_clients == 0
    assert not any("not finite" in note for note in context.last_report().notes)
    np.testing.assert_allclose(weights, without, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "sampled metrics"])
def test_they_add_nothing_to_the_metrics(built, name):
    _, poisoned = run(built(name), name, POISONED)
    _, clean = run(built(name), name, GOOD)
    for metric in ("loss", "num_examples", "num_batches"):
        if metric in clean:
            np.testing.assert_allclose(poisoned[metric], clean[metric], rtol=1e-6)
    assert poisoned["num_examples"] == 10


def test_their_rows_of_sampled_metrics_are_those_of_no_examples(built):
    _, train = run(built("sampled metrics"), "sampled metrics", POISONED)
    has_no_loss = np.equal(train["loss"], 0)
    rows = sorted(zip(train[NAME], train["num_examples"], train["num_batches"], has_no_loss, strict=True))
    assert rows == [(0, 4, 2, False), (0, 6, 3, False), (1, 0, 0, True), (1, 0, 0, True)]


def test_metrics_per_client_leave_them_out():
    aggregator = metrics.add_client_quantiles(quantiles=[0.0, 1.0])
    process = algorithms.build_weighted_fed_avg(line, RATE, metrics_aggregator=aggregator)
    _, train = run(process, "quantiles", POISONED)
    np.testing.assert_array_equal(train["per_client"]["num_examples"], [4, 6])
    np.testing.assert_array_equal(train["per_client"][NAME], [0, 1])
    assert np.isfinite(train["per_client"]["loss"]).all()


def test_a_metric_of_keras_leaves_them_out():
    def model_fn():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, kernel_initializer="zeros")])
        spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None]))
        error = keras.metrics.MeanAbsoluteError(name="error")
        return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), spec, metrics=[error])

    process = algorithms.build_weighted_fed_avg(model_fn, RATE)
    results = [run(process, "keras", clients)[1] for clients in (POISONED, GOOD)]
    assert np.isfinite(results[0]["error"])
    assert results[0]["error"] == pytest.approx(results[1]["error"], rel=1e-6)


def test_an_evaluation_leaves_nobody_out():
    evaluation = algorithms.build_fed_eval(line)
    _, found = evaluation.next(evaluation.initialize(), POISONED)
    assert np.isnan(found["client_work"]["eval"]["current_round_metrics"]["loss"])
    assert found["client_work"]["eval"]["current_round_metrics"]["num_examples"] == 18


def test_a_rate_that_diverges_is_told():
    process = algorithms.build_weighted_fed_avg(line, optimizers.build_sgdm(1e30))
    state, found = process.next(process.initialize(), [client(0, 40)])
    assert found["client_work"]["train"][NAME] == 1
    np.testing.assert_array_equal(state.model.trainable[0], [0, 0])


def test_a_weight_that_is_not_finite_costs_its_client_only():
    def weighting(report):
        count = tf.cast(report["num_examples"][0], tf.float32)
        return tf.where(count == 6.0, np.nan, tf.where(count == 8.0, np.inf, count))

    process = algorithms.build_weighted_fed_avg(line, RATE, client_weighting=weighting)
    alone, _ = process.next(process.initialize(), GOOD[:1])
    for rows in (6, 8):
        state, found = process.next(process.initialize(), [*GOOD[:1], client(1, rows)])
        assert found["client_work"]["train"][NAME] == 1
        np.testing.assert_allclose(state.model.trainable[0], alone.model.trainable[0], rtol=1e-6)


def test_personalization_counts_them_for_each_way_to_adapt(built):
    @fc.tf_computation
    def broken(weights, batches):
        return fc.learning.ModelWeights((weights.trainable[0] * np.float32(np.nan),), ())

    weights = built("fed avg").initialize().model
    ways = {"sgd": RATE, "diverges": optimizers.build_sgdm(1e30)}
    evaluate = algorithms.build_personalization_eval_computation(line, ways)
    found = evaluate(weights, [{"train_data": c, "test_data": c} for c in (client(0, 40), client(1, 40))])
    np.testing.assert_array_equal(found["sgd"][NAME], [0, 0])
    np.testing.assert_array_equal(found["diverges"][NAME], [1, 1])
    np.testing.assert_array_equal(found["diverges"]["loss"], found["baseline_metrics"]["loss"])
    assert context.last_report().non_finite_clients == 2


def test_a_saved_process_counts_them_too(built, tmp_path):
    process = built("fed avg")
    fc.save(process.next, tmp_path / "next.fed")
    fc.load(tmp_path / "next.fed")(process.initialize(), POISONED)
    assert context.last_report().non_finite_clients == 2


@pytest.mark.parametrize("wrap", [lambda krum: krum, fc.aggregators.concat_factory], ids=["alone", "in another"])
def test_a_round_of_too_few_clients_for_an_aggregator_says_so(wrap):
    krum = wrap(fc.aggregators.krum_factory(1))
    process = algorithms.build_unweighted_fed_avg(line, RATE, model_aggregator=krum)
    start = process.initialize()
    kept = process.next(start, [client(i) for i in range(4)]).state
    few = [note for note in context.last_report().notes if "selects none" in note]
    moved = process.next(start, [client(i) for i in range(5)]).state

    assert few[0].startswith("next_round: the aggregator selects none of 4 clients, too few for it: its result is NaN")
    assert "krum_factory(f) and multi_krum_factory(f) need 2 f + 3 finite clients with examples" in few[0]
    np.testing.assert_array_equal(kept.model.trainable[0], start.model.trainable[0])
    assert not np.array_equal(moved.model.trainable[0], start.model.trainable[0])
    assert not any("selects none" in note for note in context.last_report().notes)


WARNED = """
import json, sys, warnings
import numpy as np
import fedcore as fc
from tests.learning.test_non_finite import BUILDERS, POISONED

process = BUILDERS["fed avg"]()
state = process.initialize()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        state, _ = process.next(state, POISONED)
    print(json.dumps([[w.category.__name__, str(w.message), w.filename] for w in caught]))
"""


def ran_as_a_program(code, path):
    file = path / "rounds.py"
    file.write_text(code)
    return warm_processes.run({"file": str(file), "arguments": []}, cwd=path, env=warm_processes.environment())


def test_a_process_is_warned_once_at_the_users_line(tmp_path):
    ran = ran_as_a_program(WARNED, tmp_path)
    assert ran.returncode == 0, ran.stderr
    ((category, message, file),) = json.loads(ran.stdout)
    assert category == "RuntimeWarning"
    assert file == "rounds.py"
    assert message == (
        "next_round: the work of 2 of 4 clients is not finite (NaN or infinite) and is left out; a smaller "
        "learning rate, clipped gradients or finite data may help. With fc.debug.check_numerics() around the call at "
        "rounds.py:12, it names the client and the operation. Later calls say so in their metrics and reports only"
    )


def test_a_filter_that_makes_errors_of_warnings_costs_no_round(tmp_path):
    ran = ran_as_a_program(WARNED.replace('simplefilter("always")', 'simplefilter("error")'), tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.decode().count("2 of 4 clients is not finite") == 1

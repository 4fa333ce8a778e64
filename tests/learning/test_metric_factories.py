"""Metrics by finalizers: aggregators as computations, factories over rounds, and Keras metrics as functions."""

from collections import OrderedDict

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.compiler.disclosures import disclosures
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.learning import metrics

STATES = fc.to_type(OrderedDict(mean=["float32", "float32"], count="int32"))
FINALIZERS = OrderedDict(mean=lambda state: state[0] / state[1], count=lambda n: n)
CLIENTS = [OrderedDict(mean=[6.0, 2.0], count=1), OrderedDict(mean=[1.0, 1.0], count=-3)]
CLIENT_STATES = fc.FederatedType(STATES, fc.CLIENTS)


def aggregated(aggregator):
    computation = fc.federated_computation(CLIENT_STATES)(lambda states: aggregator(states))
    return computation(CLIENTS)


@pytest.mark.parametrize(
    "finalizers",
    [FINALIZERS, lambda state: {name: fn(state[name]) for name, fn in FINALIZERS.items()}],
    ids=["by name", "one function"],
)
def test_states_are_added_then_finalized(finalizers):
    found = aggregated(metrics.sum_then_finalize(finalizers))
    assert found == {"mean": pytest.approx(7 / 3), "count": -2}


def test_a_secure_sum_clips_into_the_ranges_that_are_given():
    ranges = OrderedDict(mean=[None, (0.0, 1.0)])
    found = aggregated(metrics.secure_sum_then_finalize(FINALIZERS, None, ranges))
    measured = found.pop("secure_sum_measurements")
    assert found == {"mean": pytest.approx(3.5, rel=1e-3), "count": -2}
    assert list(measured) == ["-1048576.0/1048576.0/float32", "0.0/1.0/float32", "-1048576/1048576/int32"]
    assert measured["0.0/1.0/float32"]["secure_upper_clipped_count"] == 1


def test_a_sample_has_the_metrics_of_a_client():
    found = aggregated(metrics.finalize_then_sample(FINALIZERS, sample_size=1))
    assert (found["mean"][0], found["count"][0]) in [(3, 1), (1, -3)]


def test_a_process_adds_up_the_rounds():
    initial = OrderedDict(mean=[1, 1], count=5)
    process = metrics.SumThenFinalizeFactory(FINALIZERS, initial).create(STATES)
    output = process.next(process.initialize(), CLIENTS[:1])
    assert output.result == ({"mean": 3, "count": 1}, {"mean": pytest.approx(7 / 3), "count": 6})
    current, total = process.next(output.state, CLIENTS[1:]).result
    assert (current, total) == ({"mean": 1, "count": -3}, {"mean": 2, "count": 3})
    assert process.next.type_signature.result["result"].member[0] == fc.to_type({"mean": "float32", "count": "int32"})


def test_a_process_starts_from_zeros_and_takes_a_secure_sum():
    process = metrics.SumThenFinalizeFactory(FINALIZERS, inner_summation_factory=metrics.SecureSumFactory()).create(
        STATES
    )
    output = process.next(process.initialize(), CLIENTS)
    current, total = output.result
    assert current == total == {"mean": pytest.approx(7 / 3, rel=1e-6), "count": 1}  # -3 is clipped to 0
    floats, integers = "None/default_estimation_process/float32", "0/1048575/int32"
    assert list(output.measurements) == [floats, integers]
    assert output.measurements[integers]["secure_lower_clipped_count"] == 1
    assert output.measurements[floats]["secure_upper_threshold"] == 100
    assert output.state[0][floats] != process.initialize()[0][floats]
    assert disclosures(process.next.to_module("traced")) == []


def test_a_process_samples_the_round_and_all_rounds():
    process = metrics.FinalizeThenSampleFactory(sample_size=3).create(FINALIZERS, STATES)
    output = process.next(process.initialize(), CLIENTS)
    current, total = output.result
    assert sorted(current["count"]) == sorted(total["count"]) == [-3, 1]
    output = process.next(output.state, [OrderedDict(mean=[1.0, 0.0], count=7)] * 2)
    current, total = output.result
    assert list(current["count"]) == [7, 7]
    assert len(total["count"]) == 3  # of four
    assert set(total["count"]) <= {-3, 1, 7}
    assert {-3, 1} & set(total["count"])
    assert output.measurements == {"mean": 2, "count": 0}


def test_default_ranges_are_those_of_the_dtype():
    ranges = metrics.create_default_secure_sum_quantization_ranges(STATES, -0.5, 10.5)
    assert ranges["count"] == (0, 10)
    (low, high), other = ranges["mean"]
    assert low is None
    assert high is other[1]
    assert high.report(high.initialize()) == 100
    fixed = metrics.create_default_secure_sum_quantization_ranges(STATES, use_auto_tuned_bounds_for_float_values=False)
    assert fixed == {"mean": [(0.0, 2.0**20 - 1)] * 2, "count": (0, 2**20 - 1)}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: metrics.sum_then_finalize(3), "metric_finalizers is a dict of functions"),
        (lambda: metrics.SumThenFinalizeFactory({"mean": 3}), "has functions by the names of metrics, not 3 by 'mean'"),
        (
            lambda: metrics.SumThenFinalizeFactory({"mean": len, "other": len}).create(STATES),
            "metric_finalizers has the metrics mean, other, but the states are of mean, count",
        ),
        (
            lambda: metrics.SumThenFinalizeFactory(FINALIZERS).create(fc.to_type("float32")),
            "a struct with the metrics' names, not float32",
        ),
        (
            lambda: metrics.SumThenFinalizeFactory(FINALIZERS, {"mean": [0.0], "count": 0}).create(STATES),
            "initial_unfinalized_metrics .* has another structure",
        ),
        (
            lambda: metrics.SumThenFinalizeFactory(FINALIZERS, None, fc.aggregators.MeanFactory()),
            "inner_summation_factory is a factory of fc.aggregators without weights",
        ),
        (lambda: metrics.SecureSumFactory([(0, 1)]), "metric_value_ranges is a dict"),
        (lambda: metrics.SecureSumFactory({"other": (0, 1)}).create(STATES), "has another structure"),
        (lambda: metrics.SecureSumFactory({"count": 3}).create(STATES), "a pair .lower, upper. for each tensor, not 3"),
        (lambda: metrics.SecureSumFactory({"count": (3, 1)}).create(STATES), "is above lower_bound_threshold"),
        (lambda: metrics.SecureSumFactory().create(fc.to_type({"a": "bool"})), "the state.a is bool"),
        (lambda: metrics.FinalizeThenSampleFactory(0), "sample_size is a whole number"),
        (
            lambda: metrics.create_default_secure_sum_quantization_ranges(STATES, 0.2, 0.8),
            "no two integers from 0.2 to 0.8 for the state.count",
        ),
        (lambda: metrics.create_default_secure_sum_quantization_ranges(STATES, 2, 1), "is less than upper_bound"),
        (lambda: metrics.create_keras_metric_finalizer(3), "a metric is a keras.metrics.Metric"),
        (lambda: metrics.create_functional_metric_fns(3), "metrics_constructor is a function"),
        (lambda: metrics.create_functional_metric_fns(lambda: {"a": 3}), "not 3 by 'a'"),
    ],
)
def test_what_does_not_fit_is_named(make, says):
    with pytest.raises(FedcoreError, match=says):
        make()


def test_a_keras_metric_finalizes_a_state_of_its_variables():
    metric = keras.metrics.Mean()
    metric.update_state([4.0, 8.0])
    finalize = metrics.create_keras_metric_finalizer(metric)
    assert finalize([tf.constant(10.0), tf.constant(4.0)]) == 2.5
    assert metric.result() == 6
    with pytest.raises(TypeMismatch, match="is a list of tensors, not 3"):
        finalize(3)
    for wrong in ([tf.constant(1.0)], [tf.constant(1.0), tf.constant(1)], [tf.zeros([2]), tf.constant(1.0)]):
        with pytest.raises(FedcoreError, match=r"the state of mean is \[float32\[\], float32\[\]\], not \["):
            finalize(wrong)


def test_a_keras_finalizer_runs_in_an_aggregator():
    finalizers = {"mean": metrics.create_keras_metric_finalizer(keras.metrics.Mean), "count": tf.function(lambda n: n)}
    assert aggregated(metrics.sum_then_finalize(finalizers)) == {"mean": pytest.approx(7 / 3), "count": -2}


def functional_metrics():
    return OrderedDict(accuracy=keras.metrics.BinaryAccuracy(), seen=metrics.NumExamplesCounter())


def test_keras_metrics_as_functions_give_what_keras_does():
    initialize, update, finalize = metrics.create_functional_metric_fns(functional_metrics)
    assert tf.nest.map_structure(float, initialize()) == {"accuracy": (0, 0), "seen": (0,)}
    labels, output = np.array([1.0, 0.0, 1.0]), fc.learning.BatchOutput(predictions=np.array([1.0, 1.0, 0.0]))
    state = update(initialize(), labels, output, sample_weight=np.array([3.0, 1.0, 0.0]))
    state = update(state, labels[:1], fc.learning.BatchOutput(predictions=np.array([0.0])))
    metric = keras.metrics.BinaryAccuracy()
    metric.update_state(labels, output.predictions, np.array([3.0, 1.0, 0.0]))
    metric.update_state(labels[:1], np.array([0.0]))
    assert tf.nest.map_structure(float, finalize(state)) == {
        "accuracy": pytest.approx(float(metric.result())),
        "seen": 4,
    }
    with pytest.raises(TypeMismatch, match="a BatchOutput with predictions"):
        update(state, labels, fc.learning.BatchOutput(loss=0.0))


@pytest.mark.parametrize("weights", [False, True])
def test_keras_metrics_as_functions_serve_a_functional_model(weights):
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([[1.0], [0.0], [1.0], [1.0]], np.float32)
    parts = (x, y, np.array([1, 2, 3, 4], np.float32)) if weights else (x, y)
    data = fc.data.ClientDataset.from_columns(parts).batch(3)

    def forward_pass(weights, batch, training):
        predictions = tf.sigmoid(batch[0] @ weights.trainable[0])
        return fc.learning.BatchOutput(tf.reduce_mean(predictions), predictions, tf.shape(batch[1])[0])

    model = fc.learning.models.FunctionalModel(
        fc.learning.ModelWeights((np.array([[1.0], [-1.0]], np.float32),), ()),
        forward_pass,
        data.element_spec,
        metrics_fns=metrics.create_functional_metric_fns(functional_metrics),
    )
    evaluation = fc.learning.algorithms.build_fed_eval(model)
    found = evaluation.next(evaluation.initialize(), [data]).metrics["client_work"]["eval"]["current_round_metrics"]
    metric = keras.metrics.BinaryAccuracy()
    metric.update_state(y, 1 / (1 + np.exp(-(x @ [[1.0], [-1.0]]))), parts[2] if weights else None)
    assert found["accuracy"] == pytest.approx(float(metric.result()))
    assert found["seen"] == 4

"""The linter has nothing to say about the examples, and about the processes that they build."""

import importlib.util
import pathlib

import keras
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.compiler.lint import lint

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def findings(*computations) -> list[str]:
    return [str(finding) for c in computations for finding in lint(c.to_module("traced"))]


def test_algorithms_by_hand():
    custom, by_hand = load("custom_algorithm"), load("federated_averaging")
    assert findings(custom.initialize, custom.next_round) == []
    assert findings(load("new_intrinsic").median, load("faulty_clients").average) == []
    for average in (fc.federated_mean, by_hand.trimmed):
        assert findings(by_hand.build(average).next) == []


def test_an_aggregator_of_ones_own():
    process = load("custom_aggregator").MajorityVoteFactory(1.0).create(fc.to_type(("float32", [3])))
    assert findings(process.initialize, process.next) == []


def test_sketches_with_noise():
    histogram = fc.analytics.hierarchical_histogram.build_hierarchical_histogram_computation(
        lower_bound=0.0,
        upper_bound=96.0,
        num_bins=64,
        max_records_per_user=5,
        dp_mechanism="central-gaussian",
        noise_multiplier=0.5,
    )
    distinct = fc.analytics.count_distinct.create_federated_hyperloglog_computation(use_secagg=True)
    assert findings(histogram, distinct) == []


def model_fn():
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    spec = (tf.TensorSpec([None, 8, 8, 1], tf.float32), tf.TensorSpec([None], tf.int32))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    return fc.learning.from_keras_model(model, loss, input_spec=spec, metrics=[accuracy])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*encodes nothing")  # of this small model
def test_compressed_training():
    for process in load("compression").processes(model_fn).values():
        assert findings(process.initialize, process.next) == []

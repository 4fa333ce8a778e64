"""Personalization by functions of the user's own, which train and evaluate a model in TensorFlow."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TypeMismatch
from fedcore.learning import algorithms

SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 1]), y=tf.TensorSpec([None, 1]))
RATE = 0.1


def keras_line():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), SPEC)


class Line(fc.learning.Model):
    def __init__(self):
        self.slope = tf.Variable(lambda: tf.zeros([1, 1]))
        self.error, self.count = (tf.Variable(0.0, trainable=False) for _ in range(2))

    trainable_variables = property(lambda self: [self.slope])
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [self.error, self.count])
    input_spec = property(lambda self: SPEC)

    def predict_on_batch(self, x, training=True):
        return x @ self.slope

    @tf.function
    def forward_pass(self, batch_input, training=True):
        squares = (self.predict_on_batch(batch_input["x"]) - batch_input["y"]) ** 2
        self.error.assign_add(tf.reduce_sum(squares))
        self.count.assign_add(tf.cast(tf.size(squares), tf.float32))
        return fc.learning.BatchOutput(tf.reduce_mean(squares), None, tf.size(squares))

    def report_local_unfinalized_metrics(self):
        return {"loss": [self.error, self.count]}

    def metric_finalizers(self):
        return {"loss": lambda values: values[0] / values[1]}

    def reset_metrics(self):
        for variable in self.local_variables:
            variable.assign(0.0)


@tf.function
def evaluate(model, test_data):
    model.reset_metrics()
    for batch in test_data.batch(2):
        model.forward_pass(batch, training=False)
    reported = model.report_local_unfinalized_metrics()
    return {"loss": model.metric_finalizers()["loss"](reported["loss"])}


def personalize(batch_size):
    def build():
        optimizer = keras.optimizers.SGD(RATE)

        @tf.function
        def fn(model, train_data, test_data):
            examples = tf.constant(0, tf.int64)
            for batch in train_data.batch(batch_size):
                with tf.GradientTape() as tape:
                    output = model.forward_pass(batch)
                gradients = tape.gradient(output.loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                examples += tf.cast(output.num_examples, tf.int64)
            return collections.OrderedDict(examples=examples, test=evaluate(model, test_data))

        return fn

    return build


def points(*pairs):
    columns = {name: np.array([[pair[i]] for pair in pairs], np.float32) for i, name in enumerate("xy")}
    return fc.data.ClientDataset.from_columns(columns)


TRAIN, TEST = [(1, 3), (2, 5), (0, 1)], [(3, 3), (1, 0)]
CLIENTS = [{"train_data": points(*TRAIN), "test_data": points(*TEST)} for _ in range(3)]


def loss(slope):
    return np.mean([(slope * x - y) ** 2 for x, y in TEST])


def adapted(slope, batch_size):
    for start in range(0, len(TRAIN), batch_size):
        batch = TRAIN[start : start + batch_size]
        slope -= RATE * np.mean([2 * (slope * x - y) * x for x, y in batch])
    return slope


@pytest.mark.parametrize("model_fn", [keras_line, Line])
def test_each_way_starts_from_the_weights_and_gives_what_its_function_returns(model_fn):
    ways = collections.OrderedDict(one=personalize(1), two=personalize(2))
    compare = algorithms.build_personalization_eval_computation(model_fn, ways, evaluate, max_num_clients=2)
    weights = fc.learning.ModelWeights((np.array([[0.5]], np.float32),), ())
    found = compare(weights, CLIENTS)
    np.testing.assert_allclose(found["baseline_metrics"]["loss"], [loss(0.5)] * 2, rtol=1e-5)
    for name, batch_size in (("one", 1), ("two", 2)):
        np.testing.assert_array_equal(found[name]["examples"], [3, 3])
        np.testing.assert_allclose(found[name]["test"]["loss"], [loss(adapted(0.5, batch_size))] * 2, rtol=1e-5)


def test_the_model_of_a_function_has_the_parts_of_a_variable_model():
    seen = {}

    def look(model, test_data):
        seen["spec"] = model.input_spec
        seen["variables"] = [[v.shape.as_list() for v in group] for group in (
            model.trainable_variables, model.non_trainable_variables
        )]  # fmt: skip
        seen["finalizers"] = set(model.metric_finalizers())
        seen["reported"] = {name: len(values) for name, values in model.report_local_unfinalized_metrics().items()}
        assert all(isinstance(values, list) for values in model.report_local_unfinalized_metrics().values())
        return {"prediction": model.predict_on_batch(tf.ones([1, 1]), training=False)}

    compare = algorithms.build_personalization_eval_computation(
        keras_line, {"one": lambda: lambda m, _, t: look(m, t)}, look
    )
    assert seen["spec"] == dict(SPEC)
    assert seen["variables"] == [[[1, 1]], []]
    assert seen["reported"] == {"loss": 2, "num_examples": 1, "num_batches": 1}
    assert seen["finalizers"] == {"loss", "num_examples", "num_batches"}
    weights = fc.learning.ModelWeights((np.array([[0.5]], np.float32),), ())
    np.testing.assert_array_equal(compare(weights, CLIENTS[:1])["one"]["prediction"], [[[0.5]]])


def test_ways_without_names_are_refused():
    with pytest.raises(
        TypeMismatch, match=r"personalize_fn_dict is a dict of optimizers, as \{'sgd': lambda: .*, not <"
    ):
        algorithms.build_personalization_eval_computation(Line, fc.learning.optimizers.build_sgdm(0.1))


def test_with_a_baseline_function_each_way_is_a_function_that_makes_one():
    def build(way, baseline=evaluate, **options):
        algorithms.build_personalization_eval_computation(Line, {"sgd": way}, baseline, **options)

    with pytest.raises(TypeMismatch, match=r"personalize_fn_dict\['sgd'\] is a function without arguments that makes"):
        build(fc.learning.optimizers.build_sgdm(0.1))
    with pytest.raises(TypeMismatch, match=r"not a function \(model, train_data, test_data\) -> metrics; an optimizer"):
        build(lambda: keras.optimizers.SGD(0.1))
    with pytest.raises(TypeMismatch, match=r"baseline_evaluate_fn is a function of a model .*, not 5; max_num_clients"):
        build(personalize(1), 5)

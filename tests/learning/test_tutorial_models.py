"""Models as TFF's tutorials write them: `tf.function` methods, metrics named as the counts, saved weights."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TypeMismatch
from fedcore.learning import algorithms, models, optimizers

RNG = np.random.default_rng(0)
SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 4]), y=tf.TensorSpec([None, 1], tf.int32))


def client(rows):
    columns = collections.OrderedDict(
        x=RNG.normal(size=(rows, 4)).astype(np.float32), y=RNG.integers(0, 3, (rows, 1)).astype(np.int32)
    )
    return fc.data.ClientDataset.from_columns(columns).batch(5)


CLIENTS = [client(7), client(11)]


class Tutorial(fc.learning.models.VariableModel):
    """A softmax regression all of whose methods are `tf.function`s."""

    def __init__(self):
        self.weights = tf.Variable(lambda: tf.zeros([4, 3]), name="weights")
        self.bias = tf.Variable(lambda: tf.zeros([3]), name="bias")
        self.num_examples, self.loss_sum, self.accuracy_sum = (tf.Variable(0.0, trainable=False) for _ in range(3))

    trainable_variables = property(lambda self: [self.weights, self.bias])
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [self.num_examples, self.loss_sum, self.accuracy_sum])
    input_spec = property(lambda self: SPEC)

    @tf.function
    def predict_on_batch(self, x, training=True):
        return tf.nn.softmax(tf.matmul(x, self.weights) + self.bias)

    @tf.function
    def forward_pass(self, batch, training=True):
        y = self.predict_on_batch(batch["x"], training)
        labels = tf.reshape(batch["y"], [-1])
        loss = -tf.reduce_mean(tf.reduce_sum(tf.one_hot(labels, 3) * tf.math.log(y), 1))
        count = tf.cast(tf.size(labels), tf.float32)
        hits = tf.reduce_sum(tf.cast(tf.argmax(y, 1, tf.int32) == labels, tf.float32))
        self.num_examples.assign_add(count)
        self.loss_sum.assign_add(loss * count)
        self.accuracy_sum.assign_add(hits)
        return fc.learning.BatchOutput(loss, y, tf.shape(labels)[0])

    @tf.function
    def report_local_unfinalized_metrics(self):
        return collections.OrderedDict(
            num_examples=[self.num_examples],
            loss=[self.loss_sum, self.num_examples],
            accuracy=[self.accuracy_sum, self.num_examples],
        )

    def metric_finalizers(self):
        return collections.OrderedDict(
            num_examples=tf.function(func=lambda x: x[0]),
            loss=tf.function(func=lambda total: total[0] / total[1]),
            accuracy=tf.function(func=lambda parts: parts[0] / parts[1]),
        )

    @tf.function
    def reset_metrics(self):
        for variable in self.local_variables:
            variable.assign(tf.zeros_like(variable))


class Computing(Tutorial):
    """Reports numbers that it computes, singly and nested, some of which are not zero without data."""

    def report_local_unfinalized_metrics(self):
        nested = {"sum": self.loss_sum + 1.0, "counts": (2 * self.num_examples, self.accuracy_sum)}
        return collections.OrderedDict(twice=2 * self.num_examples, nested=nested)

    @tf.function
    def metric_finalizers(self):
        return collections.OrderedDict(
            twice=lambda value: value, nested=lambda parts: parts["sum"] + 0 * parts["counts"][1] + parts["counts"][0]
        )


BUILDERS = {
    "fed avg": lambda m: algorithms.build_weighted_fed_avg(m, optimizers.build_sgdm(0.02)),
    "fed sgd": algorithms.build_fed_sgd,
    "mime lite": lambda m: algorithms.build_weighted_mime_lite(m, optimizers.build_sgdm(0.02)),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_methods_may_be_functions_of_tensorflow_and_metrics_named_as_counts(name):
    process = BUILDERS[name](Tutorial)
    _, metrics = process.next(process.initialize(), CLIENTS)
    train = metrics["client_work"]["train"]
    assert (train["num_examples"].dtype, train["num_examples"], train["num_batches"]) == (np.float32, 18, 5)
    assert 0 <= train["accuracy"] <= 1
    assert 0.5 < train["loss"] < 2


def test_reports_may_be_computed_and_nested():
    evaluation = algorithms.build_fed_eval(Computing)
    state = evaluation.initialize()
    state, first = evaluation.next(state, CLIENTS)
    _, second = evaluation.next(state, CLIENTS)
    current, total = (second["client_work"]["eval"][k] for k in ("current_round_metrics", "total_rounds_metrics"))
    assert (current["twice"], total["twice"]) == (36, 72)
    np.testing.assert_allclose(current["nested"], 18 * np.log(3) + 2 + 36, rtol=1e-5)
    np.testing.assert_allclose(total["nested"], 2 * current["nested"], rtol=1e-6)
    first_total = first["client_work"]["eval"]["total_rounds_metrics"]["nested"]
    np.testing.assert_allclose(first_total, current["nested"], rtol=1e-6)


def functional(own_metrics):
    def forward_pass(weights, batch, training):
        predictions = batch["x"] @ weights.trainable[0]
        loss = tf.reduce_mean((predictions - tf.cast(batch["y"], tf.float32)) ** 2)
        return fc.learning.BatchOutput(loss, predictions, tf.shape(predictions)[0])

    start = fc.learning.ModelWeights((np.zeros([4, 1], np.float32),), ())
    return lambda: models.FunctionalModel(start, forward_pass, SPEC, None, *own_metrics)


def test_a_functional_models_metrics_named_as_counts_keep_their_state():
    own = (
        lambda: {"loss": (tf.constant(0.0),), "num_examples": (tf.constant(0),), "num_batches": (tf.zeros([2]),)},
        lambda state, batch, output: {
            "loss": (state["loss"][0] + 7.0,),
            "num_examples": (state["num_examples"][0] + 100,),
            "num_batches": (state["num_batches"][0] + [1.0, 2.0],),
        },
        lambda state: {name: parts[0] for name, parts in state.items()},
    )
    found = []
    for make in (functional([own]), functional([])):
        process = algorithms.build_weighted_fed_avg(make, optimizers.build_sgdm(0.1))
        state, metrics = process.next(process.initialize(), CLIENTS)
        found.append((state.model.trainable[0], metrics["client_work"]["train"]))
    (mine, train), (plain, counts) = found
    assert (train["loss"], train["num_examples"], train["num_batches"].tolist()) == (35, 500, [5, 10])
    assert (counts["num_examples"], counts["num_batches"]) == (18, 5)
    np.testing.assert_array_equal(mine, plain)  # weighted by the examples that there are


def drawn():
    def start():
        return fc.learning.ModelWeights((tf.random.normal([4, 1]),), ())

    def forward_pass(weights, batch, training):
        predictions = batch["x"] @ weights.trainable[0]
        return fc.learning.BatchOutput(tf.reduce_mean(predictions**2), predictions, tf.shape(predictions)[0])

    return models.FunctionalModel(start, forward_pass, SPEC, lambda weights, x, training: x @ weights.trainable[0])


def test_a_saved_model_keeps_its_initialisers_or_the_weights_that_are_given(tmp_path):
    weights = fc.learning.ModelWeights((np.float32([[1], [2], [3], [4]]),), ())
    models.save(drawn, tmp_path / "drawn")
    models.save(drawn, tmp_path / "given", weights=weights)
    found = {}
    for name in ("drawn", "given"):
        process = algorithms.build_fed_eval(models.load(tmp_path / name))
        found[name] = [process.initialize().model.trainable[0] for _ in range(2)]
    assert not np.array_equal(*found["drawn"])
    for kernel in found["given"]:
        np.testing.assert_array_equal(kernel, weights.trainable[0])


def test_weights_of_another_model_are_not_saved(tmp_path):
    weights = fc.learning.ModelWeights((np.zeros([5, 1], np.float32),), ())
    with pytest.raises(TypeMismatch, match=r"`weights` does not fit the model[\s\S]*float32\[4,1\]"):
        models.save(drawn, tmp_path / "model", weights=weights)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("wrong", [fc.to_type(np.float32), ([], [])])
def test_a_saved_model_starts_from_model_weights_only(tmp_path, wrong):
    with pytest.raises(TypeMismatch, match=r"`weights` is a fc\.learning\.ModelWeights, such as .* is `input_type=`"):
        models.save(drawn, tmp_path / "model", wrong)
    assert not (tmp_path / "model").exists()

"""Batches, losses and metrics of Keras models as Keras takes them: sample weights, several outputs, layer states."""

from collections import OrderedDict

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.learning import algorithms, models, optimizers

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6)).astype(np.float32)
KINDS = RNG.integers(0, 3, 12).astype(np.int32)
SIZES = RNG.normal(size=(12, 1)).astype(np.float32)
WEIGHTS = RNG.uniform(0, 2, 12).astype(np.float32)
CROSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RATE = optimizers.build_sgdm(0.1)


def batches(columns, size=4):
    return fc.data.ClientDataset.from_columns(columns).batch(size, drop_remainder=True)


def one_round(make, data, *arguments, **options):
    """The state before a round of one client, and what the round gives; states have the frozen weights too."""
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(make(), *arguments, input_spec=data.element_spec, **options), RATE
    )
    state = process.initialize()
    output = process.next(state, [data])
    before, after = (s.replace(model=process.get_model_weights(s)) for s in (state, output.state))
    return before, output._replace(state=after)


def trained_by_keras(make, state, columns, loss, **options):
    """A Keras model after the same batches of 4, each (x, y) or (x, y, sample_weight)."""
    model = make()
    state.model.assign_weights_to(model)
    model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=True, **options)  # else a graph, with XLA
    for i in range(0, 12, 4):
        model.train_on_batch(*keras.tree.map_structure(lambda a, i=i: a[i : i + 4], tuple(columns)))
    return [v.numpy() for v in model.trainable_variables]


def close(output, want):
    for a, b in zip(output.state.model.trainable, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def dense():
    return keras.Sequential([keras.Input((6,)), L.Dense(3)])


@pytest.mark.parametrize(
    "loss", [CROSS, "sparse_categorical_crossentropy", keras.losses.sparse_categorical_crossentropy]
)
def test_sample_weights_weigh_the_loss_as_in_keras(loss):
    def make():
        return keras.Sequential([keras.Input((6,)), L.Dense(3, activation=None if loss is CROSS else "softmax")])

    state, output = one_round(make, batches((X, KINDS, WEIGHTS)), loss)
    close(output, trained_by_keras(make, state, (X, KINDS, WEIGHTS), loss))


def test_sample_weights_may_be_named():
    named = batches(OrderedDict(x=X, y=KINDS, sample_weight=WEIGHTS))
    state, output = one_round(dense, named, CROSS)
    close(output, trained_by_keras(dense, state, (X, KINDS, WEIGHTS), CROSS))


def two_outputs():
    x = keras.Input((6,), name="x")
    h = L.Dense(4)(x)
    return keras.Model(x, {"kind": L.Dense(3, name="kind")(h), "size": L.Dense(1, name="size")(h)})


def test_sample_weights_by_output():
    labels, weights = {"kind": KINDS, "size": SIZES}, {"kind": WEIGHTS, "size": WEIGHTS[::-1].copy()}
    losses = {"kind": CROSS, "size": "mse"}
    state, output = one_round(two_outputs, batches((X, labels, weights)), losses)
    close(output, trained_by_keras(two_outputs, state, (X, labels, weights), losses))


def test_lists_of_outputs_take_losses_and_their_weights_by_place_and_by_name():
    def make():
        x = keras.Input((6,))
        h = L.Dense(4)(x)
        return keras.Model(x, [L.Dense(3, name="kind")(h), L.Dense(1, name="size")(h)])

    data = batches((X, (KINDS, SIZES)))
    state, output = one_round(make, data, [CROSS, "mse"], loss_weights=[np.float32(1), 0.3])
    model = make()
    state.model.assign_weights_to(model)
    model.compile(keras.optimizers.SGD(0.1), [CROSS, "mse"], loss_weights=[1.0, 0.3], run_eagerly=True)
    for i in range(0, 12, 4):
        model.train_on_batch(X[i : i + 4], [KINDS[i : i + 4], SIZES[i : i + 4]])
    close(output, [v.numpy() for v in model.trainable_variables])
    assert make().output_names == ["kind", "size"]
    _, named = one_round(
        make, data, {"kind": CROSS, "size": None}, metrics={"size": [keras.metrics.MeanSquaredError()]}
    )
    assert "size_mean_squared_error" in named.metrics["client_work"]["train"]


def test_metrics_of_one_output_by_name():
    metrics = {"kind": {"right": keras.metrics.SparseCategoricalAccuracy}, "size": keras.metrics.MeanSquaredError()}
    losses = {"kind": CROSS, "size": "mse"}
    _, output = one_round(two_outputs, batches((X, {"kind": KINDS, "size": SIZES})), losses, metrics=metrics)
    assert {"kind_right", "size_mean_squared_error"} < set(output.metrics["client_work"]["train"])


def test_metrics_by_name_take_the_names_that_are_given():
    constructors = OrderedDict(accuracy=keras.metrics.SparseCategoricalAccuracy, loss=keras.metrics.MeanMetricWrapper)
    constructors["loss"] = lambda: keras.metrics.MeanMetricWrapper(lambda y, p: 0 * p[:, 0] + 7, name="other")
    data = batches((X, KINDS))
    process = algorithms.build_fed_eval(
        lambda: models.functional_model_from_keras(dense(), CROSS, data.element_spec, constructors)
    )
    found = process.next(process.initialize(), [data]).metrics["client_work"]["eval"]["current_round_metrics"]
    assert list(found) == ["accuracy", "loss", "num_examples", "num_batches"]
    assert (found["loss"], found["num_examples"]) == (7, 12)


def test_metrics_whose_states_depend_on_shapes():
    def make():
        return keras.Sequential([keras.Input((6,)), L.Dense(2)])

    data = batches((X, X[:, :2].copy()))
    state, _ = one_round(make, data, "mse", metrics=[keras.metrics.R2Score(), keras.metrics.F1Score(name="f1")])
    evaluation = algorithms.build_fed_eval(
        lambda: fc.learning.from_keras_model(make(), "mse", data.element_spec, [keras.metrics.R2Score()])
    )
    after = evaluation.set_model_weights(evaluation.initialize(), state.model)
    found = evaluation.next(after, [data, data]).metrics["client_work"]["eval"]["current_round_metrics"]
    metric = keras.metrics.R2Score()
    kernel, bias = state.model.trainable
    metric.update_state(np.tile(X[:, :2], (2, 1)), np.tile(X @ kernel + bias, (2, 1)))
    np.testing.assert_allclose(found["r2_score"], metric.result(), rtol=1e-5)


SERIES = RNG.normal(size=(12, 5, 2)).astype(np.float32)


@pytest.mark.parametrize("layer", [L.LSTM, L.GRU, lambda n, **o: L.Bidirectional(L.SimpleRNN(n, **o))])
def test_states_of_layers_go_from_batch_to_batch_of_a_client_and_no_further(layer):
    def make():
        return keras.Sequential([keras.Input(batch_shape=(4, 5, 2)), layer(3, stateful=True), L.Dense(3)])

    data = batches((SERIES, KINDS))
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(make(), CROSS, data.element_spec), RATE
    )
    state = process.initialize()
    assert state.model.non_trainable == fc.learning.ModelWeights.from_model(make()).non_trainable == ()
    want = trained_by_keras(make, state, (SERIES, KINDS), CROSS)
    close(process.next(state, [data]), want)
    close(process.next(state, [data, data]), want)


def test_frozen_layers_stay():
    def make():
        frozen = L.Dense(4, trainable=False)
        return keras.Sequential([keras.Input((6,)), frozen, L.Dense(3)])

    state, output = one_round(make, batches((X, KINDS)), CROSS)
    assert len(state.model.trainable) == 2
    for before, after in zip(state.model.non_trainable, output.state.model.non_trainable, strict=True):
        np.testing.assert_array_equal(before, after)
    close(output, trained_by_keras(make, state, (X, KINDS), CROSS))


def test_models_are_made_inside_of_computations():
    @fc.tf_computation
    def by_keras():
        return fc.learning.ModelWeights.from_model(dense())

    @fc.tf_computation
    def by_model():
        metrics = [keras.metrics.SparseCategoricalAccuracy()]
        model = fc.learning.from_keras_model(dense(), CROSS, batches((X, KINDS)).element_spec, metrics)
        weights = model.initial_weights()
        return weights, model.predict_on_batch(weights, X)

    assert [w.shape for w in by_keras().trainable] == [(6, 3), (3,)]
    weights, predictions = by_model()
    kernel, bias = weights.trainable
    assert kernel.std() > 0.1
    np.testing.assert_allclose(predictions, X @ kernel + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("labels", [KINDS, KINDS[:, None], KINDS.astype(np.float32)], ids=["flat", "column", "floats"])
def test_a_generalised_cross_entropy_takes_numbers_of_classes(labels):
    def make():
        return keras.Sequential([keras.Input((6,)), L.Dense(3, activation="softmax")])

    loss = keras.losses.CategoricalGeneralizedCrossEntropy()
    state, output = one_round(make, batches((X, labels)), loss)
    close(output, trained_by_keras(make, state, (X, labels), loss))


class Parts(keras.metrics.Metric):
    """A metric whose result is a dict."""

    def __init__(self, name="parts"):
        super().__init__(name=name)
        self.error = self.add_variable((), "zeros", name="error")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.error.assign_add(keras.ops.sum(y_pred - y_true))
        self.count.assign_add(keras.ops.cast(keras.ops.size(y_true), "float32"))

    def result(self):
        return {"bias": self.error / self.count, "inner": {"entries": self.count}}


def test_entries_of_a_metric_that_is_a_dict_have_the_names_of_fit():
    def make():
        return keras.Sequential([keras.Input((6,)), L.Dense(1, kernel_initializer="ones")])

    data, model = batches((X, SIZES)), make()
    model.compile(loss="mse", metrics=["mae", Parts()], jit_compile=False)
    want = model.evaluate(X, SIZES, batch_size=4, return_dict=True, verbose=0)
    assert set(want) == {"loss", "mae", "bias", "entries"}

    def model_fn():
        return fc.learning.from_keras_model(make(), "mse", data.element_spec, ["mae", Parts()])

    process = algorithms.build_fed_eval(
        model_fn, metrics_aggregator=fc.learning.metrics.add_client_quantiles(quantiles=[0.5])
    )
    found = process.next(process.initialize(), [data]).metrics["client_work"]["eval"]["current_round_metrics"]
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4)
        np.testing.assert_allclose(found["per_client"][name], [value], rtol=1e-4)
    finalizers = model_fn().metric_finalizers()
    assert finalizers["parts"]([3.0, 2.0])["bias"] == 1.5


def test_a_label_assertion_sees_the_labels_of_batches_only():
    def loss(y_true, y_pred):
        with tf.control_dependencies([tf.debugging.assert_greater(tf.reduce_sum(abs(y_true)), 0.0)]):
            return tf.reduce_mean((y_true - y_pred) ** 2)

    def make():
        return keras.Sequential([keras.Input((6,)), L.Dense(1)])

    state, output = one_round(make, batches((X, SIZES)), loss)
    close(output, trained_by_keras(make, state, (X, SIZES), loss))


def test_scalar_weights_of_all_roles_keep_their_shapes():
    class Scaled(keras.Model):
        def __init__(self):
            super().__init__()
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
            self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")
            self.offset = self.add_weight(shape=(), initializer="ones", trainable=False, name="offset")

        def call(self, x, training=False):
            if training:
                self.steps.assign_add(1.0)
            return keras.ops.sum(x, -1, keepdims=True) * self.scale + self.offset

    state, output = one_round(Scaled, batches((X, SIZES)), "mse")
    close(output, trained_by_keras(Scaled, state, (X, SIZES), "mse"))
    assert [np.shape(w) for w in output.state.model.non_trainable] == [(), ()]
    assert [float(w) for w in output.state.model.non_trainable] == [3.0, 1.0]

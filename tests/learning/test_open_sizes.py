"""Types whose sizes are open: models know the sizes of examples, and a step is traced for any number of them."""

import functools
from collections import OrderedDict

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import ClientError, TracingError
from fedcore.learning import algorithms, models

L = keras.layers
RNG = np.random.default_rng(0)
SERIES = np.sin(np.arange(40) / 3).astype(np.float32)
X = RNG.normal(size=(8, 6)).astype(np.float32)
Y = RNG.normal(size=(8, 3)).astype(np.float32)
IMAGES = RNG.normal(size=(8, 8, 8, 1)).astype(np.float32)
LARGE = np.tile(IMAGES, (1, 2, 2, 1))
KINDS = RNG.integers(0, 3, (8, 1)).astype(np.int32)
CROSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
STEPS = RNG.normal(size=(10, 5, 1)).astype(np.float32)


def opened(*columns, batch=4):
    """A dataset of batches, of which all sizes are open."""

    def batches():
        for i in range(0, len(columns[0]), batch):
            yield tuple(column[i : i + batch] for column in columns)

    specs = tuple(tf.TensorSpec([None] * c.ndim, c.dtype) for c in columns)
    return tf.data.Dataset.from_generator(batches, output_signature=specs)


def windows():
    parts = tf.data.Dataset.from_tensor_slices(SERIES).window(13, shift=1, drop_remainder=True)
    return parts.flat_map(lambda part: part.batch(13)).batch(4).map(lambda part: (part[:, :-1], part[:, -1:]))


def by_name(data):
    return data.map(lambda a, b, y: ({"a": a, "b": b}, y))


def dense(inputs, units):
    return keras.Sequential([keras.Input((inputs,)), L.Dense(4, "tanh"), L.Dense(units)])


def convolution():
    return keras.Sequential([keras.Input((8, 8, 1)), L.Conv2D(2, 3, activation="relu"), L.Flatten(), L.Dense(3)])


def fully_convolutional():
    return keras.Sequential([keras.Input((None, None, 1)), L.Conv2D(2, 3, padding="same"), L.Conv2D(1, 1)])


def large_strides():
    return keras.Sequential(
        [keras.Input((None, None, 1)), L.Conv2D(2, 5, strides=2), L.Conv2D(2, 5), L.GlobalMaxPooling2D(), L.Dense(3)]
    )


def recurrent():
    return keras.Sequential([keras.Input((None, 1)), L.LSTM(3, return_sequences=True), L.Dense(1)])


def two_inputs():
    a, b = keras.Input((6,), name="a"), keras.Input((2,), name="b")
    return keras.Model({"a": a, "b": b}, L.Dense(3)(L.Concatenate()([a, b])))


class Flipped(L.Layer):
    """A layer that asks for the size of an example as a number of Python."""

    def call(self, x):
        return tf.reshape(x[:, ::-1], [-1, x.shape[1]]) * tf.ones([x.shape[1]])


def asks_for_the_size():
    return keras.Sequential([keras.Input((6,)), Flipped(), L.Dense(3)])


def two_outputs():
    x = keras.Input((6,))
    return keras.Model(x, {"kind": L.Dense(3, name="kind")(x), "size": L.Dense(2, name="size")(x)})


def two_labels():
    return opened(X, KINDS, Y[:, :2]).map(lambda x, kind, size: (x, {"kind": kind, "size": size}))


class ByLength(keras.Model):
    """Decides by a size that is known while a step is traced only where the type tells it."""

    def __init__(self):
        super().__init__()
        self.last = L.Dense(3)

    def build(self, shape):
        self.last.build((None, 1))

    def call(self, x):
        factor = 2.0 if x.shape[1] is None else 3.0
        return factor * self.last(tf.reduce_sum(x, 1, keepdims=True))


def halves(labels, predictions):
    first, second = tf.split(predictions - labels, 2)
    return tf.reduce_mean((first - second) ** 2)


CASES = {
    "windows": (lambda: dense(12, 1), windows, "mse"),
    "labels like the outputs": (lambda: dense(6, 3), lambda: opened(X, Y), "mse"),
    "a layer that asks for a size": (asks_for_the_size, lambda: opened(X, Y), "mse"),
    "classes": (lambda: dense(6, 3), lambda: opened(X, KINDS[:, 0]), CROSS()),
    "classes in a column": (lambda: dense(6, 3), lambda: opened(X, KINDS), CROSS()),
    "classes in a column, one ignored": (lambda: dense(6, 3), lambda: opened(X, KINDS), CROSS(ignore_class=0)),
    "classes of a known number of examples": (
        lambda: dense(6, 3),
        lambda: opened(X, KINDS).map(lambda x, y: (x, tf.ensure_shape(y, [4, None]))),
        CROSS(),
    ),
    "classes of time steps": (
        lambda: keras.Sequential([keras.Input((5, 1)), L.Dense(3)]),
        lambda: opened(STEPS[:8], np.tile(KINDS[:, None], (1, 5, 1))),
        CROSS(),
    ),
    "classes of one output": (two_outputs, two_labels, {"kind": CROSS(), "size": "mse"}),
    "sample weights": (lambda: dense(6, 3), lambda: opened(X, Y, np.abs(X[:, 0])), "mse"),
    "images of a fixed size": (convolution, lambda: opened(IMAGES, Y), "mse"),
    "images of any size": (
        fully_convolutional,
        lambda: opened(IMAGES, IMAGES).map(lambda x, y: (tf.ensure_shape(x, [None, None, None, 1]), y)),
        "mse",
    ),
    "images that are large enough": (
        large_strides,
        lambda: opened(LARGE, Y).map(lambda x, y: (tf.ensure_shape(x, [None, None, None, 1]), y)),
        "mse",
    ),
    "time steps": (
        recurrent,
        lambda: opened(STEPS[:8], STEPS[:8]).map(lambda x, y: (tf.ensure_shape(x, [None, None, 1]), y)),
        "mse",
    ),
    "several inputs": (two_inputs, lambda: by_name(opened(X, X[:, :2], Y)), "mse"),
    "a branch by an open size": (ByLength, lambda: opened(X, Y), "mse"),
    "a branch by a known size": (ByLength, lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), "mse"),
    "a batch in two halves": (lambda: dense(6, 3), lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), halves),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_model_trains_as_by_fit(name):
    make, data, loss = CASES[name]
    model, process = (
        make(),
        algorithms.build_weighted_fed_avg(
            lambda: fc.learning.from_keras_model(make(), loss, data().element_spec), lambda: keras.optimizers.SGD(0.05)
        ),
    )
    state = process.initialize()
    if not model.built:
        model.build((None, 6))
    process.get_model_weights(state).assign_weights_to(model)
    in_a_graph = name == "a branch by an open size"  # Keras' graphs of a step leave open what the type does
    model.compile(keras.optimizers.SGD(0.05), loss, jit_compile=False, run_eagerly=not in_a_graph)
    history = model.fit(data(), shuffle=False, verbose=0).history
    state, metrics = process.next(state, [data()])
    for weights, expected in zip(state.global_model_weights.trainable, model.trainable_variables, strict=True):
        np.testing.assert_allclose(weights, expected.numpy(), rtol=1e-4, atol=1e-5)
    if loss == "mse" and len(data().element_spec) == 2:
        np.testing.assert_allclose(metrics["client_work"]["train"]["loss"], history["loss"][0], rtol=1e-4)


def test_sizes_that_nothing_tells_are_refused_with_a_fix():
    with pytest.raises(TracingError, match=r"(?s)leaves sizes of examples open.*tf\.ensure_shape\(x, \[None, n\]\)"):
        fc.learning.from_keras_model(keras.Sequential([L.Dense(1)]), "mse", opened(X, Y).element_spec)


def test_metrics_of_open_labels_are_made_for_the_sizes_of_the_outputs():
    model = fc.learning.from_keras_model(dense(6, 3), "mse", opened(X, Y).element_spec, [keras.metrics.R2Score()])
    assert (3,) in [v.shape for v in model.initial_metrics()["own"]["r2_score"]]


def test_accuracy_of_open_classes_counts_classes():
    data = opened(X, KINDS)
    model = dense(6, 3)
    make = functools.partial(fc.learning.from_keras_model, model, CROSS(), data.element_spec, ["accuracy"])
    process = algorithms.build_fed_eval(make)
    metrics = process.next(process.initialize(), [data]).metrics["client_work"]["eval"]["current_round_metrics"]
    model.compile(loss=CROSS(), metrics=["accuracy"], jit_compile=False)
    assert metrics["accuracy"] == pytest.approx(model.evaluate(X, KINDS, verbose=0, return_dict=True)["accuracy"])


def test_an_input_of_another_size_than_the_models_is_an_error():
    model = asks_for_the_size()
    process = algorithms.build_fed_eval(lambda: fc.learning.from_keras_model(model, "mse", opened(X, Y).element_spec))
    with pytest.raises(ClientError, match=r"\[4,5\] is not compatible with expected shape \[\?,6\]"):
        process.next(process.initialize(), [opened(X[:, :5], Y)])


def stateful():
    return keras.Sequential(
        [keras.Input(batch_shape=(4, None, 1)), L.LSTM(3, stateful=True, name="memory"), L.Dense(1)], name="net"
    )


def test_a_batch_that_is_too_small_for_the_states_of_a_layer_names_it():
    data = tf.data.Dataset.from_tensor_slices((STEPS, STEPS[:, 0])).batch(4)
    process = algorithms.build_fed_eval(lambda: fc.learning.from_keras_model(stateful(), "mse", data.element_spec))
    process.next(process.initialize(), [data.take(2)])
    says = (
        r"memory \(LSTM\) of net keeps states for 4 examples, and a batch has 2; fix: dataset.batch\(4, drop_remainder"
    )
    with pytest.raises(ClientError, match=says):
        process.next(process.initialize(), [data])


def test_a_model_of_a_fixed_batch_size_without_states_takes_a_smaller_batch():
    model = keras.Sequential([keras.Input(batch_shape=(4, 6)), L.Dense(3)])
    data = tf.data.Dataset.from_tensor_slices((X[:6], Y[:6])).batch(4)
    process = algorithms.build_fed_eval(lambda: fc.learning.from_keras_model(model, "mse", data.element_spec))
    metrics = process.next(process.initialize(), [data]).metrics["client_work"]["eval"]["current_round_metrics"]
    np.testing.assert_allclose(metrics["loss"], np.mean((model.predict(X[:6], verbose=0) - Y[:6]) ** 2), rtol=1e-5)


class UserEmbedding(L.Layer):
    """One row for the client, whatever the batch."""

    def build(self, shape):
        self.row = self.add_weight(shape=(1, 4), initializer="ones", name="row")

    def call(self, x):
        return self.row

    def compute_output_shape(self, shape):
        return (1, 4)


class RatingAccuracy(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(tf.less_equal(tf.abs(y_true - y_pred), 0.5), sample_weight)


def factorization():
    item = keras.Input((1,), name="item")
    items, user = L.Embedding(9, 4), UserEmbedding()
    predictions = L.Dot(1)([user(item), L.Flatten()(items(item))])
    return models.ReconstructionModel.from_keras_model_and_layers(
        keras.Model(item, predictions),
        global_layers=[items],
        local_layers=[user],
        input_spec=OrderedDict(x=tf.TensorSpec([None, 1], tf.int64), y=tf.TensorSpec([None, 1])),
    )


def test_a_matrix_is_factorised_with_a_row_for_each_client():
    options = {
        "loss_fn": keras.losses.MeanSquaredError,
        "metrics_fn": lambda: [RatingAccuracy(name="rating_accuracy")],
        "reconstruction_optimizer_fn": lambda: keras.optimizers.SGD(0.1),
    }
    process = algorithms.build_fed_recon(
        factorization,
        server_optimizer_fn=lambda: keras.optimizers.SGD(1.0),
        client_optimizer_fn=lambda: keras.optimizers.SGD(0.5),
        **options,
    )
    ratings = RNG.normal(size=(9, 1)).astype(np.float32)
    data = fc.data.ClientDataset.from_columns(OrderedDict(x=np.arange(9)[:, None], y=ratings)).batch(9)
    data = data.repeat(2)  # one batch for the reconstruction, one after it
    state = process.initialize()
    (items,), row = process.get_model_weights(state).trainable, np.ones([1, 4], np.float32)
    row = row - 0.1 * 2 / 9 * (items @ row.T - ratings).T @ items
    items = items - 0.5 * 2 / 9 * (items @ row.T - ratings) @ row
    state, _ = process.next(state, [data])
    np.testing.assert_allclose(process.get_model_weights(state).trainable[0], items, rtol=1e-4, atol=1e-6)
    evaluation = algorithms.build_fed_recon_eval(factorization, **options)
    evaluated = evaluation.set_model_weights(evaluation.initialize(), process.get_model_weights(state))
    row = 1 - 0.1 * 2 / 9 * (items.sum(1, keepdims=True) - ratings).T @ items
    metrics = evaluation.next(evaluated, [data]).metrics["client_work"]["eval"]["current_round_metrics"]
    right = np.mean(np.abs(items @ row.T - ratings) <= 0.5)
    np.testing.assert_allclose(metrics["rating_accuracy"], right, rtol=1e-5)

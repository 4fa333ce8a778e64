"""Keras models of many kinds: a round with one client is what Keras' own train_on_batch does."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from onednn_faults import needs_bfloat16

import fedcore as fc
from fedcore.errors import InvalidValue, TracingError
from fedcore.learning import algorithms

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 12).astype(np.int32)
WORDS = RNG.integers(0, 9, (12, 3)).astype(np.int32)
IMAGES = RNG.normal(size=(12, 6, 6, 1)).astype(np.float32)
CROSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = L.Dense(4, activation="relu"), L.Dense(3)

    def call(self, x):
        return self.out(self.hidden(x))


@keras.saving.register_keras_serializable("tests")
class Scaled(L.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        self.add_loss(0.1 * keras.ops.sum(keras.ops.square(self.scale)))
        return x * self.scale


class OfUnknownSize(L.Layer):
    """Keeps all features; their number is known at run time only."""

    def call(self, x):
        return tf.gather(x, tf.where(x[0, 0] == x[0, 0])[:, 0], axis=2)

    def compute_output_shape(self, shape):
        return shape


def sequential(*layers, shape=(6,), dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers])


def functional():
    x = keras.Input((6,))
    h = L.Dense(4, activation="tanh")(x)
    return keras.Model(x, L.Dense(3)(L.Concatenate()([h, x])))


def attention():
    x = keras.Input((3,), dtype="int32")
    h = L.Embedding(9, 4)(x)
    h = L.MultiHeadAttention(2, 3)(h, h)
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(h)))


def mirrored():
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        return sequential(L.Dense(4), L.Dense(3))


MODELS = {
    "sequential": (lambda: sequential(L.Dense(4, kernel_regularizer="l2"), L.Dense(3)), X),
    "functional": (functional, X),
    "subclassed": (Subclassed, X),
    "custom layer with a loss": (lambda: sequential(Scaled(), L.Dense(3)), X),
    "batch normalization": (lambda: sequential(L.Dense(4), L.BatchNormalization(momentum=0.5), L.Dense(3)), X),
    "sizes of run time": (
        lambda: sequential(L.Reshape((6, 1)), OfUnknownSize(), L.Dense(2), L.GlobalAveragePooling1D(), L.Dense(3)),
        X,
    ),
    "layer normalization": (lambda: sequential(L.LayerNormalization(), L.Dense(3)), X),
    "embedding, gru": (lambda: sequential(L.Embedding(9, 4), L.GRU(3), L.Dense(3), shape=(3,), dtype="int32"), WORDS),
    "mirrored": (mirrored, X),
    "separable": (
        lambda: sequential(L.SeparableConv2D(2, 3), L.GlobalAveragePooling2D(), L.Dense(3), shape=(6, 6, 1)),
        IMAGES,
    ),
    "einsum": (
        lambda: sequential(
            *(L.Embedding(9, 4), L.EinsumDense("abc,cd->abd", (None, 3)), L.GlobalAveragePooling1D(), L.Dense(3)),
            shape=(3,),
            dtype="int32",
        ),
        WORDS,
    ),
    "attention": (attention, WORDS),
    "convolution, batch normalization, pooling": (
        lambda: sequential(
            *(L.Conv2D(2, 3), L.BatchNormalization(), L.MaxPooling2D(), L.Flatten(), L.Dense(3)), shape=(6, 6, 1)
        ),
        IMAGES,
    ),
    "repeated": (lambda: sequential(L.Dense(4), L.RepeatVector(3), L.SimpleRNN(3), L.Dense(3)), X),
    "masked": (
        lambda: sequential(L.Embedding(9, 4, mask_zero=True), L.LSTM(3), L.Dense(3), shape=(3,), dtype="int32"),
        WORDS,
    ),
}


IN_THE_ZOO = {
    *("functional", "subclassed", "layer normalization", "separable", "einsum", "attention", "repeated", "masked"),
}
"""tests/zoo has models of these layers, of which a sample runs with the tests."""


def dataset(x, y, batch=4):
    return fc.data.ClientDataset.from_columns((x, y)).batch(batch)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in IN_THE_ZOO else ()) for name in MODELS]
)
def test_a_round_of_one_client_is_what_keras_does(name):
    make, x = MODELS[name]
    data = dataset(x, Y)
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(make(), CROSS, data.element_spec), lambda: keras.optimizers.SGD(0.1)
    )
    state = process.initialize()
    model = make()
    model(x[:1])
    state.model.assign_weights_to(model)
    model.compile(keras.optimizers.SGD(0.1), CROSS, run_eagerly=True)  # Keras would compile a graph with XLA
    for i in range(0, 12, 4):
        model.train_on_batch(x[i : i + 4], Y[i : i + 4])
    after = process.next(state, [data]).state.model
    want = fc.learning.ModelWeights.from_model(model)
    for a, b in zip((*after.trainable, *after.non_trainable), (*want.trainable, *want.non_trainable), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_model_with_dropout_runs_stacked_and_drops_the_same():
    data = dataset(X, Y)
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(sequential(L.Dropout(0.3), L.Dense(3)), CROSS, data.element_spec),
        lambda: keras.optimizers.SGD(0.1),
    )
    assert process.next.to_module("planned").function("clients").attributes["strategy"] == "vectorised"
    state = process.initialize.invoke(seed=2)
    cohort = [dataset(X[:n], Y[:n]) for n in (4, 12, 7, 1)]
    stacked = process.next(state, cohort).state.model.trainable
    with fc.use(fc.runtime.reference()):
        alone = process.next(state, cohort).state.model.trainable
    for a, b in zip(stacked, alone, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_moving_statistics_are_averaged_by_weight():
    make = MODELS["batch normalization"][0]
    data = [dataset(X[:4], Y[:4]), dataset(X[4:], Y[4:])]
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(make(), CROSS, data[0].element_spec), lambda: keras.optimizers.SGD(0.1)
    )
    state = process.initialize()
    both = process.next(state, data).state.model.non_trainable
    alone = [process.next(state, [d]).state.model.non_trainable for d in data]
    for mean, a, b in zip(both, *alone, strict=True):
        np.testing.assert_allclose(mean, (4 * a + 8 * b) / 12, rtol=1e-5)


def test_several_inputs_and_outputs_with_losses_weights_and_metrics():
    def make():
        a, b = keras.Input((6,), name="a"), keras.Input((5,), name="b")
        h = L.Concatenate()([L.Dense(4)(a), b])
        return keras.Model({"a": a, "b": b}, {"kind": L.Dense(3)(h), "size": L.Dense(1)(h)})

    inputs, labels = {"a": X, "b": X[:, :5]}, {"kind": Y, "size": X[:, :1]}
    data = dataset(inputs, labels)
    losses, weights = {"kind": CROSS, "size": keras.losses.MeanSquaredError()}, {"kind": 1.0, "size": 0.3}

    def model_fn():
        metrics = {"kind": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]}
        return fc.learning.from_keras_model(make(), losses, data.element_spec, metrics, weights)

    process = algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
    state = process.initialize()
    model = make()
    state.model.assign_weights_to(model)
    model.compile(keras.optimizers.SGD(0.1), losses, loss_weights=weights, run_eagerly=True)
    for i in range(0, 12, 4):
        rows = slice(i, i + 4)
        model.train_on_batch({k: v[rows] for k, v in inputs.items()}, {k: v[rows] for k, v in labels.items()})
    after, metrics = process.next(state, [data])
    for a, b in zip(after.model.trainable, model.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)
    assert 0 <= metrics["client_work"]["train"]["kind_accuracy"] <= 1


@pytest.mark.parametrize("policy", [pytest.param("mixed_bfloat16", marks=needs_bfloat16), "mixed_float16"])
def test_mixed_precision_keeps_float32_weights_and_learns(policy):
    def model_fn():
        layers = [L.Dense(16, activation="relu", dtype=policy), L.Dense(3, dtype="float32")]
        return fc.learning.from_keras_model(sequential(*layers), CROSS, dataset(X, Y).element_spec)

    process = algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
    state, losses = process.initialize(), []
    for _ in range(5):
        state, metrics = process.next(state, [dataset(X, Y)])
        losses.append(metrics["client_work"]["train"]["loss"])
    assert {w.dtype for w in state.model.trainable} == {np.dtype(np.float32)}
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("prox", [{}, {"proximal_strength": 0.5}], ids=["fed_avg", "fed_prox"])
def test_scaled_losses_have_gradients_that_float16_cannot_hold(prox):
    def small_loss(labels, predictions):
        return 1e-7 * tf.reduce_mean(tf.square(tf.cast(predictions, tf.float32) - 1.0), -1)

    def model_fn():
        net = sequential(L.Dense(3, dtype="mixed_float16", kernel_initializer="zeros"))
        return fc.learning.from_keras_model(net, small_loss, dataset(X, Y).element_spec)

    def change(optimizer_fn):
        build = algorithms.build_weighted_fed_prox if prox else algorithms.build_weighted_fed_avg
        process = build(model_fn, client_optimizer_fn=optimizer_fn, **prox)
        state = process.initialize()
        return process.next(state, [dataset(X, Y)]).state.model.trainable[0] - state.model.trainable[0]

    assert not change(lambda: keras.optimizers.SGD(0.1)).any()
    assert change(lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))).any()


def test_dropout_is_off_in_evaluation():
    def model_fn():
        return fc.learning.from_keras_model(sequential(L.Dropout(0.9), L.Dense(3)), CROSS, dataset(X, Y).element_spec)

    evaluation = algorithms.build_fed_eval(model_fn)
    state = evaluation.initialize()
    kernel, bias = state.model.trainable
    _, metrics = evaluation.next(state, [dataset(X, Y)])
    want = CROSS(Y, X @ kernel + bias)
    np.testing.assert_allclose(metrics["client_work"]["eval"]["current_round_metrics"]["loss"], want, rtol=1e-5)


def test_the_type_of_a_batch_comes_from_the_model_or_from_a_sample():
    model = sequential(L.Dense(3))
    assert str(fc.learning.from_keras_model(model, CROSS).batch_type) == "<float32[?,6],int32[?]>"
    assert str(fc.learning.from_keras_model(model, "mse").batch_type) == "<float32[?,6],float32[?,3]>"
    assert str(fc.learning.from_keras_model(model, CROSS, (X, Y)).batch_type) == "<float32[?,6],int32[?]>"


def test_a_model_made_outside_starts_from_the_values_that_it_has():
    model = sequential(L.Dense(3))
    model.layers[0].bias.assign([1.0, 2.0, 3.0])
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(model, CROSS), lambda: keras.optimizers.SGD(0.1)
    )
    for a, b in zip(process.initialize().model.trainable, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


def test_integer_variables_stay_as_they_are_and_are_not_sent():
    class Counting(L.Layer):
        def build(self, shape):
            self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

        def call(self, x):
            return x

    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(sequential(Counting(), L.Dense(3)), CROSS),
        lambda: keras.optimizers.SGD(0.1),
    )
    assert process.initialize().model.non_trainable == ()


class Python(L.Layer):
    def call(self, x):
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), x.shape)


class Hidden(L.Layer):
    def __init__(self):
        super().__init__(name="hidden")
        self.calls = {"n": tf.Variable(0.0)}

    def call(self, x):
        self.calls["n"].assign_add(1.0)
        return x + self.calls["n"]


class Table(L.Layer):
    def __init__(self):
        super().__init__(name="table")
        self.held = [tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, 0)]

    def call(self, x):
        return x + tf.ensure_shape(tf.cast(self.held[0].lookup(tf.cast(x, tf.int32)), tf.float32), x.shape)


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (Python, r"the layer python \(Python\) of \w+ calls Python .* Write it with keras.ops"),
        (Hidden, r"the layer hidden \(Hidden\) of \w+ keeps a tf.Variable .* self.add_weight"),
        (Table, r"the layer table \(Table\) of \w+ looks up in a table that may change.* dataset.map"),
    ],
)
def test_a_layer_that_is_not_pure_is_named(layer, says):
    keras.utils.clear_session(free_memory=False)  # names of layers begin anew
    with pytest.raises(TracingError, match=says):
        fc.learning.from_keras_model(sequential(layer(), L.Dense(3)), CROSS, dataset(X, Y).element_spec)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: fc.learning.from_keras_model(sequential(L.Dense(3)), CROSS, (X[:, :5], Y)), r"float32\[\?,5\]"),
        (lambda: fc.learning.from_keras_model(sequential(L.Dense(3)), CROSS, (X, X)), r"the loss of .*labels of type"),
        (lambda: fc.learning.from_keras_model(Subclassed(), CROSS), "does not tell its inputs; give input_spec"),
        (lambda: fc.learning.from_keras_model(L.Dense(3), CROSS), "takes a Keras 3 model"),
        (lambda: fc.learning.from_keras_model(sequential(L.Dense(3)), {"b": CROSS}), "names the output 'b'"),
        (
            lambda: fc.learning.from_keras_model(
                sequential(L.Dense(3)), CROSS, metrics=["acc", "acc"], weighted_metrics={"acc_1": "acc"}
            ),
            "two metrics named acc",
        ),
    ],
)
def test_what_does_not_fit_is_named(make, says):
    with pytest.raises(TracingError, match=says):
        make()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((CROSS, X), "a batch is a pair"),
        ((CROSS, {"a": X, "b": Y}), "the keys x and y"),
        (
            ([CROSS, CROSS], (X, (Y, Y, Y))),
            r"the loss of three is a list of 2 for 3 outputs; give one for each, and None",
        ),
        (([CROSS, None, CROSS], (X, (Y, Y, Y)), None, [0.5, 0.5]), "loss_weights of three is a list of 2 for 3 losses"),
    ],
)
def test_a_batch_or_a_list_that_does_not_fit_the_outputs_is_an_invalid_value(arguments, says):
    inputs = keras.Input((6,))
    outputs = [L.Dense(3)(inputs) for _ in range(3)]
    with pytest.raises(InvalidValue, match=says):
        fc.learning.from_keras_model(keras.Model(inputs, outputs, name="three"), *arguments)

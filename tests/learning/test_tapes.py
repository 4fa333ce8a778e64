"""Gradients that a user's model takes itself, by tapes and otherwise, are those of Keras' `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.learning import algorithms, models

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
Y = RNG.normal(size=(8, 1)).astype(np.float32)
DATA = fc.data.ClientDataset.from_columns((X, Y)).batch(4)
RATE = 0.1


class Penalised(keras.Model):
    """Two layers; `predict` is called in `call`, `penalty` in `compute_loss`."""

    def __init__(self, penalty=None, predict=None):
        super().__init__()
        self.first = L.Dense(5, "tanh", kernel_initializer=keras.initializers.GlorotUniform(1))
        self.last = L.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2))
        self.penalty, self.predict_by = penalty, predict

    def build(self, shape):
        self.first.build(shape)
        self.last.build((None, 5))

    def both(self, x):
        return self.last(self.first(x))

    def call(self, x):
        return self.both(x) if self.predict_by is None else self.predict_by(self, x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = tf.reduce_mean((y - y_pred) ** 2)
        return loss if self.penalty is None else loss + 0.1 * self.penalty(self, x, y, y_pred)


def squares(gradients):
    return tf.add_n([tf.reduce_sum(g**2) for g in tf.nest.flatten(gradients) if g is not None])


def loss_of(model, x, y):
    return tf.reduce_mean((model.both(x) - y) ** 2)


def by_inputs(model, x, y, y_pred):
    with tf.GradientTape() as tape:
        tape.watch(x)
        predictions = model(x, training=True)
    return squares(tape.gradient(predictions, x))


def by_predictions(model, x, y, y_pred):
    with tf.GradientTape() as tape:
        tape.watch(y_pred)
        loss = tf.reduce_sum(y_pred**3)
    return squares(tape.gradient(loss, y_pred))


def persistent(model, x, y, y_pred):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        predictions = model.both(x)
        cubes = predictions**3
    return squares([tape.gradient(predictions, x), tape.gradient(cubes, x)])


def adversarial(model, x, y, y_pred):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = loss_of(model, x, y)
    return loss_of(model, x + 0.1 * tf.sign(tape.gradient(loss, x)), y)


def by_variables(model, x, y, y_pred):
    with tf.GradientTape() as tape:
        loss = loss_of(model, x, y)
    return squares(tape.gradient(loss, model.trainable_variables))


def by_values_of_variables(model, x, y, y_pred):
    kernels = {"first": model.first.kernel.value, "last": model.last.kernel}
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch([model.first.kernel.value, model.last.kernel.value])
        loss = loss_of(model, x, y)
    return squares(tape.gradient(loss, kernels))


def by_watched_variables(model, x, y, y_pred):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model.first(x) ** 2)
    assert len(tape.watched_variables()) == 2
    return squares(tape.gradient(loss, tape.watched_variables()))


def second(model, x, y, y_pred):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            predictions = model.both(x)
        gradient = inner.gradient(predictions, x)
    return squares(outer.gradient(gradient, x))


def without_tape(model, x, y, y_pred):
    return squares([tf.gradients(model.both(x), x), tf.gradients(y_pred, [model.last.kernel.value])])


def jacobians(model, x, y, y_pred):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        hidden = model.first(x)
        mean = tf.reduce_mean(hidden, 0)
    return squares([tape.batch_jacobian(hidden, x), tape.jacobian(mean, model.first.kernel)])


def forward(model, x, y, y_pred):
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        predictions = model.both(x)
    return squares(accumulator.jvp(predictions))


def own_gradient(model, x, y, y_pred):
    @tf.custom_gradient
    def tripled(z):
        return z**2, lambda upstream: 3 * upstream * z

    with tf.GradientTape() as tape:
        tape.watch(x)
        predictions = tripled(model.both(x))
    return squares(tape.gradient(predictions, x))


def call_by_inputs(model, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        predictions = model.both(x)
    return predictions + tf.reduce_sum(tape.gradient(predictions, x), -1, keepdims=True)


def call_by_hidden_values(model, x):
    hidden = model.first(x)
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        predictions = model.last(hidden)
    return predictions + tf.reduce_sum(tape.gradient(predictions, hidden) ** 2, -1, keepdims=True)


def call_without_tape(model, x):
    predictions = model.both(x)
    return predictions + tf.reduce_sum(tf.gradients(predictions, x)[0], -1, keepdims=True)


def call_with_tape_in_loop(model, x):
    def body(i, h):
        read_before = model.last(h)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model.last(h) + read_before) ** 2)
        return i + 1, h * (1 - 0.01 * tf.reduce_sum(tape.gradient(loss, model.last.kernel)))

    return model.last(tf.while_loop(lambda i, h: i < 2, body, [0, model.first(x)])[1])


def call_with_traced_function(model, x):
    @tf.function
    def penalty(z):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model.both(z) ** 2)
        return squares(tape.gradient(loss, model.first.kernel))

    model.traced = getattr(model, "traced", penalty)
    return model.both(x) + model.traced(x)


PENALTIES = [
    by_inputs,
    by_predictions,
    persistent,
    adversarial,
    by_variables,
    by_values_of_variables,
    by_watched_variables,
    second,
    without_tape,
    jacobians,
    forward,
    own_gradient,
]
CALLS = [
    call_by_inputs,
    call_by_hidden_values,
    call_without_tape,
    call_with_traced_function,
]


def after_keras(make):
    """The first weights of a model and those after two batches of Keras' training."""
    model = make()
    model.build((None, 4))
    first = tuple(v.numpy() for v in model.trainable_variables)
    model.compile(keras.optimizers.SGD(RATE), jit_compile=False)
    for rows in (slice(0, 4), slice(4, 8)):
        model.train_on_batch(X[rows], Y[rows])
    return first, [v.numpy() for v in model.trainable_variables]


def after_steps(make, first):
    model = models.trace_model(lambda: fc.learning.from_keras_model(make(), None, DATA.element_spec))

    @tf.function
    def train(weights, batch):
        gradients, *_ = models.gradients_of(model, models.ModelWeights(weights, ()), model.initial_metrics(), batch)
        return tuple(w - RATE * g for w, g in zip(weights, gradients, strict=True))

    weights = first
    for batch in DATA:
        weights = train(weights, batch)
    return weights


@pytest.mark.parametrize(
    "options",
    [pytest.param({"penalty": fn}, id=fn.__name__) for fn in PENALTIES]
    + [pytest.param({"predict": fn}, id=fn.__name__) for fn in CALLS],
)
def test_a_gradient_of_the_users_is_that_of_fit(options):
    first, want = after_keras(lambda: Penalised(**options))
    for weights, expected in zip(after_steps(lambda: Penalised(**options), first), want, strict=True):
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [{"penalty": by_inputs}, {"predict": call_with_tape_in_loop}], ids=["loss", "loop"])
def test_clients_train_by_gradients_of_the_users(options):
    def make():
        return Penalised(**options)

    first, want = after_keras(make)
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(make(), None, DATA.element_spec), lambda: keras.optimizers.SGD(RATE)
    )
    state = process.set_model_weights(process.initialize(), models.ModelWeights(first, ()))
    state, _ = process.next(state, [DATA, DATA])
    for weights, expected in zip(state.global_model_weights.trainable, want, strict=True):
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)


def test_a_traced_function_of_a_model_reads_the_weights_of_each_call():
    class Traced(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = L.Dense(1)

        @tf.function
        def call(self, x):
            return self.layer(x)

    model = models.trace_model(lambda: fc.learning.from_keras_model(Traced(), "mse", DATA.element_spec))
    ones = models.ModelWeights((np.ones([4, 1], np.float32), np.zeros(1, np.float32)), ())
    twos = models.ModelWeights((2 * ones.trainable[0], ones.trainable[1]), ())
    first, second = (model.predict_on_batch(weights, X) for weights in (ones, twos))
    np.testing.assert_allclose(second, 2 * np.asarray(first), rtol=1e-6)


def test_a_model_fn_may_train_by_a_tape():
    def make():
        model = keras.Sequential([keras.Input((4,)), L.Dense(1, kernel_initializer="zeros")])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X) - Y) ** 2)
        for variable, gradient in zip(
            model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
        ):
            variable.assign_sub(RATE * gradient)
        return fc.learning.from_keras_model(model, "mse", DATA.element_spec)

    weights = models.trace_model(make).initial_weights()
    np.testing.assert_allclose(weights.trainable[1], RATE * 2 * Y.mean(0), rtol=1e-5)

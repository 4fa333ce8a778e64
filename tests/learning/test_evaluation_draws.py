"""Random numbers in evaluation: others in each batch, client and round, the same for the same seed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.learning import algorithms

L = keras.layers
X = np.zeros((4, 2), np.float32)
ONE, TWO = (fc.data.ClientDataset.from_columns((X[:n], X[:n, :1])).batch(2) for n in (2, 4))


class Draws(L.Layer):
    """The first number that a generator draws, in place of its inputs."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.generator = keras.random.SeedGenerator(1)
        self.dropout = L.Dropout(0.5, seed=3)

    def call(self, x):
        if self.kind == "dropout":
            return 0 * x + tf.reduce_sum(self.dropout(tf.ones([64]), training=True) * tf.range(64.0))
        if self.kind == "loop":
            return 0 * x + tf.while_loop(lambda i, s: i < 1, self._add, (0, 0.0))[1]
        seeds = {"generator": self.generator, "without a seed": None, "number": 7}
        return 0 * x + keras.random.normal((), seed=seeds[self.kind])

    def _add(self, i, total):
        seed = self.generator.state.value
        return i + 1, total + tf.random.stateless_normal((), tf.cast(seed, tf.int64))


def first_prediction(y, prediction):
    return prediction[:, 0]


class DrawingLoss(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(2)

    def call(self, y, prediction):
        return 0 * prediction[:, 0] + keras.random.normal((), seed=self.generator)


class DrawingMetric(keras.metrics.Mean):
    def __init__(self):
        super().__init__(name="drawn")
        self.generator = keras.random.SeedGenerator(2)

    def update_state(self, y, prediction, sample_weight=None):
        super().update_state(keras.random.normal((), seed=self.generator))


def model_fn(kind="number", loss=None, metrics=None):
    def make():
        model = keras.Sequential([keras.Input((2,)), Draws(kind), L.Dense(2, kernel_initializer="identity")])
        made = [metric() for metric in metrics or ()]
        return fc.learning.from_keras_model(model, loss() if loss else first_prediction, ONE.element_spec, made)

    return make


DRAWING = {
    "generator": (model_fn("generator"), "loss"),
    "without a seed": (model_fn("without a seed"), "loss"),
    "dropout that always trains": (model_fn("dropout"), "loss"),
    "in a loop": (model_fn("loop"), "loss"),
    "loss": (model_fn(loss=DrawingLoss), "loss"),
    "metric": (model_fn(metrics=[DrawingMetric]), "drawn"),
}


@pytest.mark.parametrize("name", DRAWING)
def test_clients_rounds_and_batches_draw_other_numbers(name):
    make, metric = DRAWING[name]
    process = algorithms.build_fed_eval(make, per_client=[])

    def drawn(state):
        output = process.next(state, [ONE, ONE, TWO])
        return output.state, [float(m[metric]) for m in output.client_metrics]

    start = process.initialize.invoke(seed=1)
    state, first = drawn(start)
    second = drawn(state)[1]
    assert len({*first, *second}) == 6
    assert drawn(start)[1] == first


def test_the_samples_of_a_client_have_the_variance_of_their_distribution():
    class Moments(keras.metrics.Mean):
        def update_state(self, y, prediction, sample_weight=None):
            super().update_state(prediction[:, 0] ** 2)

    data = fc.data.ClientDataset.from_columns((np.zeros((400, 2), np.float32), np.zeros((400, 1), np.float32))).batch(1)
    process = algorithms.build_fed_eval(model_fn("generator", metrics=[lambda: Moments(name="square")]))
    output = process.next(process.initialize.invoke(seed=1), [data])
    metrics = output.metrics["client_work"]["eval"]["current_round_metrics"]
    assert metrics["square"] - metrics["loss"] ** 2 == pytest.approx(1.0, abs=0.2)


def test_a_seed_that_is_a_number_draws_the_same_as_in_keras():
    process = algorithms.build_fed_eval(model_fn("number"), per_client=[])
    losses = [m["loss"] for m in process.next(process.initialize(), [ONE, TWO]).client_metrics]
    assert losses == [keras.random.normal((), seed=7)] * 2


def test_predictions_and_personalization_draw_too():
    model = model_fn("generator")()
    assert len({float(model.predict_on_batch(X, training=False)[0, 0]) for _ in range(3)}) == 3
    evaluate = algorithms.build_personalization_eval_computation(
        model_fn("generator"), {"own": lambda: keras.optimizers.SGD(0.0)}
    )
    data = {"train_data": ONE, "test_data": ONE}
    metrics = evaluate.invoke(model.initial_weights(), [data, data], seed=1)
    assert len({float(x) for m in metrics.values() for x in m["loss"]}) == 4


class Own(fc.learning.Model):
    """Drops out with a seed, in a Keras layer that none of its lists has."""

    def __init__(self):
        self.kernel = tf.Variable(lambda: tf.ones([2, 1]), name="kernel")
        self.dropout = L.Dropout(0.5, seed=3)

    trainable_variables = property(lambda self: [self.kernel])
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [])
    input_spec = property(lambda self: ONE.element_spec)

    def predict_on_batch(self, x, training=True):
        return tf.reduce_sum(self.dropout(tf.ones([64]), training=True) * tf.range(64.0))

    def forward_pass(self, batch_input, training=True):
        loss = 0 * tf.reduce_sum(self.kernel) + self.predict_on_batch(batch_input[0])
        return fc.learning.BatchOutput(loss, None, tf.shape(batch_input[0])[0])

    def report_local_unfinalized_metrics(self):
        return {}

    def metric_finalizers(self):
        return {}

    def reset_metrics(self):
        pass


def test_a_seeded_layer_of_an_own_model_draws_other_numbers_too():
    process = algorithms.build_fed_eval(Own, per_client=[])
    state = process.initialize.invoke(seed=1)
    losses = [
        float(m["loss"])
        for r in (0, 1)
        for m in process.next(state.replace(round=np.int64(r)), [ONE, ONE, TWO]).client_metrics
    ]
    assert len(set(losses)) == 6

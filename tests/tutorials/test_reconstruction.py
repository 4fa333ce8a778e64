"""The steps of the tutorial on reconstruction: factors of items are learned by all, each user's stay on the device."""

import collections
import functools

import keras
import numpy as np
import tensorflow as tf

import fedcore as tff

ITEMS, FACTORS = 6, 2
SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 1], tf.int64), y=tf.TensorSpec([None, 1], tf.float32))


def ratings(user: int) -> tf.data.Dataset:
    """Ratings that are a product of a factor of the user and one of the item."""
    items = (np.arange(7) + user) % ITEMS
    stars = (1.0 + user % 2) * (1.0 + items % 2)
    table = np.stack([np.full(7, user), items, stars], 1)

    def named(rows):
        return collections.OrderedDict(x=tf.cast(rows[:, 1:2], tf.int64), y=tf.cast(rows[:, 2:3], tf.float32))

    return tf.data.Dataset.from_tensor_slices(table).take(7).shuffle(7, seed=1).batch(3).map(named)


class UserFactors(keras.layers.Layer):
    """The factors of the one user of a device."""

    def build(self, input_shape):
        self.factors = self.add_weight(shape=(1, FACTORS), initializer="ones", dtype=tf.float32, name="Factors")
        super().build(input_shape)

    def call(self, inputs):
        return self.factors

    def compute_output_shape(self, input_shape=None):
        return (1, FACTORS)


def factorization(num_items: int) -> tff.learning.models.ReconstructionModel:
    item = keras.layers.Input(shape=[1], name="Item")
    items = keras.layers.Embedding(num_items, FACTORS, embeddings_initializer="ones", name="Items")
    user = UserFactors(name="User")
    flat = keras.layers.Flatten()(items(item))
    predicted = keras.layers.Dot(1, normalize=False)([user(item), flat])
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
        keras_model=keras.Model(inputs=item, outputs=predicted),
        global_layers=[items],
        local_layers=[user],
        input_spec=SPEC,
    )


class WithinHalfAStar(keras.metrics.Mean):
    def __init__(self, name="within_half_a_star", **options):
        super().__init__(name=name, **options)

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(tf.less_equal(tf.abs(y_true - y_pred), 0.5), sample_weight=sample_weight)


def test_factors_of_users_are_reconstructed_and_those_of_items_learned():
    model_fn = functools.partial(factorization, num_items=ITEMS)
    losses_and_metrics = {"loss_fn": keras.losses.MeanSquaredError, "metrics_fn": lambda: [WithinHalfAStar()]}
    sgd = tff.learning.optimizers.build_sgdm
    training = tff.learning.algorithms.build_fed_recon(
        model_fn=model_fn,
        **losses_and_metrics,
        server_optimizer_fn=sgd(1.0),
        client_optimizer_fn=sgd(0.2),
        reconstruction_optimizer_fn=sgd(0.1),
    )
    evaluation = tff.learning.algorithms.build_fed_recon_eval(
        model_fn, **losses_and_metrics, reconstruction_optimizer_fn=sgd(0.1)
    )

    def evaluate(state, users):
        weights = training.get_model_weights(state)
        first = evaluation.set_model_weights(evaluation.initialize(), weights)
        _, metrics = evaluation.next(first, [ratings(user) for user in users])
        return metrics["client_work"]["eval"]["current_round_metrics"]

    state = training.initialize()
    assert training.get_model_weights(state).trainable[0].shape == (ITEMS, FACTORS)
    untrained = evaluate(state, [4, 5])
    for _ in range(3):
        state, metrics = training.next(state, [ratings(user) for user in range(4)])
    assert {"loss", "within_half_a_star"} <= set(metrics["client_work"]["train"])
    trained = evaluate(state, [4, 5])  # users whom no round had
    assert trained["loss"] < untrained["loss"]
    assert trained["within_half_a_star"] >= untrained["within_half_a_star"]

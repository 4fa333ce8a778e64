"""The steps of the tutorial on text: a trained recurrent model is trained further by clients."""

import collections

import keras
import numpy as np
import tensorflow as tf

import fedcore as tff

VOCABULARY = sorted("abcdr ")
LENGTH, BATCH = 5, 2
TEXTS = {"a": "abracadabra abracadabra abracadabra", "b": "a cab a cab a cab a cab a cab a cab"}


def preprocess(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of sequences of ids, and these a character later."""
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(VOCABULARY, tf.range(len(VOCABULARY), dtype=tf.int64)), default_value=0
    )
    ids = dataset.map(lambda example: table.lookup(tf.strings.bytes_split(example["text"])))
    sequences = ids.unbatch().batch(LENGTH + 1, drop_remainder=True).batch(BATCH, drop_remainder=True)
    return sequences.map(lambda chunk: (chunk[:, :-1], chunk[:, 1:]))


class FlattenedCategoricalAccuracy(keras.metrics.SparseCategoricalAccuracy):
    def __init__(self, name="accuracy", dtype=tf.float32):
        super().__init__(name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        predictions = tf.reshape(y_pred, [-1, len(VOCABULARY)])
        return super().update_state(tf.reshape(y_true, [-1, 1]), predictions, sample_weight)


def keras_model():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(batch_shape=(BATCH, LENGTH), dtype="int64"),
            layers.Embedding(len(VOCABULARY), 4),
            layers.GRU(8, return_sequences=True, stateful=True),
            layers.Dense(len(VOCABULARY)),
        ]
    )


def test_a_trained_model_is_trained_further_by_clients():
    clients = tff.simulation.datasets.TestClientData(
        {name: collections.OrderedDict(text=[text]) for name, text in TEXTS.items()}
    )
    data = [preprocess(clients.create_tf_dataset_for_client(name)).repeat(2) for name in clients.client_ids]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trained = keras_model()

    def model_fn():
        return tff.learning.models.from_keras_model(
            keras.models.clone_model(trained),
            input_spec=data[0].element_spec,
            loss=loss,
            metrics=[FlattenedCategoricalAccuracy()],
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(learning_rate=1.0),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(learning_rate=1.0),
    )
    start = tff.learning.models.ModelWeights(
        trainable=[v.numpy() for v in trained.trainable_weights],
        non_trainable=[v.numpy() for v in trained.non_trainable_weights],
    )
    state, losses = process.set_model_weights(process.initialize(), start), []
    for _ in range(3):
        state, metrics = process.next(state, data)
        losses.append(metrics["client_work"]["train"]["loss"])
    assert losses[2] < losses[0] < np.log(len(VOCABULARY)) + 0.1
    assert 0 < metrics["client_work"]["train"]["accuracy"] <= 1

    process.get_model_weights(state).assign_weights_to(trained)
    trained.compile(loss=loss, metrics=[FlattenedCategoricalAccuracy()])
    x, y = map(np.concatenate, zip(*data[0].as_numpy_iterator(), strict=True))
    value, _ = trained.evaluate(x, y, batch_size=BATCH, verbose=0)
    assert value < losses[0]

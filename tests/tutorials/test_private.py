"""The steps of the tutorials on privacy: words of many clients, and training with differential privacy."""

import keras
import numpy as np
import tensorflow as tf

import fedcore as tff

WORDS = [["tea", "tea", "milk"], ["tea", "rice"], ["rice", "milk", "tea"], ["salt"]]
SPEC = (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None, 1], tf.float32))


def test_words_that_many_clients_have_are_found():
    computation = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=40, string_max_bytes=8, max_words_per_user=4, multi_contribution=False, batch_size=2, k_anonymity=2
    )
    output = computation([tf.data.Dataset.from_tensor_slices(words).batch(2) for words in WORDS])
    counts = dict(zip(output.heavy_hitters, output.heavy_hitters_counts, strict=True))
    assert (output.clients, output.num_not_decoded) == (4, 0)
    assert {word.decode(): int(count) for word, count in counts.items()} == {"tea": 3, "rice": 2, "milk": 2}


def client(number: int) -> tf.data.Dataset:
    points = np.stack([np.arange(6.0) % 3 - 1, np.arange(6.0) % 2], axis=1).astype(np.float32) + 0.1 * number
    return tf.data.Dataset.from_tensor_slices((points, points @ [[1.0], [-1.0]])).map(as_floats).repeat(2).batch(3)


def as_floats(point, label):
    return point, tf.cast(label, tf.float32)


def model_fn():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, kernel_initializer="zeros")])
    return tff.learning.models.from_keras_model(
        model, loss=keras.losses.MeanSquaredError(), input_spec=SPEC, metrics=[keras.metrics.MeanAbsoluteError()]
    )


def train(rounds: int, noise_multiplier: float) -> list[float]:
    """The loss of an evaluation before each round and after the last."""
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, momentum=0.9),
        model_aggregator=tff.learning.dp_aggregator(noise_multiplier, clients_per_round=3),
    )
    evaluation = tff.learning.algorithms.build_fed_eval(model_fn)
    state, evaluated, losses = process.initialize(), evaluation.initialize(), []
    data = [client(number) for number in range(3)]
    for _ in range(rounds + 1):
        evaluated = evaluation.set_model_weights(evaluated, process.get_model_weights(state))
        losses.append(evaluation.next(evaluated, data).metrics["client_work"]["eval"]["current_round_metrics"]["loss"])
        state = process.next(state, data).state
    return losses


def test_training_with_differential_privacy_learns_where_the_noise_is_small():
    losses = train(4, noise_multiplier=0.01)
    assert losses[-1] < losses[0] / 2

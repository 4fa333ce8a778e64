"""The steps of the tutorials on the language: types, computations, selection, random numbers."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import fedcore as tff

BATCH = tff.tensorflow.to_type(
    collections.OrderedDict(x=tf.TensorSpec([None, 2], tf.float32), y=tf.TensorSpec([None], tf.int32))
)
MODEL = tff.tensorflow.to_type(
    collections.OrderedDict(weights=tf.TensorSpec([2, 3], tf.float32), bias=tf.TensorSpec([3], tf.float32))
)
BATCHES = tff.SequenceType(BATCH)
START = collections.OrderedDict(weights=np.zeros([2, 3], np.float32), bias=np.zeros([3], np.float32))


def batches(label: int) -> list:
    x = np.eye(3, 2, dtype=np.float32)
    return [{"x": x, "y": np.full(3, label, np.int32)}, {"x": 2 * x[:1], "y": np.full(1, label, np.int32)}]


@tf.function
def loss_of(model, batch):
    predicted = tf.nn.softmax(tf.matmul(batch["x"], model["weights"]) + model["bias"])
    return -tf.reduce_mean(tf.reduce_sum(tf.one_hot(batch["y"], 3) * tf.math.log(predicted), axis=[1]))


@tff.tensorflow.computation(MODEL, BATCH)
def batch_loss(model, batch):
    return loss_of(model, batch)


@tff.tensorflow.computation(MODEL, BATCH, np.float32)
def train_on_batch(start, batch, rate):
    variables = collections.OrderedDict((name, tf.Variable(value, name=name)) for name, value in start.items())
    optimizer = tf.keras.optimizers.SGD(lambda: rate)

    @tf.function
    def step(variables, batch):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, batch)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(tf.nest.flatten(gradients), tf.nest.flatten(variables), strict=True))
        return variables

    return step(variables, batch)


@tff.federated_computation(MODEL, np.float32, BATCHES)
def train_on_client(start, rate, all_batches):
    @tff.federated_computation((MODEL, np.float32), BATCH)
    def step(model_and_rate, batch):
        model, rate = model_and_rate
        return train_on_batch(model, batch, rate), rate

    trained, _ = tff.sequence_reduce(all_batches, (start, rate), step)
    return trained


@tff.federated_computation(MODEL, BATCHES)
def client_loss(model, all_batches):
    @tff.tensorflow.computation((MODEL, np.float32), BATCH)
    def step(model_and_sum, batch):
        model, total = model_and_sum
        return model, total + batch_loss(model, batch)

    _, total = tff.sequence_reduce(all_batches, (model, 0.0), step)
    return total


@tff.federated_computation(
    tff.FederatedType(MODEL, tff.SERVER),
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(BATCHES, tff.CLIENTS),
)
def train_all(model, rate, data):
    sent = [tff.federated_broadcast(model), tff.federated_broadcast(rate), data]
    return tff.federated_mean(tff.federated_map(train_on_client, sent))


@tff.federated_computation(tff.FederatedType(MODEL, tff.SERVER), tff.FederatedType(BATCHES, tff.CLIENTS))
def loss_of_all(model, data):
    return tff.federated_mean(tff.federated_map(client_loss, [tff.federated_broadcast(model), data]))


def test_types_print_as_in_the_tutorials():
    pair = tff.StructType([("a", np.float32), ("b", np.float32)])
    assert str(tff.FederatedType(pair, tff.CLIENTS, all_equal=True)) == "<a=float32,b=float32>@CLIENTS"
    assert str(BATCH) == "OrderedDict<x=float32[?,2],y=int32[?]>"
    assert str(train_on_client.type_signature.result) == "OrderedDict<weights=float32[2,3],bias=float32[3]>"


@tff.tensorflow.computation(tff.SequenceType(np.float32))
def mean_of_readings(readings):
    total, count = readings.reduce((0.0, 0), lambda state, reading: (state[0] + reading, state[1] + 1))
    return total / tf.cast(count, tf.float32)


def test_the_first_computations_have_the_types_and_results_of_the_tutorial():
    readings = tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    mean = tff.federated_computation(lambda xs: tff.federated_mean(xs), tff.FederatedType(np.float32, tff.CLIENTS))
    add_half = tff.tensorflow.computation(lambda x: tf.add(x, 0.5), np.float32)
    add_half_on_clients = tff.federated_computation(
        lambda xs: tff.federated_map(add_half, xs), tff.FederatedType(np.float32, tff.CLIENTS)
    )
    mean_of_means = tff.federated_computation(
        lambda xs: tff.federated_mean(tff.federated_map(mean_of_readings, xs)), readings
    )
    product = tff.tensorflow.computation(
        lambda ds: ds.reduce(np.int32(0), lambda total, x: total + x["A"] * x["B"]),
        tff.SequenceType(collections.OrderedDict(A=np.int32, B=np.int32)),
    )
    texts = [str(f.type_signature) for f in (mean, add_half, add_half_on_clients, mean_of_readings, mean_of_means)]
    assert texts == [
        "({float32}@CLIENTS -> float32@SERVER)",
        "(float32 -> float32)",
        "({float32}@CLIENTS -> {float32}@CLIENTS)",
        "(float32* -> float32)",
        "({float32*}@CLIENTS -> float32@SERVER)",
    ]
    assert mean([68.5, 70.25, 69.75]) == 69.5
    assert add_half_on_clients([1.0, 3.0, 2.0]) == [1.5, 3.5, 2.5]
    assert mean_of_readings([68.0, 70.0, 72.0]) == 70.0
    assert mean_of_means([[68.0, 70.0], [71.0], [68.0, 72.0, 70.0]]) == 70.0
    assert product([{"A": 2, "B": 3}, {"A": 4, "B": 5}]) == 26
    assert tff.federated_computation(lambda: "Hello, World!")() == b"Hello, World!"


def test_names_of_the_tutorial_on_jax_say_what_to_write():
    with pytest.raises(AttributeError, match=r"use fc\.tf_computation instead of TFF's name: clients' work is"):
        tff.jax_computation  # noqa: B018
    with pytest.raises(AttributeError, match=r"use fc\.learning\.algorithms\.build_weighted_fed_avg instead"):
        tff.learning.build_jax_federated_averaging_process  # noqa: B018


def test_federated_training_written_out_lowers_the_loss():
    data = [batches(0), batches(2)]
    assert batch_loss(START, data[0][0]) == pytest.approx(np.log(3))
    model, rate = START, 0.5
    losses = [loss_of_all(model, data)]
    for _ in range(3):
        model, rate = train_all(model, rate, data), rate * 0.9
        losses.append(loss_of_all(model, data))
    assert losses == sorted(losses, reverse=True)
    assert client_loss(train_on_client(START, 0.5, data[0]), data[0]) < client_loss(START, data[0])


def test_clients_select_texts_by_their_keys():
    texts = tff.TensorType(np.str_, [None])
    size = tff.tensorflow.computation(lambda x: tf.size(x))
    take = tff.tensorflow.computation(lambda values, index: tf.gather(values, index))

    @tff.tensorflow.computation(np.str_)
    def keys(given):
        return tf.strings.to_number(tf.strings.split([given], ",")[0][:2], tf.int32)

    @tff.tensorflow.computation(tff.SequenceType(np.str_))
    def joined(values):
        return values.reduce("", lambda text, value: tf.strings.join([text, value]))

    @tff.federated_computation(tff.FederatedType(texts, tff.SERVER), tff.FederatedType(np.str_, tff.CLIENTS))
    def selected(texts, wanted):
        chosen = tff.federated_map(keys, wanted)
        return tff.federated_map(joined, tff.federated_select(chosen, tff.federated_map(size, texts), texts, take))

    assert [bytes(v) for v in selected(["a", "b", "c"], ["0,1", "2,0"])] == [b"ab", b"ca"]


def test_clients_without_data_draw_numbers_of_their_own():
    tff.backends.native.set_sync_local_cpp_execution_context(default_num_clients=3)
    try:

        @tff.tensorflow.computation
        def noise():
            return tf.random.Generator.from_non_deterministic_state().normal(())

        @tff.federated_computation
        def extremes():
            drawn = tff.federated_eval(noise, tff.CLIENTS)
            return tff.federated_min(drawn), tff.federated_max(drawn)

        low, high = extremes()
        assert low < high
        assert extremes() != (low, high)
    finally:
        tff.set_runtime(None)


def test_one_seed_sent_to_all_clients_gives_them_one_number():
    tff.backends.native.set_sync_local_cpp_execution_context(default_num_clients=3)
    try:

        @tff.tensorflow.computation
        def noise(seed):
            return tf.random.stateless_normal((), seed)

        @tff.federated_computation(tff.FederatedType((np.int64, [2]), tff.SERVER))
        def extremes(seed):
            drawn = tff.federated_map(noise, tff.federated_broadcast(seed))
            return tff.federated_min(drawn), tff.federated_max(drawn)

        low, high = extremes(tf.constant([1, 1], tf.int64))
        assert low == high
    finally:
        tff.set_runtime(None)

"""The steps of the tutorials on algorithms of one's own: by hand, and composed from templates."""

import collections
from typing import Any

import attrs
import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as tff

NUM_PIXELS = 4
SEED = 1


def client(number: int):
    """Six examples; the brightest of the pixels is the label."""
    labels = (np.arange(6) + number) % 3
    return {
        "label": labels.astype(np.int32),
        "pixels": np.eye(3, NUM_PIXELS, dtype=np.float32)[labels].reshape(6, 2, 2) + 0.01 * number,
    }


@pytest.fixture(scope="module")
def clients():
    return tff.simulation.datasets.TestClientData({f"c{number}": client(number) for number in range(3)})


def as_pairs(dataset):
    return dataset.batch(3).map(lambda e: (tf.reshape(e["pixels"], [-1, NUM_PIXELS]), tf.reshape(e["label"], [-1, 1])))


def as_columns(dataset):
    def named(example):
        return collections.OrderedDict(
            x=tf.reshape(example["pixels"], [-1, NUM_PIXELS]), y=tf.reshape(example["label"], [-1, 1])
        )

    return dataset.repeat(2).shuffle(10, seed=SEED).batch(3).map(named).prefetch(2)


def datasets(clients, preprocess) -> list:
    return [preprocess(clients.create_tf_dataset_for_client(c)) for c in clients.client_ids]


def keras_model():
    return keras.Sequential(
        [keras.Input((NUM_PIXELS,)), keras.layers.Dense(3, kernel_initializer="zeros"), keras.layers.Softmax()]
    )


@pytest.fixture(scope="module")
def functional(clients):
    return tff.learning.models.functional_model_from_keras(
        keras_model(),
        loss_fn=keras.losses.SparseCategoricalCrossentropy(),
        input_spec=datasets(clients, as_pairs)[0].element_spec,
        metrics_constructor=collections.OrderedDict(accuracy=keras.metrics.SparseCategoricalAccuracy),
    )


@tf.function
def client_update(model, dataset, weights, optimizer):
    trained = weights.trainable
    state = optimizer.initialize(tf.nest.map_structure(tf.TensorSpec.from_tensor, trained))
    for x, y in dataset:
        with tf.GradientTape() as tape:
            tape.watch(trained)
            loss = model.loss(output=model.predict_on_batch((trained, ()), x, training=True), label=y)
        state, trained = optimizer.next(state, weights=trained, gradients=tape.gradient(loss, trained))
    return tff.learning.models.ModelWeights(trained, ())


def test_an_algorithm_built_by_hand_from_a_functional_model_gives_the_librarys_result(clients, functional):
    optimizer = tff.learning.optimizers.build_sgdm(learning_rate=0.5)
    data_type = tff.SequenceType(tff.tensorflow.to_type(functional.input_spec))

    @tff.tensorflow.computation
    def first_weights():
        return tff.learning.models.ModelWeights(*functional.initial_weights)

    weights_type = first_weights.type_signature.result

    @tff.tensorflow.computation(data_type, weights_type)
    def train_client(dataset, weights):
        return client_update(functional, dataset, weights, optimizer)

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(first_weights, tff.SERVER)

    @tff.federated_computation(tff.FederatedType(weights_type, tff.SERVER), tff.FederatedType(data_type, tff.CLIENTS))
    def next_round(weights, data):
        sent = tff.federated_broadcast(weights)
        return tff.federated_mean(tff.federated_map(train_client, (data, sent)))

    by_hand = tff.templates.IterativeProcess(initialize_fn=initialize, next_fn=next_round)
    weights = by_hand.next(by_hand.initialize(), datasets(clients, as_pairs))
    library = tff.learning.algorithms.build_unweighted_fed_avg(functional, optimizer)
    state = library.next(library.initialize(), datasets(clients, as_pairs)).state
    for mine, theirs in zip(weights.trainable, library.get_model_weights(state).trainable, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)


@attrs.define(eq=False, frozen=True)
class ServerState:
    trainable_weights: Any
    optimizer_state: Any


def test_an_algorithm_built_by_hand_from_a_model_with_variables(clients):
    spec = datasets(clients, as_pairs)[0].element_spec
    server_optimizer = tff.learning.optimizers.build_sgdm(1.0, momentum=0.5)

    def model_fn():
        return tff.learning.models.from_keras_model(
            keras_model(), input_spec=spec, loss=keras.losses.SparseCategoricalCrossentropy()
        )

    @tff.tensorflow.computation
    def first_state():
        weights = model_fn().trainable_variables
        specs = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), weights)
        return ServerState(weights, server_optimizer.initialize(specs))

    state_type = first_state.type_signature.result
    data_type = tff.SequenceType(tff.tensorflow.to_type(model_fn().input_spec))

    @tf.function
    def deltas(model, dataset, weights):
        mine = model.trainable_variables
        tf.nest.map_structure(lambda v, w: v.assign(w), mine, weights)
        for batch in iter(dataset):
            with tf.GradientTape() as tape:
                output = model.forward_pass(batch)
            gradients = tape.gradient(output.loss, mine)
            tf.nest.map_structure(lambda v, g: v.assign_sub(0.5 * g), mine, gradients)
        return tf.nest.map_structure(tf.subtract, mine, weights)

    @tff.tensorflow.computation(data_type, state_type.trainable_weights)
    def train_client(dataset, weights):
        return deltas(model_fn(), dataset, weights)

    @tff.tensorflow.computation(state_type, state_type.trainable_weights)
    def apply(state, delta):
        step = tf.nest.map_structure(tf.negative, delta)
        optimizer_state, weights = server_optimizer.next(state.optimizer_state, state.trainable_weights, step)
        return tff.structure.update_struct(state, trainable_weights=weights, optimizer_state=optimizer_state)

    @tff.federated_computation
    def initialize():
        return tff.federated_value(first_state(), tff.SERVER)

    @tff.federated_computation(tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(data_type, tff.CLIENTS))
    def next_round(state, data):
        sent = tff.federated_broadcast(state.trainable_weights)
        delta = tff.federated_mean(tff.federated_map(train_client, (data, sent)))
        return tff.federated_map(apply, (state, delta))

    process = tff.templates.IterativeProcess(initialize, next_round)
    state = process.initialize()
    for _ in range(3):
        state = process.next(state, datasets(clients, as_pairs))
    model = keras_model()
    tf.nest.map_structure(lambda v, w: v.assign(w), model.trainable_weights, state.trainable_weights)
    x, y = next(iter(datasets(clients, as_pairs)[0]))
    np.testing.assert_array_equal(np.argmax(model(x), 1), y[:, 0])


def test_an_algorithm_composed_from_templates_clips_gradients(clients, functional):
    data_type = tff.SequenceType(tff.tensorflow.to_type(functional.input_spec))

    @tff.tensorflow.computation
    def first_weights():
        return tff.learning.models.ModelWeights(*functional.initial_weights)

    weights_type = first_weights.type_signature.result

    @tf.function
    def clipped_update(weights, dataset, optimizer):
        trained, count = weights.trainable, 0.0
        state = optimizer.initialize(tf.nest.map_structure(tf.TensorSpec.from_tensor, trained))
        for x, y in dataset:
            with tf.GradientTape() as tape:
                tape.watch(trained)
                loss = functional.loss(functional.predict_on_batch((trained, ()), x, training=True), y)
                count += tf.cast(tf.shape(y)[0], tf.float32)
            gradients = tape.gradient(loss, trained)
            if tf.linalg.global_norm(gradients) > 0.1:
                gradients = tuple(tf.clip_by_global_norm(gradients, 0.1)[0])
            state, trained = optimizer.next(state, trained, gradients)
        update = tf.nest.map_structure(tf.subtract, trained, weights.trainable)
        return tff.learning.templates.ClientResult(update=update, update_weight=count)

    @tff.federated_computation
    def initialize():
        return tff.federated_value((), tff.SERVER)

    @tff.tensorflow.computation(weights_type, data_type)
    def work(weights, dataset):
        return clipped_update(weights, dataset, tff.learning.optimizers.build_sgdm(1.0))

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_round(state, weights, data):
        result = tff.federated_map(work, (weights, data))
        return tff.templates.MeasuredProcessOutput(state, result, tff.federated_value((), tff.SERVER))

    process = tff.learning.templates.compose_learning_process(
        first_weights,
        tff.learning.templates.build_broadcast_process(weights_type),
        tff.learning.templates.ClientWorkProcess(initialize, next_round),
        tff.aggregators.MeanFactory().create(weights_type.trainable, tff.TensorType(np.float32)),
        tff.learning.templates.build_apply_optimizer_finalizer(tff.learning.optimizers.build_sgdm(1.0), weights_type),
    )
    state = process.initialize()
    output = process.next(state, datasets(clients, as_pairs))
    moved = process.get_model_weights(output.state).trainable
    assert 0 < np.sqrt(sum(np.sum(np.square(w)) for w in moved)) <= 2 * 0.1 + 1e-6  # two steps of a client
    assert set(output.metrics) == {"distributor", "client_work", "aggregator", "finalizer"}

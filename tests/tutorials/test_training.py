"""The steps of the tutorials on training with the library's algorithms."""

import collections

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


def test_a_functional_model_is_trained_by_the_library(clients, functional):
    trainer = tff.learning.algorithms.build_weighted_fed_avg(
        functional, client_optimizer_fn=tff.learning.optimizers.build_sgdm(learning_rate=0.5)
    )
    state, losses = trainer.initialize(), []
    for _ in range(3):
        result = trainer.next(state, datasets(clients, as_pairs))
        state = result.state
        losses.append(result.metrics["client_work"]["train"]["loss"])
    assert losses == sorted(losses, reverse=True)
    assert "accuracy" in result.metrics["client_work"]["train"]
    model = keras_model()
    trainer.get_model_weights(state).assign_weights_to(model)
    accuracy = np.mean([np.mean(np.argmax(model(x), 1) == y[:, 0]) for x, y in datasets(clients, as_pairs)[0]])
    assert accuracy > 0.9


def test_a_process_takes_client_ids_where_clients_preprocess_their_data(clients, functional):
    trainer = tff.learning.algorithms.build_weighted_fed_avg(functional, tff.learning.optimizers.build_sgdm(0.5))
    prepared = clients.preprocess(as_pairs)
    by_ids = tff.simulation.compose_dataset_computation_with_iterative_process(prepared.dataset_computation, trainer)
    ids_type = tff.FederatedType(prepared.dataset_computation.type_signature.parameter, tff.CLIENTS)

    @tff.federated_computation(trainer.next.type_signature.parameter[0], ids_type)
    def next_by_ids(state, ids):
        return trainer.next(state, tff.federated_map(prepared.dataset_computation, ids))

    by_hand = tff.templates.IterativeProcess(trainer.initialize, next_by_ids)
    ids, state = clients.client_ids[:2], trainer.initialize()
    wanted = trainer.next(state, datasets(clients, as_pairs)[:2]).metrics["client_work"]["train"]["loss"]
    for process in (by_ids, by_hand):
        assert process.next(state, ids).metrics["client_work"]["train"]["loss"] == wanted


class PixelModel(tff.learning.models.VariableModel):
    """Softmax regression with variables for its metrics."""

    def __init__(self):
        self._weights = tf.Variable(lambda: tf.zeros([NUM_PIXELS, 3]), name="weights")
        self._count = tf.Variable(0.0, trainable=False)
        self._loss_sum = tf.Variable(0.0, trainable=False)

    @property
    def trainable_variables(self):
        return [self._weights]

    @property
    def non_trainable_variables(self):
        return []

    @property
    def local_variables(self):
        return [self._count, self._loss_sum]

    @property
    def input_spec(self):
        return collections.OrderedDict(
            x=tf.TensorSpec([None, NUM_PIXELS], tf.float32), y=tf.TensorSpec([None, 1], tf.int32)
        )

    @tf.function
    def predict_on_batch(self, x, training=True):
        return tf.nn.softmax(tf.matmul(x, self._weights))

    @tf.function
    def forward_pass(self, batch, training=True):
        predicted = self.predict_on_batch(batch["x"], training)
        labels = tf.one_hot(tf.reshape(batch["y"], [-1]), 3)
        loss = -tf.reduce_mean(tf.reduce_sum(labels * tf.math.log(predicted), 1))
        count = tf.cast(tf.size(batch["y"]), tf.float32)
        self._count.assign_add(count)
        self._loss_sum.assign_add(loss * count)
        return tff.learning.models.BatchOutput(loss, predicted, tf.shape(batch["x"])[0])

    @tf.function
    def report_local_unfinalized_metrics(self):
        return collections.OrderedDict(num_examples=[self._count], loss=[self._loss_sum, self._count])

    def metric_finalizers(self):
        return collections.OrderedDict(
            num_examples=tf.function(lambda x: x[0]), loss=tf.function(lambda x: x[0] / x[1])
        )

    @tf.function
    def reset_metrics(self):
        for variable in self.local_variables:
            variable.assign(tf.zeros_like(variable))


def test_a_model_of_ones_own_is_trained_and_evaluated(clients):
    data = datasets(clients, as_columns)
    training = tff.learning.algorithms.build_weighted_fed_avg(
        PixelModel,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.5),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    assert "global_model_weights" in training.initialize.type_signature.formatted_representation()
    result = training.next(training.initialize(), data)
    trained = result.metrics["client_work"]["train"]
    assert trained["num_examples"] == 3 * 6 * 2
    evaluation = tff.learning.algorithms.build_fed_eval(PixelModel)
    state = evaluation.set_model_weights(evaluation.initialize(), training.get_model_weights(result.state))
    measured = evaluation.next(state, data).metrics["client_work"]["eval"]["current_round_metrics"]
    assert measured["loss"] < trained["loss"]


def convolutional_model():
    inputs = keras.Input([2, 2, 1])
    x = keras.layers.Lambda(tf.image.per_image_standardization)(inputs)
    for filters in (4, 8):
        x = keras.layers.Conv2D(filters, 3, padding="same", kernel_initializer="he_normal", use_bias=False)(x)
        x = keras.layers.Activation("relu")(x)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_convolutional_model_is_trained_by_the_simulation_loop(clients, policy, tmp_path):
    def as_images(dataset):
        def image(example):
            return collections.OrderedDict(x=tf.expand_dims(example["pixels"], -1), y=example["label"])

        return dataset.map(image).shuffle(buffer_size=6).repeat(count=1).batch(4, drop_remainder=False)

    train = clients.preprocess(as_images)
    spec = train.create_tf_dataset_for_client(train.client_ids[0]).element_spec
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    keras.mixed_precision.set_global_policy(policy)
    tff.backends.native.set_sync_local_cpp_execution_context(max_concurrent_computation_calls=2)
    try:
        with pytest.warns(RuntimeWarning, match="use_experimental_simulation_loop changes nothing: one loop"):
            process = tff.learning.algorithms.build_weighted_fed_avg(
                model_fn=lambda: tff.learning.models.from_keras_model(
                    convolutional_model(), input_spec=spec, loss=loss
                ),
                server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
                client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
                use_experimental_simulation_loop=True,
            )
        sampled = [train.create_tf_dataset_for_client(c) for c in train.client_ids[:2]]
        with tf.profiler.experimental.Profile(str(tmp_path)):
            state, metrics = process.next(process.initialize(), sampled)
        model, accuracy = convolutional_model(), keras.metrics.SparseCategoricalAccuracy()
        process.get_model_weights(state).assign_weights_to(model)
        for batch in as_images(clients.create_tf_dataset_from_all_clients()):
            accuracy.update_state(y_true=batch["y"], y_pred=model(batch["x"], training=False))
    finally:
        keras.mixed_precision.set_global_policy("float32")
        tff.set_runtime(None)
    assert np.isfinite(metrics["client_work"]["train"]["loss"])
    assert 0 <= float(accuracy.result()) <= 1

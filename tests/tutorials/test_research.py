"""Research programs by TFF's names: personalisation, lossy compression, canaries, a generative adversarial network."""

import collections

import attrs
import keras
import numpy as np
import tensorflow as tf

import fedcore as tff

SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 2], tf.float32), y=tf.TensorSpec([None, 1], tf.float32))
SLOPES = {"up": 1.0, "down": -1.0}


def examples(slope: float) -> tf.data.Dataset:
    x = np.random.default_rng(0).uniform(-1, 1, [8, 2]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=slope * x[:, :1]))


def model_fn():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, kernel_initializer="zeros")])
    return tff.learning.models.from_keras_model(model, loss=keras.losses.MeanSquaredError(), input_spec=SPEC)


# Personalisation: each client adapts the model that all of them trained.


@tf.function
def evaluate(model, dataset, batch_size=4):
    def add(total, batch):
        output = model.forward_pass(batch, training=False)
        return total + output.loss * tf.cast(output.num_examples, tf.float32)

    examples = tf.cast(dataset.reduce(0, lambda count, _: count + 1), tf.float32)
    return collections.OrderedDict(loss=dataset.batch(batch_size).reduce(0.0, add) / examples)


def build_personalize_fn(optimizer_fn, epochs):
    def make():
        optimizer = optimizer_fn()

        @tf.function
        def personalize(model, train_data, test_data):
            def train(count, batch):
                with tf.GradientTape() as tape:
                    output = model.forward_pass(batch)
                gradients = tape.gradient(output.loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                return count + output.num_examples

            metrics = collections.OrderedDict()
            for epoch in range(epochs):
                count = train_data.batch(4).reduce(0, train)
                metrics[f"epoch_{epoch}"] = evaluate(model, test_data)
            metrics["num_examples"] = count
            return metrics

        return personalize

    return make


def test_personalised_models_fit_clients_that_differ():
    evaluation = tff.learning.algorithms.build_personalization_eval_computation(
        model_fn,
        collections.OrderedDict(sgd=build_personalize_fn(lambda: keras.optimizers.SGD(0.5), epochs=3)),
        baseline_evaluate_fn=evaluate,
    )
    data = [collections.OrderedDict(train_data=examples(slope), test_data=examples(slope)) for slope in SLOPES.values()]
    start = [np.zeros([2, 1], np.float32), np.zeros([1], np.float32)]
    metrics = evaluation(tff.learning.models.ModelWeights(start, []), data)
    baseline = metrics["baseline_metrics"]["loss"]
    assert np.all(metrics["sgd"]["epoch_2"]["loss"] < metrics["sgd"]["epoch_0"]["loss"])
    assert np.all(metrics["sgd"]["epoch_0"]["loss"] < baseline)
    assert metrics["sgd"]["num_examples"].tolist() == [8, 8]


# Compression: an aggregator that rounds what clients send, and measures what rounding changes.


class RoundingFactory(tff.aggregators.UnweightedAggregationFactory):
    def __init__(self, step: float, inner: tff.aggregators.UnweightedAggregationFactory) -> None:
        self._step, self._inner = step, inner

    def create(self, value_type):
        inner, step = self._inner.create(value_type), self._step

        @tff.tensorflow.computation(value_type)
        def rounded_and_error(value):
            rounded = tf.nest.map_structure(lambda v: step * tf.round(v / step), value)
            squares = tf.nest.map_structure(lambda a, b: tf.reduce_sum((a - b) ** 2), value, rounded)
            return rounded, tf.add_n(tf.nest.flatten(squares))

        @tff.federated_computation(inner.initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS))
        def next_fn(state, value):
            rounded, error = tff.federated_map(rounded_and_error, value)
            output = inner.next(state, rounded)
            measurements = collections.OrderedDict(sum=output.measurements, distortion=tff.federated_mean(error))
            return tff.templates.MeasuredProcessOutput(output.state, output.result, tff.federated_zip(measurements))

        return tff.templates.AggregationProcess(inner.initialize, next_fn)


def test_rounded_updates_train_and_their_distortion_is_measured():
    data, losses, distortions = [examples(1.0).batch(4)] * 2, {}, {}
    for step in (0.01, 0.5):
        process = tff.learning.algorithms.build_weighted_fed_avg(
            model_fn,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.5),
            model_aggregator=tff.aggregators.MeanFactory(RoundingFactory(step, tff.aggregators.SumFactory())),
        )
        state = process.initialize()
        for _ in range(3):
            state, metrics = process.next(state, data)
        losses[step] = metrics["client_work"]["train"]["loss"]
        distortions[step] = metrics["aggregator"]["mean_value"]["distortion"]
    assert losses[0.01] < 0.1
    assert 0 < distortions[0.01] < distortions[0.5]


# Canaries: clients that send a direction of their own show how much a model keeps of one client.

DIMENSION, CANARIES = 64, 6
WEIGHTS = tff.to_type(tff.learning.models.ModelWeights(((np.float32, [DIMENSION]),), ()))
UPDATE = WEIGHTS.trainable
DATA = tff.SequenceType(np.int32)


def direction(number):
    vector = tf.random.stateless_normal([DIMENSION], tf.stack([17, number]))
    return vector / tf.norm(vector)


@tff.tensorflow.computation(WEIGHTS, DATA)
def client_update(weights, numbers):
    """The negative change of a client: in the direction of its number; without one, -1, towards 0.1."""
    number = numbers.reduce(np.int32(-1), lambda _, number: number)
    real = 0.05 * (weights.trainable[0] - 0.1)
    return tff.learning.templates.ClientResult(
        update=(tf.where(number >= 0, -direction(number), real),), update_weight=tf.constant(1.0)
    )


@tff.tensorflow.computation
def initial_weights():
    return tff.learning.models.ModelWeights((tf.zeros([DIMENSION]),), ())


@tff.federated_computation
def nothing():
    return tff.federated_value((), tff.SERVER)


@tff.federated_computation(
    nothing.type_signature.result, tff.FederatedType(WEIGHTS, tff.CLIENTS), tff.FederatedType(DATA, tff.CLIENTS)
)
def next_work(state, weights, data):
    result = tff.federated_map(client_update, (weights, data))
    return tff.templates.MeasuredProcessOutput(state, result, tff.federated_value((), tff.SERVER))


def test_canaries_that_took_part_are_told_from_those_that_did_not():
    factory = tff.aggregators.clipping_factory(1.0, tff.aggregators.MeanFactory())
    process = tff.learning.templates.compose_learning_process(
        initial_weights,
        tff.learning.templates.build_broadcast_process(WEIGHTS),
        tff.learning.templates.ClientWorkProcess(nothing, next_work),
        factory.create(UPDATE, tff.TensorType(np.float32)),
        tff.learning.templates.build_apply_optimizer_finalizer(tff.learning.optimizers.build_sgdm(1.0), WEIGHTS),
    )
    state, present = process.initialize(), range(0, CANARIES, 2)
    for number in present:
        state = process.next(state, [[number], [-1], [-1]]).state
    change = state.global_model_weights.trainable[0]
    cosines = [float(tf.tensordot(direction(number), change, 1) / tf.norm(change)) for number in range(CANARIES)]
    assert min(cosines[number] for number in present) > max(cosines[number] for number in range(1, CANARIES, 2))


# A generative adversarial network: clients train the discriminator, the server the generator.


@attrs.define
class ServerState:
    generator: tuple
    discriminator: tuple
    counter: int


def samples(generator, seed, count=16):
    scale, shift = generator
    return scale * tf.random.stateless_normal([count], tf.stack([5, seed])) + shift


def logits(discriminator, x):
    slope, bias = discriminator
    return slope * x + bias


def discriminator_loss(discriminator, real, fake):
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    on_real, on_fake = logits(discriminator, real), logits(discriminator, fake)
    return loss(tf.ones_like(on_real), on_real) + loss(tf.zeros_like(on_fake), on_fake)


@tff.tensorflow.computation
def initial_state():
    return ServerState((tf.constant(1.0), tf.constant(0.0)), (tf.constant(0.0), tf.constant(0.0)), tf.constant(0))


STATE = initial_state.type_signature.result
REAL = tff.SequenceType(tff.TensorType(np.float32, [None]))


@tff.tensorflow.computation(STATE, REAL)
def train_discriminator(state, dataset):
    def step(discriminator, real):
        with tf.GradientTape() as tape:
            tape.watch(discriminator)
            loss = discriminator_loss(discriminator, real, samples(state.generator, state.counter))
        slope, bias = tape.gradient(loss, discriminator)
        return discriminator[0] - 0.1 * slope, discriminator[1] - 0.1 * bias

    return dataset.reduce(state.discriminator, step)


@tff.tensorflow.computation
def train_generator(state, discriminator):
    with tf.GradientTape() as tape:
        tape.watch(state.generator)
        fooled = logits(discriminator, samples(state.generator, state.counter))
        loss = keras.losses.BinaryCrossentropy(from_logits=True)(tf.ones_like(fooled), fooled)
    scale, shift = tape.gradient(loss, state.generator)
    generator = state.generator[0] - 0.2 * scale, state.generator[1] - 0.2 * shift
    return ServerState(generator, discriminator, state.counter + 1)


@tff.federated_computation
def initialize():
    return tff.federated_eval(initial_state, tff.SERVER)


@tff.federated_computation(tff.FederatedType(STATE, tff.SERVER), tff.FederatedType(REAL, tff.CLIENTS))
def next_round(state, data):
    discriminators = tff.federated_map(train_discriminator, (tff.federated_broadcast(state), data))
    return tff.federated_map(train_generator, (state, tff.federated_mean(discriminators)))


def test_a_generator_moves_towards_what_clients_have():
    process = tff.templates.IterativeProcess(initialize, next_round)
    real = np.random.default_rng(1).normal(3.0, 1.0, [2, 32]).astype(np.float32)
    data = [tf.data.Dataset.from_tensor_slices(values).batch(8) for values in real]
    state = process.initialize()
    for _ in range(20):
        state = process.next(state, data)
    assert state.counter == 20
    assert 1.0 < state.generator[1] < 5.0

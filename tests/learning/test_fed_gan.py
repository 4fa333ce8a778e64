"""FedGAN against its steps in numpy."""

import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import TracingError

GanModel = fc.learning.algorithms.GanModel
GENERATOR_RATE, DISCRIMINATOR_RATE = 0.2, 0.05


def client(x):
    x = np.float32(x).reshape(-1, 1)
    return fc.data.ClientDataset.from_columns((x, x)).batch(2)


SPEC = client([0.0]).element_spec


class Constant(keras.layers.Layer):
    """Generates one number, whatever the noise is."""

    def build(self, shape):
        self.number = self.add_weight(name="number", shape=(1,), initializer="ones")

    def call(self, noise):
        return 0 * noise[:, :1] + self.number


def gan(*layers):
    generator = keras.Sequential([keras.Input((3,)), *(layers or [Constant()])])
    discriminator = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    return GanModel(generator, discriminator)


def model_fn():
    return fc.learning.from_keras_model(gan(), input_spec=SPEC)


def build(make=model_fn, **options):
    rates = (keras.optimizers.SGD(rate) for rate in (GENERATOR_RATE, DISCRIMINATOR_RATE))
    return fc.learning.algorithms.build_fed_gan(make, *rates, **options)


@pytest.fixture(scope="module")
def process():
    return build()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def trained(weights, x):
    """(number, kernel, bias) after the steps on batches of 2, and the losses of generator and discriminator."""
    number, kernel, bias = weights
    losses = []
    for i in range(0, len(x), 2):
        batch = np.float64(x[i : i + 2])
        real, fake = kernel * batch + bias, kernel * number + bias
        losses.append((np.log1p(np.exp(-fake)), np.mean(np.log1p(np.exp(-real))) + np.log1p(np.exp(fake)), len(batch)))
        of_real, of_fake = -sigmoid(-real) / len(batch), sigmoid(fake)
        number, kernel, bias = (
            number + GENERATOR_RATE * sigmoid(-fake) * kernel,
            kernel - DISCRIMINATOR_RATE * (np.sum(of_real * batch) + of_fake * number),
            bias - DISCRIMINATOR_RATE * (np.sum(of_real) + of_fake),
        )
    return np.array([number, kernel, bias]), losses


def vector(state):
    return np.concatenate([np.ravel(w) for w in state.global_model_weights.trainable])


def test_rounds_are_those_of_the_algorithm_in_numpy(process):
    data = [[2.0, 3.0, 4.0], [-1.0, 0.5, 0.25, 1.0, 7.0]]
    state = process.initialize()
    np.testing.assert_array_equal(vector(state), [1, 1, 0])
    weights = vector(state)
    for _ in range(2):
        results = [trained(weights, x) for x in data]
        weights = (3 * results[0][0] + 5 * results[1][0]) / 8
        losses = np.array([loss for _, client_losses in results for loss in client_losses])
        state, metrics = process.next(state, [client(x) for x in data])
        np.testing.assert_allclose(vector(state), weights, rtol=1e-5)
        means = np.average(losses[:, :2], 0, losses[:, 2])
        reported = metrics["client_work"]["train"]
        np.testing.assert_allclose([reported["generator_loss"], reported["loss"]], means, rtol=1e-5)


def test_the_rates_of_both_optimizers_are_hyperparameters_of_the_state(process):
    state = process.initialize()
    hparams = process.get_hparams(state)["client_work"]
    assert hparams == {
        "generator_learning_rate": np.float32(GENERATOR_RATE),
        "discriminator_learning_rate": np.float32(DISCRIMINATOR_RATE),
    }
    still = process.set_hparams(state, {"client_work": {"generator_learning_rate": 0.0}})
    moved = vector(process.next(still, [client([2.0, 3.0])]).state) - vector(state)
    assert moved[0] == 0
    assert (moved[1:] != 0).all()


def test_noise_is_new_in_each_client_and_round_and_follows_the_seed():
    process = build(lambda: fc.learning.from_keras_model(gan(keras.layers.Dense(1)), input_spec=SPEC))
    state = process.initialize.invoke(seed=3)

    def loss(clients, at=state):
        return process.next(at, clients).metrics["client_work"]["train"]["generator_loss"]

    one = [client([1.0, 2.0])]
    assert loss(one) == loss(one)
    assert loss(one) != loss(one * 2)
    assert loss(one) != loss(one, state.replace(round=np.int64(1)))


def test_averages_of_layers_are_averaged_and_both_models_get_their_weights():
    def make():
        return gan(keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1))

    process = build(lambda: fc.learning.from_keras_model(make(), input_spec=SPEC))
    state = process.initialize()
    after = process.next(state, [client([1.0, 2.0]), client([3.0, 4.0, 5.0])]).state
    weights, own = process.get_model_weights(after), make()
    assert len(weights.non_trainable) == 2
    assert np.abs(weights.non_trainable[0]).max() > 0
    weights.assign_weights_to(own)
    assert own.generator(np.ones((5, 3), np.float32)).shape == (5, 1)
    np.testing.assert_array_equal(own.discriminator.trainable_variables[0], weights.trainable[-2])


def test_a_generator_learns_where_the_data_are():
    process = fc.learning.algorithms.build_fed_gan(
        model_fn,
        keras.optimizers.SGD(0.05),
        keras.optimizers.SGD(0.05),
        client_weighting=fc.learning.ClientWeighting.UNIFORM,
    )
    state, data = process.initialize(), client([4.0] * 16)
    for _ in range(10):
        state = process.next(state, [data] * 2).state
    assert vector(state)[0] > 1.5


def test_rounds_without_clients_change_nothing(process):
    state = process.initialize()
    np.testing.assert_array_equal(vector(process.next(state, []).state), vector(state))


def test_losses_of_ones_own_are_used():
    def make():
        plain = gan()
        wasserstein = GanModel(
            plain.generator,
            plain.discriminator,
            discriminator_loss=lambda real, fake: keras.ops.mean(fake) - keras.ops.mean(real),
            generator_loss=lambda fake: -keras.ops.mean(fake),
        )
        return fc.learning.from_keras_model(wasserstein, input_spec=SPEC)

    process = build(make)
    after = vector(process.next(process.initialize(), [client([2.0, 4.0])]).state)
    np.testing.assert_allclose(after, [1 + GENERATOR_RATE, 1 + DISCRIMINATOR_RATE * 2, 0], rtol=1e-5, atol=1e-6)


def regularized():
    return GanModel(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_regularizer="l2")]),
        keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]),
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GanModel(3, gan().discriminator), "the generator of a GanModel is a Keras model, not int"),
        (lambda: GanModel(gan().generator, None), "the discriminator of a GanModel is a Keras model, not NoneType"),
        (
            lambda: GanModel(
                keras.Sequential([keras.Input((None,)), keras.layers.Embedding(2, 1)]), gan().discriminator
            ),
            r"has one input of a known shape, not \(None, None\)",
        ),
        (regularized, "the layers of the generator .* add losses; give GanModel a generator_loss"),
        (
            lambda: build(lambda: fc.learning.from_keras_model(gan().discriminator, "mse", SPEC)),
            "build_fed_gan trains a GanModel, but model_fn makes Sequential; it returns",
        ),
    ],
)
def test_what_is_no_pair_is_refused(make, says):
    with pytest.raises(TracingError, match=says):
        make()

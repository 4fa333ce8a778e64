"""FedDF against its steps in numpy."""

import keras
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch

from .conftest import client

RATE, SERVER_RATE, STEPS = 1.5, 0.5, 4
SPEC = client(np.zeros((1, 2)), [0]).element_spec
X = np.float32([[1.0, -2.0]])


def model_fn(activation=None):
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation=activation)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=activation is None)
    return fc.learning.from_keras_model(net, loss, input_spec=SPEC)


def build(server_data=X, **options):
    settings = {"distillation_steps": STEPS, "distillation_batch_size": 5, "from_logits": True, **options}
    client_rate, server_rate = keras.optimizers.SGD(RATE), keras.optimizers.SGD(SERVER_RATE)
    return fc.learning.algorithms.build_fed_df(
        settings.pop("model_fn", model_fn), client_rate, server_data, server_rate, **settings
    )


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def descend(kernel, bias, x, targets, rate):
    """A step of gradient descent on the mean cross-entropy."""
    error = (softmax(x @ kernel + bias) - targets) / len(x)
    return kernel - rate * x.T @ error, bias - rate * error.sum(0)


def random_client(seed, n):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)).astype(np.float32), rng.integers(0, 3, n)


@pytest.fixture(scope="module")
def process():
    return build()


def test_a_round_is_that_of_the_algorithm_in_numpy(process):
    clients, state = [random_client(1, 4), random_client(2, 8)], process.initialize()
    start = [np.float64(w) for w in state.global_model_weights.trainable]
    models = []
    for x, y in clients:
        model = start
        for i in range(0, len(x), 4):
            model = descend(*model, x[i : i + 4], np.eye(3)[y[i : i + 4]], RATE)
        models.append(model)
    student = [(4 * a + 8 * b) / 12 for a, b in zip(*models, strict=True)]
    teacher = softmax(np.mean([X @ kernel + bias for kernel, bias in models], 0))
    losses = []
    for _ in range(STEPS):
        losses.append(np.sum(teacher * np.log(teacher / softmax(X @ student[0] + student[1]))))
        student = descend(*student, X, teacher, SERVER_RATE)
    after, metrics = process.next(state, [client(*c) for c in clients])
    for ours, by_hand in zip(after.global_model_weights.trainable, student, strict=True):
        np.testing.assert_allclose(ours, by_hand, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["finalizer"]["distillation_loss"], np.mean(losses), rtol=1e-3, atol=1e-7)


def test_probabilities_are_distilled_as_their_logits():
    state = None
    for activation, from_logits in ((None, True), ("softmax", False)):
        process = build(model_fn=lambda activation=activation: model_fn(activation), from_logits=from_logits)
        state = process.initialize.invoke(seed=1) if state is None else state
        after = process.next(state, [client(*random_client(s, 6)) for s in (1, 2, 3)]).state
        if activation is None:
            expected = after.global_model_weights.trainable
    for ours, want in zip(after.global_model_weights.trainable, expected, strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-5)


def test_rounds_without_clients_or_examples_change_nothing(process):
    state = process.initialize()
    for clients in ([], [client(np.zeros((0, 2)), np.zeros(0))]):
        after, metrics = process.next(state, clients)
        assert metrics["finalizer"]["distillation_loss"] == 0
        for ours, before in zip(
            after.global_model_weights.trainable, state.global_model_weights.trainable, strict=True
        ):
            np.testing.assert_array_equal(ours, before)


def test_a_client_without_examples_and_one_that_is_not_finite_are_no_teachers(process):
    state, whole = process.initialize(), client(*random_client(3, 6))
    others = [client(np.zeros((0, 2)), np.zeros(0)), client([[np.nan, 1.0]], [0])]
    alone = process.next(state, [whole]).state.global_model_weights
    among = process.next(state, [*others, whole]).state.global_model_weights
    for ours, want in zip(among.trainable, alone.trainable, strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-6)


def test_weights_whose_sum_exceeds_a_float16_give_their_mean():
    def narrow():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, dtype="float16")])
        return fc.learning.from_keras_model(net, "sparse_categorical_crossentropy", input_spec=SPEC)

    clients = [client(*random_client(seed, 6)) for seed in (3, 4)]
    results = [
        process.next(process.initialize.invoke(seed=1), clients).state.global_model_weights.trainable
        for weight in (1, 50_000)
        for process in [build(model_fn=narrow, client_weighting=lambda report, w=weight: w)]
    ]
    for small, large in zip(*results, strict=True):
        np.testing.assert_array_equal(small, large)


def test_batches_are_drawn_by_the_seed():
    process = build(np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32))
    state = process.initialize.invoke(seed=1)
    clients = [client(*random_client(s, 6)) for s in (1, 2)]
    first, again = (process.next(state, clients).metrics["finalizer"]["distillation_loss"] for _ in range(2))
    other = process.next(state.replace(seed=np.int64(5)), clients).metrics["finalizer"]["distillation_loss"]
    assert first == again != other


def test_frozen_weights_stay_and_averages_are_averaged():
    def with_layers():
        frozen = keras.layers.Dense(4, trainable=False)
        layers = [keras.Input((2,)), frozen, keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(keras.Sequential(layers), loss, input_spec=SPEC)

    process = build(model_fn=with_layers)
    state = process.initialize()
    after, metrics = process.next(state, [client(*random_client(s, 6)) for s in (1, 2)])
    assert np.isfinite(metrics["finalizer"]["distillation_loss"])
    before, weights = process.get_model_weights(state), process.get_model_weights(after)
    changed = [not np.array_equal(a, b) for a, b in zip(before.non_trainable, weights.non_trainable, strict=True)]
    assert sorted(changed) == [False, False, True, True]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"server_data": np.zeros((4, 3), np.float32)}, TypeMismatch, "server_data are not the inputs of the model"),
        ({"server_data": [[1.0, 2.0]]}, TypeMismatch, "server_data are arrays with an example in each row"),
        ({"server_data": np.zeros((0, 2), np.float32)}, TypeMismatch, "at least one, not"),
        ({"distillation_steps": 0}, InvalidValue, "distillation_steps is a whole number, 1 or more, not 0"),
        ({"distillation_batch_size": 0}, InvalidValue, "distillation_batch_size is a whole number, 1 or more, not 0"),
    ],
)
def test_what_cannot_be_distilled_is_refused(options, error, says):
    with pytest.raises(error, match=says):
        build(**options)


def test_a_model_that_predicts_no_classes_is_refused():
    def regression():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Flatten(data_format=None)])
        outputs = {"a": net.outputs[0], "b": net.outputs[0]}
        both = keras.Model(net.inputs, outputs)
        return fc.learning.from_keras_model(both, {"a": "mse", "b": None}, input_spec=(SPEC[0], SPEC[0]))

    with pytest.raises(FedcoreError, match="distils predictions that are one tensor of floats"):
        build(model_fn=regression)

"""Functional optimizers against Keras' own, over 20 steps on the same gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.learning import optimizers
from fedcore.learning.optimizers import as_optimizer

K = keras.optimizers
STEPS = 20

SAME_AS_KERAS = {
    "sgd": lambda: K.SGD(0.1),
    "momentum": lambda: K.SGD(0.1, momentum=0.9),
    "nesterov": lambda: K.SGD(0.1, momentum=0.9, nesterov=True),
    "sgd, weight decay": lambda: K.SGD(0.1, momentum=0.5, weight_decay=0.01),
    "adam": lambda: K.Adam(0.01),
    "adam, betas": lambda: K.Adam(0.01, beta_1=0.8, beta_2=0.9, epsilon=1e-3),
    "amsgrad": lambda: K.Adam(0.01, amsgrad=True),
    "adam, clipnorm": lambda: K.Adam(0.01, clipnorm=0.1),
    "adam, clipvalue": lambda: K.Adam(0.01, clipvalue=0.1),
    "sgd, global_clipnorm": lambda: K.SGD(0.1, global_clipnorm=0.1),
    "adamw": lambda: K.AdamW(0.01, weight_decay=0.05),
    "adamw, amsgrad": lambda: K.AdamW(0.01, amsgrad=True),
    "adagrad": lambda: K.Adagrad(0.1),
    "adagrad, start": lambda: K.Adagrad(0.1, initial_accumulator_value=1.0, epsilon=1e-2),
    "rmsprop": lambda: K.RMSprop(0.01),
    "rmsprop, momentum": lambda: K.RMSprop(0.01, rho=0.8, momentum=0.9),
    "rmsprop, centered": lambda: K.RMSprop(0.01, centered=True, momentum=0.5, epsilon=1e-3),
    "adafactor": lambda: K.Adafactor(0.1),
    "adafactor, weight decay": lambda: K.Adafactor(0.05, weight_decay=0.01, clip_threshold=0.5),
    "exponential decay": lambda: K.SGD(K.schedules.ExponentialDecay(0.1, 5, 0.5)),
    "staircase": lambda: K.Adam(K.schedules.ExponentialDecay(0.1, 5, 0.5, staircase=True)),
    "piecewise": lambda: K.SGD(K.schedules.PiecewiseConstantDecay([3, 9], [0.1, 0.01, 0.001]), momentum=0.9),
    "polynomial": lambda: K.SGD(K.schedules.PolynomialDecay(0.1, 10, 0.01, power=2.0)),
    "inverse time": lambda: K.RMSprop(K.schedules.InverseTimeDecay(0.1, 3, 0.5)),
    "cosine, warmup": lambda: K.AdamW(K.schedules.CosineDecay(0.0, 15, warmup_target=0.1, warmup_steps=5)),
    "cosine restarts": lambda: K.SGD(K.schedules.CosineDecayRestarts(0.1, 4), weight_decay=0.1, clipnorm=0.5),
    "adafactor, schedule": lambda: K.Adafactor(K.schedules.ExponentialDecay(0.1, 5, 0.5)),
}


def start_and_gradients():
    rng = np.random.default_rng(0)
    shapes = [(4, 3), (3,), (2, 3, 4), ()]
    draw = lambda: tuple(rng.normal(size=s).astype(np.float32) for s in shapes)  # noqa: E731
    return draw(), [draw() for _ in range(STEPS)]


def run(optimizer, start, gradients):
    step = tf.function(optimizer.next)
    weights = tuple(map(tf.constant, start))
    state = optimizer.initialize(weights)
    for given in gradients:
        state, weights = step(state, weights, tuple(map(tf.constant, given)))
    return [w.numpy() for w in weights]


@pytest.mark.parametrize("name", SAME_AS_KERAS)
def test_twenty_steps_equal_keras(name):
    start, gradients = start_and_gradients()
    variables = [keras.Variable(w) for w in start]
    theirs = SAME_AS_KERAS[name]()
    for given in gradients:
        theirs.apply([tf.constant(g) for g in given], variables)
    got = run(as_optimizer(SAME_AS_KERAS[name]), start, gradients)
    for a, b in zip(got, variables, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-6, atol=1e-6)


def test_yogi_equals_its_paper_in_numpy():
    start, gradients = start_and_gradients()
    got = run(optimizers.build_yogi(0.1, 0.8, 0.9, 1e-2, 1e-3), start, gradients)
    for i, weight in enumerate(start):
        w, m, v = weight.astype(np.float64), 0.0, np.full(weight.shape, 1e-3)
        for t, given in enumerate(gradients, 1):
            g = given[i].astype(np.float64)
            m = 0.8 * m + 0.2 * g
            v = v - 0.1 * np.sign(v - g * g) * g * g
            w = w - 0.1 * np.sqrt(1 - 0.9**t) / (1 - 0.8**t) * m / (np.sqrt(v) + 1e-2)
        np.testing.assert_allclose(got[i], w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: K.Ftrl(), "keras.optimizers.Ftrl is no optimizer that fedcore knows; there is SGD, Adam"),
        (lambda: K.Nadam(), "Nadam"),
        (lambda: K.SGD(use_ema=True), "use_ema=True.*average the global models"),
        (lambda: K.SGD(gradient_accumulation_steps=2), "larger batches"),
        (lambda: K.SGD(loss_scale_factor=2.0), "mixed_bfloat16"),
        (lambda: K.LossScaleOptimizer(K.SGD()), "LossScaleOptimizer is not supported"),
        (lambda: K.SGD(lambda: 0.1), "give a Keras schedule or a number"),
        (lambda: 0.1, "0.1 is no optimizer"),
        (lambda: K.SGD, "is no optimizer"),
        (lambda: optimizers.build_sgdm(float("nan")), "learning_rate is a finite number"),
        (lambda: optimizers.build_adamw(weight_decay=-1.0), "weight_decay is a finite number"),
    ],
)
def test_what_has_no_functional_form_is_refused_with_a_reason(given, says):
    with pytest.raises(FedcoreError, match=says):
        as_optimizer(given)


def test_a_subclass_of_a_known_optimizer_is_refused_since_it_may_step_otherwise():
    class Mine(K.SGD):
        pass

    with pytest.raises(FedcoreError, match="Mine"):
        as_optimizer(Mine())


def test_weights_left_out_of_the_decay_are_refused():
    optimizer = K.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    with pytest.raises(FedcoreError, match="exclude_from_weight_decay"):
        as_optimizer(optimizer)


def test_hyperparameters_are_read_and_set_in_the_state():
    optimizer = optimizers.build_adamw(0.1)
    state = optimizer.initialize((tf.zeros([2]),))
    assert set(optimizer.get_hparams(state)) == {"learning_rate", "weight_decay"}
    after = optimizer.set_hparams(state, {"learning_rate": 0.5})
    assert optimizer.get_hparams(after)["learning_rate"] == 0.5
    with pytest.raises(FedcoreError, match="no hyperparameter rate; it has learning_rate, weight_decay"):
        optimizer.set_hparams(state, {"rate": 1.0})


def test_a_scheduled_optimizer_hides_its_learning_rate():
    scheduled = optimizers.schedule_learning_rate(optimizers.build_sgdm(), lambda step: 0.1)
    assert not scheduled.hyperparameters
    with pytest.raises(FedcoreError, match="keeps no learning_rate"):
        optimizers.schedule_learning_rate(scheduled, lambda step: 0.1)


def test_weights_of_several_dtypes_keep_them():
    weights = (tf.zeros([2], tf.float32), tf.zeros([2], tf.float64), tf.zeros([2], tf.bfloat16))
    for build in (optimizers.build_adam, optimizers.build_yogi, optimizers.build_adafactor, optimizers.build_rmsprop):
        optimizer = build()
        _, after = optimizer.next(optimizer.initialize(weights), weights, tuple(tf.ones_like(w) for w in weights))
        assert [w.dtype for w in after] == [w.dtype for w in weights]

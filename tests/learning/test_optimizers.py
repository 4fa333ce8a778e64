"""Functional optimizers against Keras' own, over 20 steps on the same gradients."""

import collections

import attrs
import keras
import numpy as np
import pytest
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.learning import optimizers
from fedcore.learning.optimizers import as_optimizer

K = keras.optimizers
STEPS = 20


class Halves(K.schedules.LearningRateSchedule):
    """A schedule without a configuration."""

    def __call__(self, step):
        return 0.1 * 0.5 ** keras.ops.cast(step, "float32")


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
    "a schedule of one's own": lambda: K.SGD(Halves(), momentum=0.9),
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
    # Keras' correction of Adam's bias is itself off by up to 8e-6 of a step; see the float64 formulas below.
    atol = 1e-5 if isinstance(theirs, K.Adam) else 1e-6
    for a, b in zip(got, variables, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-6, atol=atol)


def _adam(w, gradients, b1=0.9, b2=0.999, epsilon=1e-7, decay=0.0, largest=False, yogi=False):
    m, v, top = 0.0, np.full(w.shape, 1e-6) if yogi else 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        w = w * (1 - RATE * decay)
        m = b1 * m + (1 - b1) * g
        v = v - (1 - b2) * np.sign(v - g * g) * g * g if yogi else b2 * v + (1 - b2) * g * g
        top = np.maximum(top, v)
        w = w - RATE * np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(top if largest else v) + epsilon)
    return w


def _sgdm(w, gradients, momentum=0.0, nesterov=False):
    velocity = 0.0
    for g in gradients:
        velocity = momentum * velocity - RATE * g
        w = w + (momentum * velocity - RATE * g if nesterov else velocity)
    return w


def _adagrad(w, gradients):
    total = 0.1
    for g in gradients:
        total = total + g * g
        w = w - RATE * g / np.sqrt(total + 1e-7)
    return w


def _rmsprop(w, gradients, decay=0.9, momentum=0.0, centered=False):
    square = mean = velocity = 0.0
    for g in gradients:
        square = decay * square + (1 - decay) * g * g
        mean = decay * mean + (1 - decay) * g
        variance = np.maximum(square - mean * mean, 0) if centered else square
        velocity = momentum * velocity + RATE * g / np.sqrt(variance + 1e-7)
        w = w - velocity
    return w


def _rms(x):
    return np.sqrt(np.mean(x * x))


def _adafactor(w, gradients):
    rows = columns = whole = 0.0
    for t, g in enumerate(gradients, 1):
        share, square = t**-0.8, g * g + 1e-30
        if w.ndim < 2:
            v = whole = (1 - share) * whole + share * square
        else:
            rows = (1 - share) * rows + share * square.mean(-1)
            columns = (1 - share) * columns + share * square.mean(-2)
            v = (rows / rows.mean(-1, keepdims=True))[..., None] * columns[..., None, :]
        u = g / np.sqrt(v)
        w = w - max(1e-3, _rms(w)) * min(RATE, t**-0.5) * u / max(1.0, _rms(u))
    return w


def _scheduled(w, gradients):
    for t, g in enumerate(gradients):
        w = w - RATE * 0.5 ** (t / 5) * g
    return w


RATE = float(np.float32(0.1))
DECAY = K.schedules.ExponentialDecay(0.1, 5, 0.5)
FORMULAS = {
    "sgdm": (lambda: optimizers.build_sgdm(0.1), _sgdm),
    "momentum": (lambda: optimizers.build_sgdm(0.1, 0.9), lambda w, g: _sgdm(w, g, 0.9)),
    "nesterov": (lambda: optimizers.build_sgdm(0.1, 0.9, True), lambda w, g: _sgdm(w, g, 0.9, True)),
    "adam": (lambda: optimizers.build_adam(0.1), _adam),
    "adam, betas": (lambda: optimizers.build_adam(0.1, 0.5, 0.9), lambda w, g: _adam(w, g, 0.5, 0.9)),
    "amsgrad": (lambda: optimizers.build_adam(0.1, amsgrad=True), lambda w, g: _adam(w, g, largest=True)),
    "adamw": (lambda: optimizers.build_adamw(0.1, weight_decay=0.05), lambda w, g: _adam(w, g, decay=0.05)),
    "yogi": (lambda: optimizers.build_yogi(0.1), lambda w, g: _adam(w, g, epsilon=1e-3, yogi=True)),
    "adagrad": (lambda: optimizers.build_adagrad(0.1), _adagrad),
    "rmsprop": (lambda: optimizers.build_rmsprop(0.1), _rmsprop),
    "rmsprop, slow": (lambda: optimizers.build_rmsprop(0.1, 0.999), lambda w, g: _rmsprop(w, g, 0.999)),
    "rmsprop, centered": (
        lambda: optimizers.build_rmsprop(0.1, momentum=0.5, centered=True),
        lambda w, g: _rmsprop(w, g, momentum=0.5, centered=True),
    ),
    "adafactor": (lambda: optimizers.build_adafactor(0.1), _adafactor),
    "schedule": (lambda: optimizers.schedule_learning_rate(optimizers.build_sgdm(), DECAY), _scheduled),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_hundred_steps_equal_the_formula_in_float64(name):
    build, formula = FORMULAS[name]
    start, gradients = start_and_gradients()
    for a, i in zip(run(build(), start, gradients * 5), range(len(start)), strict=True):
        want = formula(start[i].astype(np.float64), [g[i].astype(np.float64) for g in gradients * 5])
        np.testing.assert_allclose(a, want, rtol=1e-6, atol=4e-6)


@pytest.mark.parametrize("build", [optimizers.build_adam, lambda rate: as_optimizer(lambda: K.Adam(rate))])
def test_four_steps_of_adam_on_equal_gradients(build):
    one = np.ones([1], np.float32)
    (weight,) = run(build(0.1), (one,), [(one,)] * 4)
    want = _adam(np.ones([1]), [np.ones([1])] * 4)
    np.testing.assert_allclose(weight, want, rtol=2e-7)  # 0.6000009: epsilon takes 9e-7


def test_averages_that_keep_nothing_take_signs():
    start, (gradients, *_) = start_and_gradients()
    for w, got, g in zip(start, run(optimizers.build_adam(0.1, 0.0, 0.0), start, [gradients]), gradients, strict=True):
        np.testing.assert_allclose(got, w - 0.1 * np.sign(g), rtol=1e-5, atol=1e-6)


def test_equal_gradients_have_no_variance_below_zero():
    (weight,) = run(
        optimizers.build_rmsprop(0.1, centered=True), (np.ones([3], np.float32),), [(np.float32([7, 90, 1e3]),)] * 99
    )
    assert np.isfinite(weight).all()


ALL = (
    *(optimizers.build_sgdm, optimizers.build_adam, optimizers.build_adamw, optimizers.build_adagrad),
    *(optimizers.build_adafactor, optimizers.build_rmsprop, optimizers.build_yogi),
)
NUMBERS = (
    np.float32(0.1),
    np.float64(0.1),
    np.array(0.1),
    tf.constant(0.1),
    tf.Variable(0.1),
    np.int64(1),
    keras.Variable(0.1),
)


@pytest.mark.parametrize("build", ALL)
def test_hyperparameters_are_numbers_of_numpy_and_tensorflow_too(build):
    weights = (tf.ones([2]),)
    _, want = build(0.1).next(build(0.1).initialize(weights), weights, weights)
    for rate in NUMBERS:
        optimizer = build(rate)
        _, got = optimizer.next(optimizer.initialize(weights), weights, weights)
        if float(rate) < 1:
            np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    for wrong in ("0.1", [0.1, 0.2], None, -1.0, np.float32(np.inf), tf.constant([0.1])):
        with pytest.raises(FedcoreError, match=r"learning_rate is a (finite )?number, 0 or more, not"):
            build(wrong)


def test_other_hyperparameters_too():
    share, small, weights = np.float32(0.5), tf.constant(1e-3), (tf.ones([2]),)
    for optimizer in (
        optimizers.build_sgdm(small, share),
        optimizers.build_adam(small, share, share, small),
        optimizers.build_yogi(small, share, share, small, small),
        optimizers.build_rmsprop(small, share, small, share),
        optimizers.build_adagrad(small, share, small),
        optimizers.build_adafactor(small, np.float32(-0.8), small, small, share),
        optimizers.build_adamw(small, share, share, small, small),
    ):
        optimizer.next(optimizer.initialize(weights), weights, weights)
    with pytest.raises(FedcoreError, match="beta_2 is less than 1, not 1"):
        optimizers.build_adam(0.1, beta_2=1.0)


Pair = collections.namedtuple("Pair", "a b")


@attrs.frozen
class Parts:
    a: object
    b: object


@pytest.mark.parametrize("build", ALL)
@pytest.mark.parametrize(
    "nested",
    [
        lambda a, b: {"kernel": a, "bias": {"inner": b}},
        lambda a, b: collections.OrderedDict(kernel=a, bias=[b]),
        Pair,
        Parts,
        lambda a, b: [a, (b,)],
    ],
)
def test_weights_are_nested_in_any_container(build, nested):
    a, b = tf.ones([2, 3]), tf.fill([4], 2.0)
    optimizer = build(0.1)
    flat = optimizer.next(optimizer.initialize((a, b)), (a, b), (2 * a, b))[1]
    weights = nested(a, b)
    state = optimizer.initialize(weights)
    after, moved = optimizer.next(state, weights, nested(2 * a, b))
    tf.nest.assert_same_structure(moved, weights)
    tf.nest.assert_same_structure(after, state)
    for got, want in zip(tf.nest.flatten(moved), tf.nest.flatten(nested(*flat)), strict=True):
        np.testing.assert_array_equal(got, want)
    specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), weights)
    tf.nest.assert_same_structure(optimizer.initialize(specs), state)
    _, alone = optimizer.next(optimizer.initialize(a), a, 2 * a)
    np.testing.assert_array_equal(alone, flat[0])


@pytest.mark.parametrize("wrap", [lambda o: o, lambda o: as_optimizer(K.AdamW(0.1, clipnorm=0.5, weight_decay=0.1))])
@pytest.mark.parametrize("build", ALL)
def test_a_weight_without_gradient_stays(build, wrap):
    a, b = tf.ones([2, 3]), tf.fill([4], 2.0)
    optimizer = wrap(build(0.1))
    state = optimizer.initialize({"a": a, "b": b})
    after, moved = optimizer.next(state, {"a": a, "b": b}, {"a": 2 * a, "b": None})
    _, alone = optimizer.next(optimizer.initialize({"a": a}), {"a": a}, {"a": 2 * a})
    np.testing.assert_array_equal(moved["b"], b)
    np.testing.assert_array_equal(moved["a"], alone["a"])
    tf.nest.assert_same_structure(after, state)
    _, unmoved = optimizer.next(state, {"a": a, "b": b}, {"a": None, "b": None})
    tf.nest.map_structure(np.testing.assert_array_equal, unmoved, {"a": a, "b": b})
    with pytest.raises(FedcoreError, match="given 2 weights and 1 gradients"):
        optimizer.next(state, {"a": a, "b": b}, {"a": a})


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


LOSS_SCALES = {
    "dynamic": lambda: K.LossScaleOptimizer(K.Adam(0.01, clipnorm=0.5), initial_scale=8.0, dynamic_growth_steps=3),
    "dynamic, by Keras": lambda: K.LossScaleOptimizer(K.Lion(0.01), initial_scale=8.0, dynamic_growth_steps=3),
    "fixed": lambda: K.SGD(0.1, momentum=0.9, loss_scale_factor=16.0),
}


@pytest.mark.parametrize("name", LOSS_SCALES)
def test_gradients_of_scaled_losses_step_as_in_keras(name):
    start, gradients = start_and_gradients()
    variables, theirs = [keras.Variable(w) for w in start], LOSS_SCALES[name]()
    theirs.build(variables)
    ours = as_optimizer(LOSS_SCALES[name], scales_loss=True)
    weights = tuple(map(tf.constant, start))
    state = ours.initialize(weights)
    for number, given in enumerate(gradients):
        overflows = number in (5, 6, 13) and name != "fixed"
        their_scale, our_scale = theirs.scale_loss(tf.constant(1.0)), ours.scale_loss(state, tf.constant(1.0))
        assert float(their_scale) == float(our_scale)
        scaled = [tf.constant(np.full_like(g, np.inf) if overflows else g * their_scale.numpy()) for g in given]
        theirs.apply(scaled, variables)
        state, weights = ours.next(state, weights, tuple(scaled))
    for a, b in zip(weights, variables, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: K.SGD(loss_scale_factor=2.0), "the optimizer scales losses"),
        (lambda: K.LossScaleOptimizer(K.SGD()), "loss scaling is for client_optimizer_fn"),
        (lambda: 0.1, r"0.1 is no optimizer: .*\n  fix: fc.learning.optimizers.build_sgdm\(0.1\)"),
        (lambda: K.SGD, "is no optimizer"),
        (lambda: optimizers.build_sgdm(float("nan")), "learning_rate is a finite number"),
        (lambda: optimizers.build_adamw(weight_decay=-1.0), "weight_decay is a finite number"),
    ],
)
def test_what_has_no_functional_form_is_refused_with_a_reason(given, says):
    with pytest.raises(FedcoreError, match=says):
        as_optimizer(given)


class Mine(K.SGD):
    """Steps twice as far."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(2 * gradient, variable, learning_rate)


BY_KERAS = {
    "lion": lambda: K.Lion(0.01, weight_decay=0.1),
    "nadam": lambda: K.Nadam(0.01),
    "adamax": lambda: K.Adamax(0.01, clipnorm=0.1),
    "ftrl": lambda: K.Ftrl(0.1),
    "adadelta": lambda: K.Adadelta(0.1),
    "lamb": lambda: K.Lamb(0.01),
    "schedule": lambda: K.Lion(K.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "accumulation": lambda: K.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.1),
    "averages": lambda: K.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.5),
    "overwritten": lambda: K.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    "subclass": lambda: Mine(0.1),
}


@pytest.mark.parametrize("name", BY_KERAS)
def test_steps_are_those_of_keras(name):
    start, gradients = start_and_gradients()
    variables, plain = [keras.Variable(w) for w in start], BY_KERAS[name]()
    for given in gradients:
        plain.apply([tf.constant(g) for g in given], variables)
    for have, want in zip(run(as_optimizer(BY_KERAS[name]()), start, gradients), variables, strict=True):
        np.testing.assert_allclose(have, want.numpy(), rtol=1e-6, atol=1e-7)


def test_averages_of_weights_stand_in_the_state():
    optimizer = as_optimizer(K.SGD(1.0, use_ema=True, ema_momentum=0.5))
    weights = (tf.constant([2.0]),)
    state, _ = optimizer.next(optimizer.initialize(weights), weights, (tf.constant([1.0]),))
    assert any(v.shape == [1] and v.numpy() == [1.0] for v in state["variables"])


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}])
def test_averages_are_the_final_weights_as_after_fit(steps, options):
    def make():
        return K.SGD(0.5, use_ema=True, ema_momentum=0.5, **options)

    variable, plain, optimizer = keras.Variable([2.0]), make(), as_optimizer(make())
    weights = (tf.constant([2.0]),)
    state = optimizer.initialize(weights)
    for _ in range(steps):
        plain.apply([tf.constant([1.0])], [variable])
        state, weights = optimizer.next(state, weights, (tf.constant([1.0]),))
    if steps:
        plain.finalize_variable_values([variable])
    np.testing.assert_allclose(optimizer.final_weights(state, weights)[0], variable.numpy(), rtol=1e-6)


def test_averages_without_effect_are_refused():
    with pytest.raises(FedcoreError, match=r"averages weights \(use_ema=True\), which has no effect here"):
        as_optimizer(K.SGD(use_ema=True), averages_weights=False)


def test_weights_are_left_out_of_the_decay_by_their_names():
    given = K.AdamW(0.1, weight_decay=0.5)
    given.exclude_from_weight_decay(var_names=["bias"])
    optimizer, weights = as_optimizer(given, ["kernel", "bias"]), (tf.ones([2]), tf.ones([2]))
    _, (kernel, bias) = optimizer.next(optimizer.initialize(weights), weights, (tf.zeros([2]), tf.zeros([2])))
    assert kernel.numpy().tolist() == [np.float32(0.95)] * 2
    assert bias.numpy().tolist() == [1.0, 1.0]


def test_weights_without_names_are_not_left_out_of_the_decay():
    given = K.AdamW()
    given.exclude_from_weight_decay(var_names=["bias"])
    with pytest.raises(FedcoreError, match="the weights of this model have no names"):
        as_optimizer(given)


def test_variables_are_not_left_out_of_the_decay():
    given = K.AdamW()
    given.exclude_from_weight_decay(var_list=[keras.Variable([1.0])])
    with pytest.raises(FedcoreError, match=r"fix: var_names=\[…\]"):
        as_optimizer(given, ["kernel"])


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


SCHEDULES = {
    "power": lambda step: 0.1 * 0.9**step,
    "product": lambda step: 0.1 * step,
    "quotient": lambda step: 0.1 / (1 + step),
    "exponential": lambda step: tf.exp(-step),
    "floor": lambda step: 0.1 * 0.5 ** (step // 2),
    "least": lambda step: tf.minimum(0.1, 0.04 * step),
    "gathered": lambda step: tf.gather([0.3, 0.2, 0.1], step),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_may_mix_the_step_with_floats(name):
    scheduled = optimizers.schedule_learning_rate(optimizers.build_sgdm(), SCHEDULES[name])
    step = tf.function(scheduled.next)
    state, weights, rates = scheduled.initialize(tf.zeros([])), tf.zeros([]), []
    for _ in range(3):
        before = weights
        state, weights = step(state, weights, tf.ones([]))
        rates.append(float(before - weights))
    expected = [
        float(SCHEDULES[name](tf.constant(n, tf.int32 if name == "gathered" else tf.float32))) for n in range(3)
    ]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (lambda step: None, "schedule_fn gives a learning rate, not None"),
        (lambda step: [0.1, 0.2], r"schedule_fn gives one learning rate, not numbers of shape \(2,\)"),
        (lambda step: "a" + step, "Expected int64, but got a"),
    ],
)
def test_a_schedule_that_gives_no_rate_says_so(schedule, says):
    scheduled = optimizers.schedule_learning_rate(optimizers.build_sgdm(), schedule)
    with pytest.raises(TypeError, match=says):
        tf.function(scheduled.next, autograph=False)(scheduled.initialize(tf.zeros([])), tf.zeros([]), tf.ones([]))


def test_weights_of_several_dtypes_keep_them():
    weights = (tf.zeros([2], tf.float32), tf.zeros([2], tf.float64), tf.zeros([2], tf.bfloat16))
    for build in (optimizers.build_adam, optimizers.build_yogi, optimizers.build_adafactor, optimizers.build_rmsprop):
        optimizer = build()
        _, after = optimizer.next(optimizer.initialize(weights), weights, tuple(tf.ones_like(w) for w in weights))
        assert [w.dtype for w in after] == [w.dtype for w in weights]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: optimizers.build_sgdm(0.1, momentum=1.5), "momentum is at most 1, not 1.5"),
        (
            lambda: optimizers.build_sgdm(0.1, nesterov=True),
            "nesterov looks ahead by the momentum, so it needs a moment",
        ),
        (lambda: optimizers.build_sgdm(0.1, momentum=0.0, nesterov=True), "so it needs a momentum above 0"),
        (lambda: optimizers.build_rmsprop(0.1, decay=1.5), "decay is at most 1, not 1.5"),
        (lambda: optimizers.build_rmsprop(0.1, momentum=1.01), "momentum is at most 1, not 1.01"),
        (lambda: optimizers.build_adafactor(beta_2_decay=0.8), "beta_2_decay is at most 0, not 0.8"),
        (lambda: optimizers.build_adafactor(clip_threshold=0.0), "clip_threshold is a finite number above 0, not 0.0"),
        (lambda: optimizers.as_optimizer(K.RMSprop(0.1, rho=1.5)), "decay is at most 1, not 1.5"),
    ],
)
def test_hyperparameters_outside_their_ranges_are_refused(build, says):
    with pytest.raises(FedcoreError, match=says):
        build()


def test_the_ends_of_a_range_belong_to_it_as_in_keras_and_tff():
    for made in (optimizers.build_sgdm(0.1, 1.0), optimizers.build_rmsprop(0.1, 1.0, momentum=1.0)):
        assert made.hyperparameters["momentum"] == 1.0


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_keras_clips_by_positive_bounds_only(option):
    plain, clipped = K.SGD(0.1), K.SGD(0.1, **{option: -1.0})
    weights, gradient = tf.constant([1.0, 2.0]), tf.constant([3.0, -4.0])
    results = []
    for given in (plain, clipped):
        made = optimizers.as_optimizer(given)
        results.append(made.next(made.initialize(weights), weights, gradient)[1].numpy())
    np.testing.assert_array_equal(results[0], results[1])


def test_keras_ignores_nesterov_without_momentum():
    made = optimizers.as_optimizer(K.SGD(0.1, nesterov=True))
    _, weights = made.next(made.initialize(tf.zeros(1)), tf.zeros(1), tf.ones(1))
    assert weights.numpy() == np.float32(-0.1)

"""Optimizers of the user's own: the object itself takes the steps that it takes in Keras. Decision 0290."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.learning import algorithms
from fedcore.learning.optimizers import as_optimizer, schedule_learning_rate

K, L = keras.optimizers, keras.layers
PATHS = ["net/base/kernel", "net/base/bias", "net/head/kernel", "net/head/bias"]
X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)
DATA = fc.data.ClientDataset.from_columns((X, Y)).batch(4)


def make_model():
    keras.utils.clear_session(free_memory=False)
    layers = [
        L.Dense(size, name=name, kernel_initializer=keras.initializers.GlorotUniform(seed))
        for size, name, seed in ((3, "base", 1), (1, "head", 2))
    ]
    return keras.Sequential([keras.Input((4,)), *layers], name="net")


def model_fn():
    return fc.learning.from_keras_model(make_model(), "mse", DATA.element_spec)


class ByName(K.SGD):
    """Has a required argument that no configuration holds, and a rate for parts of names."""

    def __init__(self, rates, learning_rate=0.1):
        super().__init__(learning_rate)
        self.rates = rates

    def update_step(self, gradient, variable, learning_rate):
        for part, rate in self.rates.items():
            learning_rate = learning_rate * (rate if part in variable.name else 1.0)
        super().update_step(gradient, variable, learning_rate)


class ByPath(K.SGD):
    def build(self, variables):
        super().build(variables)
        self.scales = [0.0 if "net/base/" in v.path else 1.0 for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * self.scales[self._get_variable_index(variable)])


class WithoutConfig(K.Optimizer):
    def __init__(self, strength):
        super().__init__(learning_rate=0.1)
        self.strength = strength

    def get_config(self):
        return {}

    def update_step(self, gradient, variable, learning_rate):
        variable.assign_sub(learning_rate * self.strength * gradient)


class Slots(K.Optimizer):
    """Keeps an integer, booleans and two floats for each weight, in lists that `__init__` made."""

    def __init__(self):
        super().__init__(learning_rate=0.1)
        self.counts, self.signs = [], {}

    def build(self, variables):
        super().build(variables)
        for variable in variables:
            self.counts.append(self.add_variable((), dtype="int32", name="count"))
            self.signs[variable.path] = self.add_variable(variable.shape, dtype="bool", name="sign")
        self.sums, self.squares = self.add_optimizer_variables(variables, ["sum", "square"])

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        count, sign = self.counts[i], self.signs[self._trainable_variables[i].path]
        count.assign_add(1)
        factor = tf.where(tf.convert_to_tensor(sign), 0.5, 1.0) / tf.cast(count, gradient.dtype)
        self.assign(sign, gradient > 0)
        self.assign_add(self.sums[i], gradient)
        self.assign_add(self.squares[i], gradient**2)
        self.assign_sub(variable, learning_rate * factor * self.sums[i] / (1 + tf.sqrt(self.squares[i])))


class Halved(K.SGD):
    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(g / 2, v) for g, v in grads_and_vars])


class Reversed(K.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply([-g for g in grads], trainable_variables)


class Lookahead(K.SGD):
    """Starts its slow weights from the weights."""

    def build(self, variables):
        super().build(variables)
        with tf.init_scope():
            self.slow = [keras.Variable(v.numpy(), trainable=False) for v in variables]

    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        for slow, fast in zip(self.slow, self._trainable_variables, strict=True):
            slow.assign(slow + 0.5 * (fast - slow))
            fast.assign(slow)


class Sharing(K.SGD):
    """Hands a tensor from `apply` to `update_step`, and keeps the names of weights in a list that it makes once."""

    def apply(self, grads, trainable_variables=None):
        self.names = getattr(self, "names", None) or [v.path for v in trainable_variables]
        self.largest = keras.ops.max(keras.ops.stack([keras.ops.max(keras.ops.abs(g)) for g in grads]))
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient / self.largest * len(self.names), variable, learning_rate)


class Warming(K.SGD):
    @property
    def learning_rate(self):
        return super().learning_rate * keras.ops.cast(self.iterations + 1, "float32")


def changed(optimizer, **attributes):
    for name, value in attributes.items():
        setattr(optimizer, name, value)
    return optimizer


def with_function(optimizer):
    original = optimizer.update_step
    optimizer.update_step = lambda gradient, variable, rate: original(gradient / 4, variable, rate)
    return optimizer


def with_method(optimizer):
    def update_step(self, gradient, variable, learning_rate):
        if "bias" not in variable.name:
            variable.assign_sub(self.momentum * learning_rate * gradient)

    optimizer.update_step = types.MethodType(update_step, optimizer)
    return optimizer


def with_apply(optimizer):
    original = optimizer.apply
    optimizer.apply = lambda grads, variables=None: original([tf.sign(g) for g in grads], variables)
    return optimizer


def without_decay(optimizer, *names):
    optimizer.exclude_from_weight_decay(var_names=list(names))
    return optimizer


OPTIMIZERS = {
    "a rate of zero for the base": lambda: ByName({"base": 0.0}),
    "rates by name": lambda: ByName({"kernel": 0.5, "net/head": 0.1}),
    "a rate by path": lambda: ByPath(0.1),
    "an argument that is set later": lambda: changed(ByName({}), rates={"head": 0.1}),
    "a schedule": lambda: ByName({"base": 0.0}, K.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "without a configuration": lambda: WithoutConfig(2.0),
    "slots of three dtypes": lambda: Slots(),
    "apply_gradients": lambda: Halved(0.1),
    "apply": lambda: Reversed(0.1),
    "slow weights": lambda: Lookahead(0.1),
    "a tensor between methods": lambda: Sharing(0.1),
    "a rate by step": lambda: Warming(0.01),
    "a replaced function": lambda: with_function(K.SGD(0.1)),
    "a replaced method": lambda: with_method(K.SGD(0.1, momentum=0.5)),
    "a replaced apply": lambda: with_apply(K.Adam(0.1)),
    "a rate and a norm that are set later": lambda: changed(K.SGD(0.1), learning_rate=0.02, clipnorm=0.1),
    "a momentum that is set later": lambda: changed(K.SGD(0.1, momentum=0.5), momentum=0.9),
    "accumulation that is set later": lambda: changed(K.SGD(0.1), gradient_accumulation_steps=2),
    "averages that are set later": lambda: changed(K.SGD(0.1), use_ema=True, ema_momentum=0.5),
    "decay without a layer": lambda: without_decay(K.AdamW(0.1, weight_decay=0.9), "net/base"),
    "muon by layer": lambda: K.Muon(0.01, exclude_layers=["head"]),
}


def gradients():
    rng = np.random.default_rng(1)
    return [[tf.constant(rng.normal(size=v.shape), tf.float32) for v in make_model().variables] for _ in range(4)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_object_in_keras(name):
    model, theirs = make_model(), OPTIMIZERS[name]()
    ours = as_optimizer(OPTIMIZERS[name](), PATHS)
    weights = tuple(tf.constant(v.numpy()) for v in model.variables)
    state = ours.initialize(weights)
    for step in gradients():
        theirs.apply_gradients(zip(step, model.variables, strict=True))
        state, weights = ours.next(state, weights, tuple(step))
    for weight, variable in zip(weights, model.variables, strict=True):
        np.testing.assert_allclose(weight, variable.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["a rate of zero for the base", "slots of three dtypes", "slow weights"])
def test_a_round_of_one_client_is_fit(name):
    process = algorithms.build_weighted_fed_avg(model_fn, OPTIMIZERS[name])
    state = process.next(process.initialize(), [DATA]).state
    model = make_model()
    model.compile(OPTIMIZERS[name](), "mse")
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    for weight, variable in zip(process.get_model_weights(state).trainable, model.variables, strict=True):
        np.testing.assert_allclose(weight, variable.numpy(), rtol=1e-5, atol=1e-6)


def test_the_object_is_afterwards_as_it_was():
    given = Slots()
    before = dict(vars(given))
    optimizer = as_optimizer(given, PATHS)
    weights = tuple(tf.constant(v.numpy()) for v in make_model().variables)
    optimizer.next(optimizer.initialize(weights), weights, tuple(gradients()[0]))
    assert type(given) is Slots
    assert dict(vars(given)) == before
    assert (given.counts, given.signs, given.built, len(given.variables)) == ([], {}, False, 2)


def frozen_base():
    return ByName({"base": 0.0})


ALGORITHMS = {
    "proximal": lambda: algorithms.build_weighted_fed_prox(model_fn, 0.1, frozen_base),
    "mime lite": lambda: algorithms.build_weighted_mime_lite(model_fn, frozen_base),
    "gradient descent": lambda: algorithms.build_fed_sgd(model_fn, frozen_base),
    "server": lambda: algorithms.build_weighted_fed_avg(model_fn, lambda: K.SGD(0.1), frozen_base),
    "scheduled round": lambda: algorithms.build_weighted_fed_avg_with_optimizer_schedule(
        model_fn, lambda r: 0.1, frozen_base
    ),
    "scheduled step": lambda: algorithms.build_weighted_fed_avg(
        model_fn, schedule_learning_rate(frozen_base(), lambda step: 0.1)
    ),
    "scaled loss": lambda: algorithms.build_weighted_fed_avg(
        model_fn, lambda: K.LossScaleOptimizer(frozen_base(), initial_scale=2.0)
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_tells_the_names_of_its_weights(name):
    process = ALGORITHMS[name]()
    state = process.initialize()
    first = process.get_model_weights(state).trainable
    last = process.get_model_weights(process.next(state, [DATA]).state).trainable
    moved = [bool(np.any(a != b)) for a, b in zip(first, last, strict=True)]
    assert moved == [False, False, True, True]


def test_reconstruction_tells_the_names_of_both_groups():
    def reconstruction_model():
        model = make_model()
        return fc.learning.models.ReconstructionModel.from_keras_model_and_layers(
            model, global_layers=model.layers[:1], local_layers=model.layers[1:], input_spec=DATA.element_spec
        )

    def loss(part):
        process = algorithms.build_fed_recon(
            reconstruction_model,
            loss_fn=keras.losses.MeanSquaredError,
            reconstruction_optimizer_fn=lambda: ByName({part: 0.0}),
            client_optimizer_fn=lambda: ByName({"head": 0.0}, 0.0),
        )
        return process.next(process.initialize(), [DATA]).metrics["client_work"]["train"]["loss"]

    assert loss("net/head") != loss("net/base") == loss("nothing")


def test_a_seed_generator_draws_in_each_step_and_round_anew():
    class Noisy(K.SGD):
        def __init__(self):
            super().__init__(1.0)
            self.generator = keras.random.SeedGenerator(1)

        def update_step(self, gradient, variable, learning_rate):
            variable.assign(keras.random.normal(variable.shape, seed=self.generator))

    optimizer = as_optimizer(Noisy())

    @fc.tf_computation
    def two_steps():
        weights, drawn = (tf.zeros([3]),), []
        state = optimizer.initialize(weights)
        for _ in range(2):
            state, weights = optimizer.next(state, weights, weights)
            drawn.append(weights[0])
        return drawn

    first, again, other = (two_steps.invoke(seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert len({float(x) for pair in (first, other) for drawn in pair for x in drawn}) == 12


class InPython(K.SGD):
    def __init__(self):
        super().__init__(0.1)
        self.steps = 0

    def update_step(self, gradient, variable, learning_rate):
        self.steps += 1
        super().update_step(gradient, variable, learning_rate / self.steps)


class InList(InPython):
    def __init__(self):
        super().__init__()
        self.seen = []

    def update_step(self, gradient, variable, learning_rate):
        self.seen.append(0)
        K.SGD.update_step(self, gradient, variable, learning_rate / len(self.seen))


class ByClass(K.SGD):
    steps = 0

    def update_step(self, gradient, variable, learning_rate):
        self.steps += 1
        super().update_step(gradient, variable, learning_rate / self.steps)


class Remembering(K.SGD):
    last = None

    def apply(self, grads, trainable_variables=None):
        super().apply(grads if self.last is None else self.last, trainable_variables)
        self.last = grads


class OfTensorFlow(K.SGD):
    def __init__(self):
        super().__init__(0.1)
        self.count = tf.Variable(1.0)

    def update_step(self, gradient, variable, learning_rate):
        self.count.assign_add(1.0)
        super().update_step(gradient, variable, learning_rate / self.count)


class Lazy(K.SGD):
    def update_step(self, gradient, variable, learning_rate):
        if not hasattr(self, "count"):
            self.count = self.add_variable((), name="count")
        super().update_step(gradient, variable, learning_rate)


class ByHandle(K.SGD):
    def update_step(self, gradient, variable, learning_rate):
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=learning_rate * gradient)


class Doubled(K.SGD):
    def build(self, variables):
        super().build(variables)
        with tf.init_scope():
            self.doubles = [keras.Variable(2 * v.numpy(), trainable=False) for v in variables]


class Scaling(K.SGD):
    def scale_loss(self, loss):
        return 2 * loss


class ScaledMine(K.LossScaleOptimizer):
    def scale_loss(self, loss):
        return 2 * loss


def used():
    optimizer = WithoutConfig(1.0)
    optimizer.build(make_model().variables)
    return optimizer


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (InPython, r"InPython changes self.steps in its step, which Python does once.*\n  fix: keep it in a variable"),
        (InList, "InList changes self.seen in its step"),
        (ByClass, "ByClass changes self.steps in its step"),
        (Remembering, "Remembering keeps a tensor of a step for the next one"),
        (OfTensorFlow, r"OfTensorFlow reads a tf.Variable, .*\n  fix: make it by self.add_variable"),
        (Lazy, r"Lazy makes the variable count in its step\n  fix: make all variables in build"),
        (ByHandle, "ByHandle cannot be taken here: TypeError: .*resource"),
        (Doubled, "build of Doubled draws the first value of .*, or computes it from the weights"),
        (Scaling, "Scaling has a scale_loss of its own, which is not called"),
        (lambda: ScaledMine(K.SGD(0.1)), "ScaledMine is a LossScaleOptimizer with methods of its own"),
        (used, r"WithoutConfig has been built, .*\n  fix: .* lambda: WithoutConfig\(…\)"),
    ],
)
def test_an_optimizer_whose_step_is_none_of_a_graph_is_refused(make, says):
    with pytest.raises(FedcoreError, match=says):
        as_optimizer(make(), PATHS, scales_loss=True).initialize(
            tuple(map(tf.convert_to_tensor, make_model().variables))
        )


def test_names_that_weights_do_not_have_are_not_read():
    optimizer = as_optimizer(frozen_base())
    with pytest.raises(FedcoreError, match="ByName reads names of weights, but the weights have no names here"):
        optimizer.initialize((tf.zeros([2]),))


def test_an_optimizer_of_keras_that_was_used_starts_anew():
    used, fresh = K.Lion(0.1), K.Lion(0.1)
    used.apply([tf.constant([1.0])], [keras.Variable([1.0])])
    states = [as_optimizer(optimizer).initialize((tf.zeros([1]),)) for optimizer in (used, fresh)]
    tf.nest.map_structure(np.testing.assert_array_equal, *states)

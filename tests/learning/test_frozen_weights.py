"""Weights that no training step changes: they are not sent back, clipped with, averaged or noised."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TracingError, TypeMismatch

L, algorithms, learning = keras.layers, fc.learning.algorithms, fc.learning
CROSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RNG = np.random.default_rng(7)
X = RNG.normal(size=(24, 6)).astype(np.float32)
Y = (X @ RNG.normal(size=(6, 3))).argmax(1).astype(np.int32)
DATA = [fc.data.ClientDataset.from_columns((X[i::2], Y[i::2])).batch(6) for i in range(2)]
SPEC = DATA[0].element_spec
DP = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 10, clip=1.0)


def sequential(*layers, inputs=None):
    return keras.Sequential([keras.Input((6,)) if inputs is None else inputs, *layers])


def lora():
    model = sequential(L.Dense(3, name="base"))
    model.layers[0].enable_lora(2)
    return model


def adapted():
    normalization = L.Normalization(name="adapted")
    normalization.adapt(0.07 * X)
    return sequential(normalization, L.Dense(3))


def backbone():
    return sequential(L.Dense(5, name="inner"), L.BatchNormalization(name="norm"))


def frozen_backbone():
    inner = backbone()
    inner.trainable = False
    return sequential(inner, L.Dense(3))


class InInference(keras.Model):
    """Calls its backbone in inference mode, so that nothing assigns the averages in it."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = backbone(), L.Dense(3)

    def call(self, x):
        return self.head(self.inner(x, training=False))


def partly_frozen():
    inner = backbone()
    inner.layers[0].trainable = False
    return sequential(inner, L.Dense(3))


def frozen_variable():
    model = sequential(L.Dense(3, name="half"))
    model.layers[0].kernel.trainable = False
    return model


class Scaled(L.Layer):
    """Divides by the mean size of its inputs so far, and keeps a base beside it."""

    def build(self, shape):
        self.base = self.add_weight(shape=(shape[-1],), initializer="ones", trainable=False, name="base")
        self.size = self.add_weight(shape=(), initializer="ones", trainable=False, name="size")
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1.0)
            self.size.assign(self.size + (tf.reduce_mean(tf.abs(x)) - self.size) / (self.count + 1))
        return x * self.base / self.size


# name: (model, ends of the paths of its frozen weights, of its assigned weights)
KERAS = {
    "lora": (lora, ["base/kernel"], []),
    "adapted": (adapted, ["adapted/mean", "adapted/variance"], []),
    "embedding": (
        lambda: sequential(L.Embedding(5, 4, trainable=False, name="words"), L.Flatten(), L.Dense(3)),
        ["words/embeddings"],
        [],
    ),
    "backbone": (
        frozen_backbone,
        ["inner/kernel", "inner/bias", "norm/gamma", "norm/beta", "norm/moving_mean", "norm/moving_variance"],
        [],
    ),
    "backbone in inference": (InInference, ["norm/moving_mean", "norm/moving_variance"], []),
    "partly frozen": (
        partly_frozen,
        ["inner/kernel", "inner/bias"],
        ["norm/moving_mean", "norm/moving_variance"],
    ),
    "variable": (frozen_variable, ["half/kernel"], []),
    "own layer": (
        lambda: sequential(Scaled(name="scaled"), L.Dense(3)),
        ["scaled/base"],
        ["scaled/size", "scaled/count"],
    ),
}


def model_fn_of(make, spec=SPEC):
    return lambda: learning.from_keras_model(make(), CROSS, spec)


@pytest.mark.parametrize("name", KERAS)
def test_a_weight_that_no_training_step_assigns_is_frozen(name):
    make, frozen, assigned = KERAS[name]
    spec = (tf.TensorSpec([None, 6], tf.int32), SPEC[1]) if name == "embedding" else SPEC
    model = learning.models.trace_model(model_fn_of(make, spec))
    paths = [v.path for v in model.non_trainable]
    by_role = [[p for p in paths if (p in model.weight_roles.names) == is_assigned] for is_assigned in (False, True)]
    for have, want in zip(by_role, (frozen, assigned), strict=True):
        assert len(have) == len(want)
        assert all(path.endswith(end) for path, end in zip(have, want, strict=True))


class Own(learning.Model):
    """Frozen and assigned variables, of which the first forward pass and `__init__` assign some."""

    def __init__(self):
        self.base = tf.Variable(lambda: tf.ones([6, 3]), trainable=False, name="base")
        self.base.assign(self.base / 2)
        self.mean = tf.Variable(lambda: tf.zeros([6]), trainable=False, name="mean")
        self.kernel = tf.Variable(lambda: tf.ones([3, 1]))
        self.seen = tf.Variable(0.0, trainable=False)

    trainable_variables = property(lambda self: [self.kernel])
    non_trainable_variables = property(lambda self: [self.base, self.mean])
    local_variables = property(lambda self: [self.seen])
    input_spec = property(lambda self: SPEC)

    def predict_on_batch(self, x, training=True):
        return (x - self.mean) @ self.base @ self.kernel

    @tf.function
    def forward_pass(self, batch_input, training=True):
        x, y = batch_input
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
        self.seen.assign_add(1.0)
        predictions = self.predict_on_batch(x)[:, 0]
        loss = tf.reduce_mean((predictions - tf.cast(y, tf.float32)) ** 2)
        return learning.BatchOutput(loss, predictions, tf.shape(y)[0])

    def report_local_unfinalized_metrics(self):
        return {"seen": [self.seen]}

    def metric_finalizers(self):
        return {"seen": lambda values: values[0]}

    def reset_metrics(self):
        self.seen.assign(0.0)


def functional():
    start = learning.ModelWeights(
        (np.ones([3, 1], np.float32),), (np.full([6, 3], 0.5, np.float32), np.zeros(6, np.float32))
    )

    @tf.function
    def apply(kernel, base, mean, x):
        return (x - mean) @ base @ kernel, base, 0.9 * mean + 0.1 * tf.reduce_mean(x, 0)

    def forward_pass(weights, batch, training):
        x, y = batch
        predictions, *moved = apply(*weights.trainable, *weights.non_trainable, x)
        loss = tf.reduce_mean((predictions[:, 0] - tf.cast(y, tf.float32)) ** 2)
        return learning.BatchOutput(loss, predictions, tf.shape(y)[0]), tuple(moved)

    return learning.models.FunctionalModel(
        start, forward_pass, SPEC, lambda weights, x, training: apply(*weights.trainable, *weights.non_trainable, x)[0]
    )


def test_a_step_that_returns_too_few_weights_is_refused():
    def forward_pass(weights, batch, training):
        x, y = batch
        return learning.BatchOutput(tf.reduce_mean(x @ weights.trainable[0]), None, tf.shape(y)[0]), ()

    start = learning.ModelWeights((np.ones([6, 1], np.float32),), (np.zeros(6, np.float32),))
    model = learning.models.FunctionalModel(start, forward_pass, SPEC)
    with pytest.raises(TypeMismatch, match=r"returns other non-trainable weights .*\n.*the model .*float32\[6\]"):
        algorithms.build_weighted_fed_avg(model, sgd)


def loaded(path):
    learning.models.save(functional(), path)
    return learning.models.load(path)


@pytest.mark.parametrize("kind", ["variables", "functions", "functions with variables", "loaded"])
def test_models_without_keras_have_frozen_weights_too(kind, tmp_path):
    model = {
        "variables": Own,
        "functions": functional(),
        "functions with variables": lambda: learning.models.model_from_functional(functional()),
        "loaded": lambda: loaded(tmp_path / "model"),
    }[kind]
    traced = learning.models.trace_model(model)
    name = "mean" if kind == "variables" else "non_trainable[1]"
    assert (traced.weight_roles.assigned, traced.weight_roles.names) == ((1,), (name,))


def mixed():
    """Weights of all three roles: a frozen layer, averages that steps assign, and trainable weights."""
    return sequential(
        L.Dense(4, kernel_initializer="ones", trainable=False), L.BatchNormalization(momentum=0.5), L.Dense(3)
    )


def sgd():
    return keras.optimizers.SGD(0.1)


def top_half(spec):
    return fc.aggregators.encoders.top_k(0.5)


def client_states(model_fn, initial_client_state):
    """Federated averaging by steps of gradient descent, whose clients count them."""
    model = learning.models.trace_model(model_fn)

    def local_step(weights, own, metrics, batch, sent):
        gradients, _, assigned, metrics = learning.models.gradients_of(model, weights, metrics, batch)
        moved = tuple(w - 0.1 * g for w, g in zip(weights.trainable, gradients, strict=True))
        return learning.ModelWeights(moved, assigned), own + 1, metrics

    return algorithms.build_fed_avg_with_client_states(model, local_step, initial_client_state)


ALGORITHMS = {
    "fed_avg": lambda fn: algorithms.build_weighted_fed_avg(fn, sgd),
    "unweighted fed_avg": lambda fn: algorithms.build_unweighted_fed_avg(fn, sgd, keras.optimizers.Adam()),
    "fed_prox": lambda fn: algorithms.build_weighted_fed_prox(fn, 0.1, sgd),
    "schedule": lambda fn: algorithms.build_weighted_fed_avg_with_optimizer_schedule(
        fn, keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), sgd
    ),
    "fed_sgd": algorithms.build_fed_sgd,
    "mime_lite": lambda fn: algorithms.build_weighted_mime_lite(fn, sgd()),
    "scaffold": lambda fn: algorithms.build_scaffold(fn, 0.1, num_clients=2),
    "fed_nova": lambda fn: algorithms.build_fed_nova(fn, 0.1),
    "q_fed_avg": lambda fn: algorithms.build_q_fed_avg(fn, 1.0, 0.1),
    "fed_dyn": lambda fn: algorithms.build_fed_dyn(fn, 0.1, 0.1, num_clients=2),
    "ditto": lambda fn: algorithms.build_ditto(fn, 0.1, sgd),
    "optimizer states": lambda fn: algorithms.build_fed_avg_with_optimizer_states(fn, keras.optimizers.Adam()),
    "own steps": lambda fn: client_states(fn, lambda: tf.constant(0)),
    "own steps from the weights": lambda fn: client_states(fn, lambda weights: tf.size(weights.trainable[0])),
    "error feedback": lambda fn: algorithms.build_fed_avg_with_error_feedback(fn, sgd, encoder_fn=top_half),
    "compression": lambda fn: algorithms.build_weighted_fed_avg(
        fn, sgd, model_aggregator=learning.compression_aggregator(encoder_fn=top_half)
    ),
    "secure": lambda fn: algorithms.build_weighted_fed_avg(fn, sgd, model_aggregator=learning.secure_aggregator()),
    "measured": lambda fn: algorithms.build_weighted_fed_avg(
        fn, sgd, model_aggregator=learning.add_debug_measurements(fc.aggregators.MeanFactory())
    ),
}


REPRESENTATIVES = ["fed_avg", "fed_sgd", "mime_lite", "scaffold", "own steps from the weights", "secure"]
"""One for each way of the clients' work, and one aggregator that takes a tensor apart."""


def first_client_states(process, state):
    takes_state = process.initial_client_state.type_signature.parameter is not None
    return [process.initial_client_state(*([state] if takes_state else [])) for _ in DATA]


def run_round(process, state):
    if isinstance(process, fc.learning.ClientStateProcess):
        return process.next(state, DATA, first_client_states(process, state))
    return process.next(state, DATA)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in REPRESENTATIVES else pytest.mark.soak) for name in ALGORITHMS]
)
def test_an_algorithm_takes_frozen_weights_as_constants(name):
    """A frozen layer keeps its bits; the rest is trained as if the layer had been applied to the data before."""
    outside = sequential(L.BatchNormalization(momentum=0.5), L.Dense(3), inputs=keras.Input((4,)))
    process = ALGORITHMS[name](model_fn_of(mixed))
    state = process.initialize.invoke(seed=1)
    ones = np.ones([6, 4], np.float32)
    features = [fc.data.ClientDataset.from_columns((X[i::2] @ ones, Y[i::2])).batch(6) for i in range(2)]
    head = ALGORITHMS[name](lambda: learning.from_keras_model(outside, CROSS, features[0].element_spec))
    start = learning.ModelWeights(state.model.trainable, state.model.non_trainable)
    head_state = head.set_model_weights(head.initialize.invoke(seed=1), start)
    trained = run_round(process, state).state.model
    with_states = isinstance(head, learning.ClientStateProcess)
    states = [first_client_states(head, head_state)] if with_states else []
    wanted = head.next(head_state, features, *states).state.model
    for have, want in zip(
        (*trained.trainable, *trained.non_trainable), (*wanted.trainable, *wanted.non_trainable), strict=True
    ):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [adapted, frozen_backbone, lora])
def test_noise_leaves_the_bits_of_frozen_weights(make):
    process = algorithms.build_unweighted_fed_avg(model_fn_of(make), sgd, model_aggregator=DP)
    first = state = process.initialize.invoke(seed=1)
    frozen = [w.tobytes() for w in process.get_model_weights(first).non_trainable]
    for _ in range(3):
        state = process.next(state, DATA).state
    assert [w.tobytes() for w in process.get_model_weights(state).non_trainable] == frozen
    assert all(np.any(a != b) for a, b in zip(first.model.trainable, state.model.trainable, strict=True))


def test_frozen_weights_take_no_part_of_the_clip():
    """A large frozen kernel leaves the clip to the head: its change has the norm of the clip."""
    process = algorithms.build_unweighted_fed_avg(
        model_fn_of(mixed_without_averages),
        lambda: keras.optimizers.SGD(10.0),
        model_aggregator=fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.0, 1, clip=1.0),
    )
    state = process.initialize.invoke(seed=1)
    after = process.next(state, DATA[:1]).state
    changes = [a - b for a, b in zip(after.model.trainable, state.model.trainable, strict=True)]
    np.testing.assert_allclose(np.sqrt(sum(np.sum(c**2) for c in changes)), 1.0, rtol=1e-5)


def mixed_without_averages():
    return sequential(L.Dense(4, kernel_initializer="ones", trainable=False), L.Dense(3))


def test_the_weights_that_are_trained_cross_and_no_others():
    def make():
        inner = sequential(L.Dense(60), L.Dense(60))
        inner.trainable = False
        return sequential(inner, L.Dense(3))

    process = algorithms.build_weighted_fed_avg(model_fn_of(make), sgd)
    state = process.initialize()
    process.next(state, DATA)
    crossings = fc.context.last_report().crossings
    sent, returned = (
        sum(c.bits for c in crossings if c.kind == kind and c.tensor.startswith(tensor))
        for kind, tensor in (("broadcast", "global_model_weights"), ("merge", "update"))
    )
    trained = sum(w.size for w in state.model.trainable)
    assert returned == 2 * 32 * trained
    assert returned == sent


def test_the_weights_of_a_state_have_the_frozen_ones_too():
    process = algorithms.build_weighted_fed_avg(model_fn_of(mixed), sgd)
    state = process.initialize()
    model = mixed()
    process.get_model_weights(process.next(state, DATA).state).assign_weights_to(model)
    state = process.set_model_weights(state, learning.ModelWeights.from_model(model))
    assert len(process.get_model_weights(process.next(state, DATA).state).non_trainable) == 4


@pytest.mark.parametrize("from_processes", [False, True])
def test_the_weights_of_evaluations_of_several_models_have_the_frozen_ones_too(from_processes):
    model_fns = [model_fn_of(mixed)] * 2
    if from_processes:
        process = algorithms.build_fed_multi_model_eval_from_processes([*map(algorithms.build_fed_eval, model_fns)])
    else:
        process = algorithms.build_fed_multi_model_eval(model_fns)
    state, model = process.initialize(), mixed()
    process.get_model_weights(state)["a"].assign_weights_to(model)
    model.trainable_variables[0].assign_add(tf.ones_like(model.trainable_variables[0]))
    b = process.get_model_weights(state)["b"]
    weights = process.get_model_weights(
        process.next(process.set_model_weights(state, {"a": model, "b": b}), DATA).state
    )
    assert len(weights["a"].non_trainable) == len(weights["b"].non_trainable) == 4
    np.testing.assert_array_equal(weights["a"].trainable[0], model.trainable_variables[0])


def test_personalization_keeps_frozen_weights():
    evaluate = algorithms.build_personalization_eval_computation(model_fn_of(mixed), {"sgd": sgd})
    weights = learning.ModelWeights.from_model(mixed())
    metrics = evaluate(weights, [{"train_data": DATA[0], "test_data": DATA[0]}])
    assert metrics["sgd"]["loss"][0] != metrics["baseline_metrics"]["loss"][0]


def test_reconstruction_sends_no_frozen_global_weights():
    def make():
        model = mixed()
        return learning.models.ReconstructionModel.from_keras_model_and_layers(
            model, global_layers=model.layers[:2], local_layers=model.layers[2:], input_spec=SPEC
        )

    process = algorithms.build_fed_recon(make, loss_fn=lambda: CROSS)
    state = process.initialize()
    after = process.next(state, DATA).state
    sent = {c.tensor for c in fc.context.last_report().crossings if c.kind == "merge"}
    assert {name for name in sent if "non_trainable" in name} == {"update.non_trainable[0]", "update.non_trainable[1]"}
    assert all(np.any(a != b) for a, b in zip(state.model.non_trainable, after.model.non_trainable, strict=True))
    assert len(process.get_model_weights(after).non_trainable) == 4


def small_variances():
    """Variances that fall fast to a size that noise of 0.1 takes below zero."""
    small = keras.initializers.RandomNormal(stddev=0.01)
    return sequential(L.Dense(8, kernel_initializer=small), L.BatchNormalization(momentum=0.1), L.Dense(3))


PRIVATE = [DP, learning.dp_aggregator(1.0, 100, zeroing=True), learning.ddp_secure_aggregator(1.0, 10, clip=0.5)]


@pytest.mark.parametrize("factory", PRIVATE, ids=["fixed clip", "adaptive clip", "noise of clients"])
def test_noise_on_averages_is_told_when_a_process_is_built(factory):
    wanted = (
        r"model_aggregator clips and adds noise to 2 weights that training steps assign \(\S+/moving_mean, "
        r"\S+/moving_variance\).*model_aggregator=fc.learning.trainable_weights_aggregator"
    )
    with pytest.warns(RuntimeWarning, match=wanted) as caught:
        algorithms.build_unweighted_fed_avg(model_fn_of(small_variances), sgd, model_aggregator=factory)
    assert caught[0].filename.endswith("test_frozen_weights.py")


def test_evaluations_stay_finite_with_noise_on_averages():
    private = fc.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, len(DATA), clip=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        process = algorithms.build_unweighted_fed_avg(model_fn_of(small_variances), sgd, model_aggregator=private)
    evaluation = algorithms.build_fed_eval(model_fn_of(small_variances))
    state, least = process.initialize.invoke(seed=3), []
    for _ in range(6):
        state = process.next(state, DATA).state
        least.append(state.model.non_trainable[1].min())
        evaluated = evaluation.set_model_weights(evaluation.initialize(), state.model)
        metrics = evaluation.next(evaluated, DATA).metrics["client_work"]["eval"]["current_round_metrics"]
        assert np.isfinite(metrics["loss"])
    assert min(least) == 0  # noise did take a variance to the bound


def test_averages_with_variables_of_a_model_of_functions_have_their_bound_too():
    functions = learning.models.functional_model_from_keras(small_variances(), CROSS, SPEC)
    model = learning.models.trace_model(lambda: learning.models.model_from_functional(functions))
    assert model.weight_roles == functions.weight_roles
    assert model.weight_roles.non_negative == {1}


class WithKerasLayers(Own):
    """A class with variables whose averages are those of a Keras layer."""

    def __init__(self):
        super().__init__()
        self.norm = L.BatchNormalization(center=False, scale=False)
        self.norm.build((None, 6))

    non_trainable_variables = property(lambda self: [self.mean, *self.norm.non_trainable_variables])

    def predict_on_batch(self, x, training=True):
        return super().predict_on_batch(self.norm(x, training=training))


def test_averages_of_keras_layers_in_a_class_with_variables_have_their_bound_too():
    roles = learning.models.trace_model(WithKerasLayers).weight_roles
    assert (roles.assigned, roles.non_negative) == ((0, 1, 2), {2})
    assert roles.names[2].endswith("moving_variance")


def test_averages_left_at_the_server_are_not_sent_and_cost_no_warning():
    process = algorithms.build_unweighted_fed_avg(
        model_fn_of(small_variances), sgd, model_aggregator=learning.trainable_weights_aggregator(DP)
    )
    state = process.initialize()
    after = process.next(state, DATA).state
    merged = [c for c in fc.context.last_report().crossings if c.kind == "merge"]
    sizes = sorted(w.shape for w in state.model.trainable)
    assert sorted(c.type.shape for c in merged if c.type.shape) == sizes
    for a, b in zip(state.model.non_trainable, after.model.non_trainable, strict=True):
        np.testing.assert_array_equal(a, b)
    sampler = fc.simulation.build_poisson_sampling_fn(list(range(100)), rate=0.1, seed=1)
    assert fc.privacy.Ledger(process, sampler, delta=1e-3)


def test_trainable_weights_are_those_of_a_model():
    factory = learning.trainable_weights_aggregator(fc.aggregators.SumFactory())
    with pytest.raises(TypeMismatch, match=r"aggregates changes of a ModelWeights, .* not float32"):
        factory.create(fc.to_type("float32"))


@pytest.mark.parametrize("name", ["fed_avg", "fed_sgd", "scaffold", "mime_lite"])
def test_training_without_trainable_weights_is_told_and_changes_nothing(name):
    def make():
        model = mixed_without_averages()
        model.trainable = False
        return model

    with pytest.warns(RuntimeWarning, match="the model has no trainable weights, so that training changes nothing"):
        process = ALGORITHMS[name](model_fn_of(make))
    state = process.initialize()
    after = run_round(process, state).state.model
    tf.nest.map_structure(np.testing.assert_array_equal, tuple(after), tuple(state.model))


def freeze_a_layer(model):
    model.layers[0].trainable = False


def freeze_averages(model):
    model.layers[1].trainable = False


def freeze_a_variable(model):
    model.layers[0].kernel.trainable = False


def enable_lora(model):
    model.layers[0].enable_lora(2)


@pytest.mark.parametrize("change", [freeze_a_layer, freeze_averages, freeze_a_variable, enable_lora])
def test_a_model_frozen_after_from_keras_model_is_refused(change):
    def model_fn():
        keras_model = sequential(L.Dense(4), L.BatchNormalization(center=False, scale=False), L.Dense(3))
        model = learning.from_keras_model(keras_model, CROSS, SPEC)
        change(keras_model)
        return model

    wanted = r"has changed since from_keras_model was called \(\S+ has trainable=False\)"
    with pytest.raises(TracingError, match=wanted):
        algorithms.build_weighted_fed_avg(model_fn, sgd)


def test_a_process_keeps_the_meaning_that_its_model_had_when_it_was_built():
    keras_model = sequential(L.Dense(3))
    process = algorithms.build_weighted_fed_avg(learning.from_keras_model(keras_model, CROSS, SPEC), sgd)
    keras_model.trainable = False
    state = process.initialize()
    assert np.any(process.next(state, DATA).state.model.trainable[0] != state.model.trainable[0])

"""What a Keras script has, taken as it is: a round of one client is `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue, TracingError, TypeMismatch
from fedcore.learning import algorithms

K, L, ops = keras.optimizers, keras.layers, keras.ops
RNG = np.random.default_rng(0)
BATCH = 4
X = RNG.normal(size=(12, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 12).astype(np.int32)
SIGNS = (X[:, :1] > 0).astype(np.float32)
WEIGHTS = RNG.uniform(0, 2, 12).astype(np.float32)
CROSS = "sparse_categorical_crossentropy"


def dense(*layers, units=3, activation="softmax"):
    layers = layers or (L.Dense(4, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(1)),)
    last = L.Dense(units, activation=activation, kernel_initializer=keras.initializers.GlorotUniform(2))
    return keras.Sequential([keras.Input((6,)), *layers, last])


def dataset(columns):
    return fc.data.ClientDataset.from_columns(columns).batch(BATCH)


def fitted(model, columns, **options):
    """The metrics of one epoch of `fit`, which trains the model."""
    batches = tf.data.Dataset.from_tensor_slices(columns).batch(BATCH)
    return {name: values[0] for name, values in model.fit(batches, shuffle=False, verbose=0, **options).history.items()}


def one_round(model_fn, columns, **options):
    process = algorithms.build_weighted_fed_avg(model_fn, **options)
    state, metrics = process.next(process.initialize(), [dataset(columns)])
    return state.global_model_weights, metrics["client_work"]["train"]


def check_is_fit(make, columns, *, class_weight=None, **options):
    """Checks that a round of one client is an epoch of `fit`, of a compiled model."""
    spec = dataset(columns).element_spec
    weights, metrics = one_round(
        lambda: fc.learning.from_keras_model(make(), input_spec=spec, class_weight=class_weight), columns, **options
    )
    model = make()
    want = fitted(model, columns, **({} if class_weight is None else {"class_weight": class_weight}))
    for name, value in want.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for a, b in zip(weights.trainable, model.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=b.path)


def compiled(model, *arguments, **options):
    model.compile(*arguments, run_eagerly=True, **options)  # Keras compiles graphs with XLA
    return model


def two_outputs():
    x = keras.Input((6,))
    ones = keras.initializers.Constant(0.1)
    outputs = [L.Dense(3, activation="softmax", name="kind", kernel_initializer=ones)(x)]
    return keras.Model(x, [*outputs, L.Dense(1, name="sign", kernel_initializer=ones)(x)])


def by_layer(**options):
    return K.MultiOptimizer(K.OptimizerMap(K.SGD(0.5, momentum=0.5), {".*/kernel": K.Nadam(0.05)}), **options)


def kernels_by_adam():
    adam, sgd = K.Adam(K.schedules.ExponentialDecay(0.1, 1, 0.5), clipnorm=0.1), K.SGD(0.2)
    return lambda variable: adam if variable.name == "kernel" else sgd


COMPILED = {
    "names": (lambda: compiled(dense(), "adam", CROSS, metrics=["accuracy"]), (X, Y)),
    "objects": (
        lambda: compiled(
            dense(),
            K.SGD(0.1, momentum=0.9, clipnorm=0.1),
            keras.losses.SparseCategoricalCrossentropy(),
            metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)],
            weighted_metrics=["accuracy"],
        ),
        (X, Y, WEIGHTS),
    ),
    "loss weights of outputs": (
        lambda: compiled(
            two_outputs(),
            K.RMSprop(0.01),
            {"kind": CROSS, "sign": "mse"},
            loss_weights={"kind": 0.3, "sign": 2.0},
            metrics={"kind": ["accuracy"], "sign": ["mae"]},
        ),
        (X, (Y, SIGNS)),
    ),
    "several optimizers": (lambda: compiled(dense(), by_layer(), CROSS, metrics=["accuracy"]), (X, Y)),
    "a function that chooses optimizers": (
        lambda: compiled(dense(), K.MultiOptimizer(kernels_by_adam()), CROSS),
        (X, Y),
    ),
    "a schedule": (lambda: compiled(dense(), K.Adam(K.schedules.ExponentialDecay(0.1, 1, 0.5)), CROSS), (X, Y)),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_model_is_taken_as_it_is(name):
    check_is_fit(*COMPILED[name])


def test_a_model_that_fit_has_trained_goes_on_from_there():
    model, plain = (compiled(dense(), "sgd", CROSS, metrics=[keras.metrics.SparseCategoricalAccuracy()]) for _ in "ab")
    fitted(model, (X, Y)), fitted(plain, (X, Y))
    weights, metrics = one_round(
        lambda: fc.learning.from_keras_model(model, input_spec=dataset((X, Y)).element_spec), (X, Y)
    )
    want = fitted(plain, (X, Y))
    assert float(metrics["sparse_categorical_accuracy"]) == pytest.approx(want["sparse_categorical_accuracy"])
    for a, b in zip(weights.trainable, plain.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_is_given_comes_before_what_compile_was_given():
    model = compiled(dense(), "sgd", "mse", metrics=["mae"])
    spec = dataset((X, Y)).element_spec
    given = fc.learning.from_keras_model(model, CROSS, spec)
    assert list(given.metrics.initial()) == []
    model = compiled(dense(), "sgd", CROSS, metrics=["accuracy"])
    given = fc.learning.from_keras_model(model, input_spec=spec, metrics=["sparse_top_k_categorical_accuracy"])
    assert list(given.metrics.initial()) == ["sparse_top_k_categorical_accuracy"]


def test_without_an_optimizer_the_message_says_where_to_give_one():
    spec = dataset((X, Y)).element_spec
    with pytest.raises(
        FedcoreError, match=r"give client_optimizer_fn, or a Keras model whose compile\(\) was given one"
    ):
        algorithms.build_weighted_fed_avg(lambda: fc.learning.from_keras_model(dense(), CROSS, spec))


@pytest.mark.parametrize("given", ["adam", "RMSprop", {"class_name": "SGD", "config": {"learning_rate": 0.5}}])
def test_an_optimizer_is_what_keras_makes_of_its_name_or_configuration(given):
    check_is_fit(lambda: compiled(dense(), given, CROSS), (X, Y), client_optimizer_fn=given, server_optimizer_fn=None)


class OwnMulti(K.MultiOptimizer):
    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)


@pytest.mark.parametrize(
    ("make", "names", "says"),
    [
        (lambda: OwnMulti(lambda variable: K.SGD(0.1)), ["a"], "with methods of its own, which are not called"),
        (lambda: K.MultiOptimizer(lambda variable: K.SGD(0.1)), [], "chooses by names .* model have no names"),
        (
            lambda: K.MultiOptimizer(lambda v: K.SGD(v.shape[0])),
            ["a"],
            "reads more of a variable than its path and name",
        ),
        (lambda: K.MultiOptimizer(lambda variable: "sgd"), ["net/a"], "'sgd' for net/a, which is no Keras optimizer"),
    ],
)
def test_several_optimizers_that_cannot_be_are_refused(make, names, says):
    with pytest.raises(FedcoreError, match=says):
        fc.learning.optimizers.as_optimizer(make(), names)


def test_several_optimizers_have_rates_of_their_own_in_the_state():
    spec = dataset((X, Y)).element_spec
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(dense(), CROSS, spec), by_layer(), by_layer()
    )
    state = process.initialize()
    rates = {"optimizer_1_learning_rate": pytest.approx(0.05), "optimizer_2_learning_rate": 0.5}
    assert process.get_hparams(state)["finalizer"] == {**rates, "optimizer_2_momentum": 0.5}
    still = process.set_hparams(state, {"client_work": dict.fromkeys(rates, 0.0)})
    after = process.next(still, [dataset((X, Y))]).state
    for a, b in zip(after.global_model_weights.trainable, state.global_model_weights.trainable, strict=True):
        np.testing.assert_array_equal(a, b)


def test_several_optimizers_scale_a_loss_by_one_factor():
    check_is_fit(lambda: compiled(dense(), by_layer(loss_scale_factor=8.0), CROSS), (X, Y))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("adamm", "Keras has no optimizer 'adamm': keras.optimizers.get takes a name, such as 'adam', or a dict"),
        ({"class_name": "SGD", "config": {"rate": 0.5}}, "Keras has no optimizer"),
        ({"base": "sgd", "head": "adam"}, "one takes the steps of all weights"),
        ([K.SGD(0.1), K.Adam(0.1)], r"one takes the steps of all weights\n  fix: keras.optimizers.MultiOptimizer\("),
    ],
)
def test_an_optimizer_that_keras_does_not_make_is_refused(given, says):
    with pytest.raises(FedcoreError, match=says):
        fc.learning.optimizers.as_optimizer(given)


class Halving(K.schedules.LearningRateSchedule):
    """Has no configuration."""

    def __call__(self, step):
        return 0.1 * 0.5 ** ops.cast(step, "float32")


def by_iterations():
    optimizer = K.SGD(lambda: 0.1 / (1.0 + ops.cast(optimizer.iterations, "float32")), momentum=0.5)
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda: K.SGD(Halving()),
        lambda: K.Nadam(Halving()),
        lambda: K.Adam(lambda: 0.05),
        lambda: K.Lion(lambda: 0.05),
        by_iterations,
    ],
    ids=["schedule", "schedule of another optimizer", "function", "function of another optimizer", "iterations"],
)
def test_learning_rates_of_ones_own(make):
    check_is_fit(lambda: compiled(dense(), make(), CROSS), (X, Y))


@pytest.mark.parametrize("rate", [Halving(), lambda: 0.05], ids=["schedule", "function"])
def test_an_optimizer_that_fit_has_used_keeps_a_rate_without_configuration(rate):
    model = compiled(dense(), K.Nadam(rate), CROSS)
    fitted(model, (X, Y))
    spec = dataset((X, Y)).element_spec
    weights, _ = one_round(lambda: fc.learning.from_keras_model(model, input_spec=spec), (X, Y))
    plain = compiled(dense(), K.Nadam(rate), CROSS)
    plain.set_weights(model.get_weights())
    fitted(plain, (X, Y))
    for a, b in zip(weights.trainable, plain.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


CLASSES = {
    "integers": (3, CROSS, Y),
    "integers in a column": (3, CROSS, Y[:, None]),
    "one-hot labels": (3, "categorical_crossentropy", np.eye(3, dtype=np.float32)[Y]),
    "signs": (1, "binary_crossentropy", SIGNS),
}


@pytest.mark.parametrize("name", CLASSES)
def test_weights_of_classes_are_those_of_fit(name):
    units, loss, labels = CLASSES[name]
    activation = "sigmoid" if units == 1 else "softmax"

    def make():
        options = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
        return compiled(dense(units=units, activation=activation), K.SGD(0.1), loss, **options)

    check_is_fit(make, (X, labels), class_weight={0: 0.5, 2: 3.0})


def test_evaluation_counts_classes_alike_as_evaluate_does():
    model = compiled(dense(), "sgd", CROSS, weighted_metrics=["accuracy"])
    spec = dataset((X, Y)).element_spec
    evaluation = algorithms.build_fed_eval(
        lambda: fc.learning.from_keras_model(model, input_spec=spec, class_weight={0: 9.0})
    )
    metrics = evaluation.next(evaluation.initialize(), [dataset((X, Y))]).metrics["client_work"]["eval"]
    want = model.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True)
    assert float(metrics["current_round_metrics"]["loss"]) == pytest.approx(want["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("class_weight", "columns", "error", "says"),
    [
        ([1.0, 2.0], (X, Y), TypeMismatch, r"class_weight is a dict from classes to weights, \{0: 1.0, 1: 5.0\}, not"),
        ({"cat": 1.0}, (X, Y), TypeMismatch, "a class of class_weight is a whole number, 0 or more, not 'cat'"),
        ({0: "much"}, (X, Y), TypeMismatch, "a class weight is a number, not 'much'"),
        ({0: 1.0}, (X, Y, WEIGHTS), TracingError, "cannot `class_weight` and `sample_weight` at the same time"),
    ],
)
def test_weights_of_classes_that_cannot_be_are_refused(class_weight, columns, error, says):
    with pytest.raises(error, match=says):
        fc.learning.from_keras_model(dense(), CROSS, dataset(columns).element_spec, class_weight=class_weight)


class Autoencoder(L.Layer):
    """Adds the loss of what it makes of its inputs."""

    def build(self, shape):
        start = keras.initializers.GlorotUniform(3)
        self.code, self.out = L.Dense(2, kernel_initializer=start), L.Dense(shape[-1], kernel_initializer=start)
        self.code.build(shape), self.out.build((None, 2))
        self.error = keras.metrics.Mean(name="error")

    def call(self, x):
        y = self.out(self.code(x))
        loss = ops.mean(ops.square(x - y))
        self.add_loss(loss)
        self.error.update_state(loss)
        return y


@pytest.mark.parametrize("columns", [X, (X,)], ids=["x", "(x,)"])
def test_a_model_with_losses_of_its_own_takes_batches_without_labels(columns):
    check_is_fit(lambda: compiled(keras.Sequential([keras.Input((6,)), Autoencoder()]), K.SGD(0.1)), columns)


def test_batches_without_labels_are_evaluated():
    model = compiled(keras.Sequential([keras.Input((6,)), Autoencoder()]), K.SGD(0.1))
    evaluation = algorithms.build_fed_eval(
        lambda: fc.learning.from_keras_model(model, input_spec=dataset(X).element_spec)
    )
    metrics = evaluation.next(evaluation.initialize(), [dataset(X)]).metrics["client_work"]["eval"]
    want = model.evaluate(tf.data.Dataset.from_tensor_slices(X).batch(BATCH), verbose=0, return_dict=True)
    assert float(metrics["current_round_metrics"]["loss"]) == pytest.approx(want["loss"], rel=1e-5)


@pytest.mark.parametrize("columns", [X, (X,)], ids=["x", "(x,)"])
def test_a_training_is_evaluated_on_arrays_without_labels(columns):
    model = compiled(keras.Sequential([keras.Input((6,)), Autoencoder()]), K.SGD(0.1))

    def model_fn():
        return fc.learning.from_keras_model(model, input_spec=dataset(columns).element_spec)

    process, evaluation = algorithms.build_weighted_fed_avg(model_fn), algorithms.build_fed_eval(model_fn)
    history = fc.learning.programs.train(
        process, [dataset(columns)], 1, clients_per_round=None, evaluation=evaluation, evaluation_data=columns
    )
    history.state.global_model_weights.assign_weights_to(model)
    want = model.evaluate(X, batch_size=32, verbose=0, return_dict=True)
    assert history["val_loss"] == [pytest.approx(want["loss"], rel=1e-5)]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"metrics": ["mae"]},
            TracingError,
            r"metrics of \w+ compare labels .* type float32\[\?,6\] has no labels: leave",
        ),
        ({"loss": "mse"}, InvalidValue, r"a batch is a pair of inputs and labels \(x, y\)"),
    ],
)
def test_what_needs_labels_is_refused_without_them(options, error, says):
    model = keras.Sequential([keras.Input((6,)), Autoencoder()])
    with pytest.raises(error, match=says):
        fc.learning.from_keras_model(model, input_spec=dataset(X).element_spec, **options)


CONSTRAINTS = {
    "maximum norm": keras.constraints.MaxNorm(0.5),
    "unit norm": keras.constraints.UnitNorm(),
    "not negative": "non_neg",
    "function": lambda w: w / ops.norm(w, ord=2),
}


def bounded(name):
    start = keras.initializers.GlorotUniform(1)
    return dense(
        L.Dense(4, kernel_initializer=start, kernel_constraint=CONSTRAINTS[name]), L.Dense(4, kernel_initializer=start)
    )


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_are_applied_after_each_step(name):
    check_is_fit(lambda: compiled(bounded(name), K.SGD(0.5), CROSS), (X, Y))


class Rescaled(L.Layer):
    """Reads and assigns its weight twice in a forward pass."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x, training=False):
        x = x * self.scale
        if training:
            for _ in range(2):
                self.scale.assign(self.scale / (0.5 + ops.norm(self.scale)))
        return x * self.scale


NORMALIZED = {
    "dense": lambda: dense(L.SpectralNormalization(L.Dense(4)), L.SpectralNormalization(L.Dense(4, use_bias=False))),
    "convolution": lambda: dense(
        L.Reshape((6, 1)), L.SpectralNormalization(L.Conv1D(3, 2), power_iterations=2), L.Flatten()
    ),
    "own": lambda: dense(Rescaled(), L.Dense(4)),
}
TAKING = {
    "averaging": lambda model_fn: algorithms.build_weighted_fed_avg(model_fn),
    "proximal term": lambda model_fn: algorithms.build_weighted_fed_prox(model_fn, 0.0),
    "personal models": lambda model_fn: algorithms.build_ditto(model_fn, 0.0, K.SGD(0.5, momentum=0.5)),
}


def check_is_fit_of_values(make, build=TAKING["averaging"]):
    """Checks that a round of one client is an epoch of `fit` from the values that a model has; averages too."""
    model, plain = compiled(make(), K.SGD(0.5, momentum=0.5), CROSS), compiled(make(), K.SGD(0.5, momentum=0.5), CROSS)
    plain.set_weights(model.get_weights())
    spec = dataset((X, Y)).element_spec
    process = build(lambda: fc.learning.from_keras_model(model, input_spec=spec))
    client = dataset((X, Y))
    if isinstance(process, fc.learning.ClientStateProcess):
        state, metrics, _ = process.next(
            process.initialize(), [client], [process.initial_client_state(process.initialize())]
        )
    else:
        state, metrics = process.next(process.initialize(), [client])
    assert float(metrics["client_work"]["train"]["loss"]) == pytest.approx(fitted(plain, (X, Y))["loss"], rel=1e-4)
    state.global_model_weights.assign_weights_to(model)
    for a, b in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=b.path)


@pytest.mark.parametrize("name", NORMALIZED)
def test_weights_that_layers_assign_are_those_of_fit(name):
    check_is_fit_of_values(NORMALIZED[name])


@pytest.mark.parametrize("name", ["proximal term", "personal models"])
def test_kin_of_federated_averaging_carry_assigned_weights(name):
    check_is_fit_of_values(NORMALIZED["dense"], TAKING[name])


@pytest.mark.parametrize(
    "build",
    [
        lambda model_fn: algorithms.build_scaffold(model_fn, 0.1, 2),
        lambda model_fn: algorithms.build_fed_sgd(model_fn),
        lambda model_fn: algorithms.build_weighted_mime_lite(model_fn, fc.learning.optimizers.build_sgdm(0.1)),
    ],
    ids=["scaffold", "fed_sgd", "mime_lite"],
)
def test_what_does_not_carry_assigned_weights_refuses_them(build):
    model = compiled(NORMALIZED["dense"](), "sgd", CROSS)
    spec = dataset((X, Y)).element_spec
    with pytest.raises(
        TracingError, match=r"assigns the weight \S+kernel while it trains; federated averaging and its kin .* in place"
    ):
        build(lambda: fc.learning.from_keras_model(model, input_spec=spec))


def test_a_forward_pass_assigns_the_variables_of_a_model():
    model = fc.learning.from_keras_model(NORMALIZED["dense"](), CROSS, dataset((X, Y)).element_spec)
    kernel, batch = model.trainable_variables[0], (tf.constant(X[:BATCH]), tf.constant(Y[:BATCH]))
    with tf.GradientTape() as tape:
        output = model.forward_pass(batch, training=True)
    assert float(tf.reduce_sum(tf.abs(tape.gradient(output.loss, kernel)))) > 0
    for _ in range(20):
        model.forward_pass(batch, training=True)
    assert np.linalg.norm(kernel.numpy(), ord=2) == pytest.approx(1.0, abs=0.02)
    before = kernel.numpy()
    model.forward_pass(batch, training=False)
    np.testing.assert_array_equal(kernel, before)


def test_a_gan_with_spectral_normalization_trains():
    def gan():
        generator = keras.Sequential([keras.Input((3,)), L.Dense(6)])
        judge = keras.Sequential([keras.Input((6,)), L.SpectralNormalization(L.Dense(4, use_bias=False)), L.Dense(1)])
        return algorithms.GanModel(generator, judge)

    model = gan()
    process = algorithms.build_fed_gan(
        lambda: fc.learning.from_keras_model(model, input_spec=(X,)), K.SGD(1e-9), K.SGD(1e-9)
    )
    state = process.initialize()
    for _ in range(3):
        state, _ = process.next(state, [dataset((X,))])
    state.global_model_weights.assign_weights_to(model)
    kernel = model.discriminator.layers[0].layer.kernel
    assert np.linalg.norm(kernel, ord=2) == pytest.approx(1.0, abs=0.02)


AVERAGING = {  # for one client, with all steps of plain gradient descent
    "normalised": lambda model_fn: algorithms.build_fed_nova(model_fn, 0.5),
    "fair to nobody": lambda model_fn: algorithms.build_q_fed_avg(model_fn, 0.0, 0.5),
    "pulled by nothing": lambda model_fn: algorithms.build_ditto(model_fn, 0.0, K.SGD(0.5)),
    "averaging": lambda model_fn: algorithms.build_weighted_fed_avg(model_fn, K.SGD(0.5)),
}


def test_averaging_algorithms_apply_constraints_after_each_step():
    spec, client = dataset((X, Y)).element_spec, dataset((X, Y))
    moved = {}
    for name, build in AVERAGING.items():
        process = build(lambda: fc.learning.from_keras_model(bounded("maximum norm"), CROSS, spec))
        state = process.initialize()
        own = [[process.initial_client_state(state)]] if name == "pulled by nothing" else []
        moved[name] = process.next(state, [client], *own)[0].global_model_weights.trainable[0]
    for name, kernel in moved.items():
        np.testing.assert_allclose(kernel, moved["averaging"], rtol=1e-4, atol=1e-6, err_msg=name)


ALGORITHMS = {
    "averaging": lambda model_fn: algorithms.build_weighted_fed_avg(model_fn, K.SGD(0.5)),
    "gradient descent": lambda model_fn: algorithms.build_fed_sgd(model_fn, K.SGD(0.5)),
    "mime lite": lambda model_fn: algorithms.build_weighted_mime_lite(model_fn, K.SGD(0.5)),
    "proximal": lambda model_fn: algorithms.build_weighted_fed_prox(model_fn, 0.1, K.SGD(0.5)),
    "kept steps": lambda model_fn: algorithms.build_weighted_fed_avg(model_fn, K.SGD(0.5, use_ema=True)),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_global_model_keeps_its_constraints(name):
    spec = dataset((X, Y)).element_spec
    process = ALGORITHMS[name](lambda: fc.learning.from_keras_model(bounded("unit norm"), CROSS, spec))
    clients = [dataset((X[:8], Y[:8])), dataset((X[8:], Y[8:]))]
    kernel = process.next(process.initialize(), clients).state.global_model_weights.trainable[0]
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1.0, rtol=1e-5)


@pytest.mark.parametrize("is_global", [True, False])
def test_reconstruction_applies_the_constraints_of_its_weights(is_global):
    def make():
        model = bounded("unit norm")
        groups = (model.layers[:1], model.layers[1:])
        first, second = groups if is_global else groups[::-1]
        return fc.learning.models.ReconstructionModel.from_keras_model_and_layers(
            model, global_layers=first, local_layers=second, input_spec=dataset((X, Y)).element_spec
        )

    process = algorithms.build_fed_recon(make, loss_fn=keras.losses.SparseCategoricalCrossentropy)
    kernel = process.next(process.initialize(), [dataset((X, Y))]).state.global_model_weights.trainable[0]
    norms = np.linalg.norm(kernel, axis=0)
    assert np.allclose(norms, 1.0, rtol=1e-5) == is_global


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        (lambda w: w[:1], r"the constraint of \S+kernel returns a weight of shape \(1, 3\) for one of shape \(6, 3\)"),
        (lambda w: np.clip(w.numpy(), 0, 1), r"the constraint of \S+kernel cannot be traced: "),
    ],
)
def test_a_constraint_that_is_none_of_a_graph_is_named(constraint, says):
    model = keras.Sequential([keras.Input((6,)), L.Dense(3, kernel_constraint=constraint)])
    with pytest.raises(TracingError, match=says):
        fc.learning.from_keras_model(model, CROSS, dataset((X, Y)).element_spec)


def test_a_model_with_constraints_is_not_saved_without_them(tmp_path):
    model_fn = lambda: fc.learning.from_keras_model(bounded("unit norm"), CROSS, dataset((X, Y)).element_spec)  # noqa: E731
    with pytest.raises(InvalidValue, match="keeps no constraints of weights"):
        fc.learning.models.save(model_fn, tmp_path / "model")


class Unseeded(L.Layer):
    def call(self, x, training=False):
        return x + keras.random.normal(ops.shape(x)) if training else x


def test_draws_without_a_seed_differ_by_step_and_repeat_with_the_seed_of_the_call():
    spec = dataset((X, Y)).element_spec
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(dense(Unseeded()), CROSS, spec), K.SGD(0.1)
    )
    state = process.initialize.invoke(seed=1)
    first, again = (process.next.invoke(state, [dataset((X, Y))], seed=2).metrics for _ in range(2))
    other = process.next.invoke(state, [dataset((X, Y))], seed=3).metrics
    assert first["client_work"]["train"]["loss"] == again["client_work"]["train"]["loss"]
    assert first["client_work"]["train"]["loss"] != other["client_work"]["train"]["loss"]


class Quartiles(keras.metrics.Metric):
    """Gives a dict."""

    def __init__(self, name="quartiles"):
        super().__init__(name=name)
        self.sum = self.add_weight(name="sum", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.sum.assign_add(ops.sum(y_pred))
        self.count.assign_add(ops.cast(ops.size(y_pred), "float32"))

    def result(self):
        return {"mean": self.sum / self.count, "double": 2 * self.sum / self.count}


def test_results_that_are_dicts_are_flat_as_in_keras():
    check_is_fit(lambda: compiled(dense(), K.SGD(0.1), CROSS, metrics=[Quartiles()]), (X, Y))


def frozen(norm):
    hidden = L.Dense(4, trainable=False, kernel_initializer=keras.initializers.GlorotUniform(4))
    return dense(L.Embedding(3, 2, trainable=False), L.Flatten(), hidden, *([L.BatchNormalization()] if norm else []))


@pytest.mark.parametrize("norm", [True, False])
def test_the_weights_of_a_state_go_into_a_model_with_frozen_layers(norm):
    words = np.abs(X).astype(np.int32) % 3
    make = lambda: compiled(frozen(norm), K.SGD(0.1), CROSS)  # noqa: E731
    spec = dataset((words, Y)).element_spec
    model = make()
    weights, _ = one_round(lambda: fc.learning.from_keras_model(model, input_spec=spec), (words, Y))
    assert len(weights.non_trainable) == (2 if norm else 0)
    other = make()
    other.set_weights(model.get_weights())
    weights.assign_weights_to(other)
    fitted(model, (words, Y))
    for a, b in zip(other.variables, model.variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=a.path)

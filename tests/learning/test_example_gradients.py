"""DP-SGD: gradients of examples are clipped one by one, summed, and get noise once."""

import functools

import attrs
import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, TracingError
from fedcore.learning.optimizers import build_adam, build_dp_sgd, build_sgdm, schedule_learning_rate

CLIP, BATCH, ROWS = 0.3, 4, 9
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense_model():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5, activation="tanh"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(3, kernel_regularizer="l2"),
        ]
    )


def linear_model():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def image_model():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, (3, 2), activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Conv2D(3, 2, strides=2),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def text_model():
    tokens = keras.Input((7,), dtype="int32")
    words = keras.layers.Dense(6)(keras.layers.Embedding(5, 4)(tokens))  # tokens repeat within an example
    return keras.Model(tokens, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(words)))


def recurrent_model():
    tokens = keras.Input((5,), dtype="int32")
    state = keras.layers.LSTM(3)(keras.layers.Embedding(5, 4, mask_zero=True)(tokens))
    return keras.Model(tokens, keras.layers.Dense(3)(state))


def frozen_model():
    model = dense_model()
    model.layers[0].trainable = False
    return model


def columns(model, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    size = model.input_shape[1:]
    x = rng.normal(size=(rows, *size)) if model.inputs[0].dtype == "float32" else rng.integers(0, 5, (rows, *size))
    dtype = np.dtype(model.inputs[0].dtype)
    return x.astype(dtype), rng.integers(0, 3, rows).astype(np.int32), rng.uniform(0, 3, rows).astype(np.float32)


def dataset(model, rows=ROWS, seed=0):
    return fc.data.ClientDataset.from_columns(columns(model, rows, seed)).batch(BATCH)


def build(make, optimizer, **options):
    spec = dataset(make(), 1).element_spec
    metrics = [keras.metrics.SparseCategoricalAccuracy()]

    def model_fn():
        return fc.learning.from_keras_model(make(), LOSS, spec, metrics=metrics)

    return fc.learning.algorithms.build_unweighted_fed_avg(model_fn, optimizer, **options), model_fn


def private(noise=0.0, inner=None, **options):
    return build_dp_sgd(CLIP, noise, inner or build_sgdm(1.0), batch_size=BATCH, **options)


@functools.cache
def build_private(make, noise=0.0):
    """`build` with clipped gradients, once for all tests."""
    return build(make, private(noise))


def trained(process, clients, state=None):
    state = process.initialize() if state is None else state
    return process.next(state, clients)


def clipped_by_a_loop(model, trainable, others, batch):
    """The sum of clipped gradients, by a tape for each example."""
    totals = [np.zeros(w.shape, np.float64) for w in trainable]
    for i in range(len(batch[0])):
        single = tuple(tf.convert_to_tensor(part[i : i + 1]) for part in batch)
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            weights = fc.learning.ModelWeights(tuple(trainable), others)
            output, _, _ = model.step(weights, model.initial_metrics(), single, True)
        gradients = [np.asarray(tf.convert_to_tensor(g), np.float64) for g in tape.gradient(output.loss, trainable)]
        norm = np.sqrt(sum(np.square(g).sum() for g in gradients))
        totals = [t + g * min(1, CLIP / norm) for t, g in zip(totals, gradients, strict=True)]
    return totals


@pytest.mark.parametrize("make", [dense_model, image_model, text_model, recurrent_model, frozen_model])
def test_each_gradient_is_clipped_as_by_a_tape_for_each_example(make):
    process, model_fn = build_private(make)
    state = process.initialize()
    new_state, metrics = process.next(state, [dataset(make())])
    model, start = fc.learning.models.trace_model(model_fn), process.get_model_weights(state)
    trainable, others = [tf.constant(w) for w in start.trainable], tuple(map(tf.constant, start.non_trainable))
    parts = columns(make())
    for first in range(0, ROWS, BATCH):
        batch = [part[first : first + BATCH] for part in parts]
        totals = clipped_by_a_loop(model, trainable, others, batch)
        trainable = [w - tf.cast(t / BATCH, w.dtype) for w, t in zip(trainable, totals, strict=True)]
    for weight, expected in zip(new_state.global_model_weights.trainable, trainable, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=2e-7)
    assert metrics["client_work"]["train"]["num_examples"] == ROWS
    assert metrics["client_work"]["train"]["num_batches"] == 3


@pytest.mark.parametrize("make", [dense_model, text_model])
def test_metrics_are_those_of_plain_training_where_weights_do_not_move(make):
    private_process, _ = build(make, private(inner=build_sgdm(0.0)))
    plain_process, _ = build(make, build_sgdm(0.0))
    state = private_process.initialize()
    _, metrics = private_process.next(state, [dataset(make())])
    _, expected = plain_process.next(state, [dataset(make())])
    for name, value in expected["client_work"]["train"].items():
        np.testing.assert_allclose(metrics["client_work"]["train"][name], value, rtol=1e-5)


@pytest.mark.parametrize("make", [dense_model, text_model, image_model])
def test_a_client_has_the_same_bits_alone_and_beside_others(make):
    process, _ = build_private(make)
    state = process.initialize()
    sizes = (9, 1, 13, 6, 8)
    clients = [dataset(make(), rows, seed) for seed, rows in enumerate(sizes)]
    train = process.next.to_module("planned")
    assert any(f.attributes.get("strategy") for f in train.functions)
    changes = []
    for client in clients:
        alone, _ = process.next(state, [client])
        changes.append([a - b for a, b in zip(_trainable(alone), _trainable(state), strict=True)])
    together, _ = process.next(state, clients)
    for i, (new, old) in enumerate(zip(_trainable(together), _trainable(state), strict=True)):
        mean = np.mean([np.asarray(change[i], np.float64) for change in changes], axis=0)
        np.testing.assert_allclose(new - old, mean, rtol=1e-4, atol=3e-7)


def _trainable(state):
    return state.global_model_weights.trainable


def test_rows_that_pad_a_batch_add_nothing():
    process, _ = build_private(dense_model)
    (stage,) = [f for f in process.next.to_module("planned").functions if "strategy" in f.attributes]
    assert stage.attributes["strategy"] == "vectorised"
    state = process.initialize()
    one, many = dataset(dense_model(), 1), dataset(dense_model(), 12, seed=5)
    alone, _ = process.next(state, [one])
    padded, _ = process.next(state, [one, many])
    other, _ = process.next(state, [many])
    for a, b, c, w in zip(*map(_trainable, (alone, other, padded, state)), strict=True):
        np.testing.assert_allclose((np.float64(a - w) + (b - w)) / 2, c - w, rtol=1e-4, atol=1e-7)


def test_the_standard_deviation_of_the_noise_is_the_multiplier_times_the_clip_once_a_step():
    def wide():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4000, kernel_initializer="zeros")])

    rows = fc.data.ClientDataset.from_columns((np.zeros((12, 6), np.float32), np.zeros((12, 4000), np.float32)))

    def model_fn():
        return fc.learning.from_keras_model(wide(), "mse", rows.batch(BATCH).element_spec)

    optimizer = build_dp_sgd(CLIP, 1.5, build_sgdm(1.0), batch_size=BATCH)
    process = fc.learning.algorithms.build_unweighted_fed_avg(model_fn, optimizer)
    (stage,) = [f for f in process.next.to_module("planned").functions if "strategy" in f.attributes]
    assert "random numbers for each weight" in stage.attributes["why"]
    state, _ = process.next(process.initialize(), [rows.batch(BATCH)])  # gradients are zero
    noise = np.concatenate([np.ravel(w) for w in _trainable(state)])
    expected = 1.5 * CLIP / BATCH * np.sqrt(3)  # of three steps
    assert noise.std() == pytest.approx(expected, rel=0.02)
    assert abs(noise.mean()) < 4 * expected / np.sqrt(noise.size)


def test_noise_differs_between_clients_and_rounds():
    process, _ = build_private(dense_model, 1.0)
    empty = dataset(dense_model(), 9)
    state = process.initialize()
    first, _ = process.next(state, [empty])
    again, _ = process.next(state, [empty])
    second, _ = process.next(first, [empty])
    assert all(np.array_equal(a, b) for a, b in zip(_trainable(first), _trainable(again), strict=True))
    steps = [[b - a for a, b in zip(*map(_trainable, pair), strict=True)] for pair in ((state, first), (first, second))]
    assert not np.allclose(steps[0][0], steps[1][0], atol=1e-3)


def test_frozen_weights_get_no_noise():
    process, _ = build(frozen_model, private(noise=5.0))
    state, _ = trained(process, [dataset(frozen_model())])
    frozen = process.get_model_weights(state).non_trainable
    for before, after in zip(process.get_model_weights(process.initialize()).non_trainable, frozen, strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_client_without_examples_adds_nothing():
    process, _ = build_private(dense_model, 1.0)
    state = process.initialize()
    new, metrics = process.next(state, [dataset(dense_model(), 0)])
    assert metrics["client_work"]["train"]["num_examples"] == 0
    assert all(np.array_equal(a, b) for a, b in zip(_trainable(state), _trainable(new), strict=True))


def test_an_example_whose_gradient_is_not_finite_adds_zeros():
    x, y, weight = columns(dense_model(), BATCH)
    x[2] = np.inf
    process, _ = build_private(dense_model)
    state = process.initialize()
    new, _ = process.next(state, [fc.data.ClientDataset.from_columns((x, y, weight)).batch(BATCH)])
    kept = [np.delete(part, 2, 0) for part in (x, y, weight)]
    expected, _ = process.next(state, [fc.data.ClientDataset.from_columns(tuple(kept)).batch(BATCH)])
    for a, b in zip(_trainable(new), _trainable(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_each_example_is_drawn_with_the_sampling_rate():
    process, _ = build(linear_model, private(sampling_rate=0.25, inner=build_sgdm(0.0)))
    x, y, weight = columns(linear_model(), 2000)
    data = fc.data.ClientDataset.from_columns((x, y, np.ones_like(weight))).batch(2000)
    state = process.initialize()
    _, metrics = process.next(state, [data])
    assert metrics["client_work"]["train"]["num_examples"] == 2000  # all that could be drawn
    nothing, _ = build(linear_model, private(sampling_rate=1e-12))
    state = nothing.initialize()
    new, metrics = nothing.next(state, [data])
    assert metrics["client_work"]["train"]["loss"] == 0  # of no examples
    assert all(np.array_equal(a, b) for a, b in zip(_trainable(state), _trainable(new), strict=True))


def test_the_sum_over_a_sample_has_the_expected_size():
    def model_fn():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        return fc.learning.from_keras_model(model, "mae", rows.element_spec)

    rows = fc.data.ClientDataset.from_columns((np.ones((2000, 1), np.float32), np.ones((2000, 1), np.float32)))
    rows = rows.batch(2000)
    optimizer = build_dp_sgd(1.0, 0.0, build_sgdm(1.0), batch_size=500, sampling_rate=0.25)
    process = fc.learning.algorithms.build_unweighted_fed_avg(model_fn, optimizer)
    state, _ = process.next(process.initialize(), [rows])
    drawn = float(_trainable(state)[0][0, 0]) * 500  # each example's gradient is -1
    assert drawn == pytest.approx(500, abs=4 * np.sqrt(2000 * 0.25 * 0.75))
    assert drawn == pytest.approx(round(drawn), abs=1e-3)  # no part of an example


@pytest.mark.parametrize(
    "inner",
    [build_adam(0.01), keras.optimizers.SGD(0.1, momentum=0.9), schedule_learning_rate(build_sgdm(0.1), lambda s: 0.1)],
    ids=["adam", "momentum", "schedule"],
)
def test_any_optimizer_takes_the_noisy_gradients(inner):
    process, _ = build(linear_model, build_dp_sgd(1.0, 0.1, inner, batch_size=BATCH))
    state, metrics = trained(process, [dataset(linear_model())])
    assert metrics["client_work"]["train"]["num_non_finite_clients"] == 0
    assert np.isfinite(np.concatenate([np.ravel(w) for w in _trainable(state)])).all()


def test_a_schedule_around_it_stays_private():
    process, _ = build(linear_model, schedule_learning_rate(private(), lambda step: 1.0))
    state = process.initialize()
    new, _ = process.next(state, [dataset(linear_model())])
    squares = [np.square(b - a).sum() for a, b in zip(_trainable(state), _trainable(new), strict=True)]
    assert 0 < np.sqrt(sum(squares)) <= ROWS / BATCH * CLIP * 1.001


def test_fed_prox_moves_towards_the_first_weights():
    spec = dataset(linear_model(), 1).element_spec

    def model_fn():
        return fc.learning.from_keras_model(linear_model(), LOSS, spec)

    strength = 0.5
    process = fc.learning.algorithms.build_unweighted_fed_prox(model_fn, strength, private())
    plain, _ = build_private(linear_model)
    state = process.initialize()
    client = dataset(linear_model())
    near, far = (p.next(state, [client])[0] for p in (process, plain))
    distances = [
        sum(float(np.square(a - b).sum()) for a, b in zip(_trainable(new), _trainable(state), strict=True))
        for new in (near, far)
    ]
    assert distances[0] < distances[1]


def test_dropout_is_drawn_for_each_example():
    def make():
        model = keras.Sequential([keras.Input((40,)), keras.layers.Dropout(0.5)])
        return keras.Sequential([model, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])

    rows = fc.data.ClientDataset.from_columns((np.ones((2, 40), np.float32), np.ones((2, 1), np.float32))).batch(2)

    def model_fn():
        return fc.learning.from_keras_model(make(), "mae", rows.element_spec)

    optimizer = build_dp_sgd(1e6, 0.0, build_sgdm(1.0), batch_size=1)
    process = fc.learning.algorithms.build_unweighted_fed_avg(model_fn, optimizer)
    state, _ = process.next(process.initialize(), [rows])
    kept = np.unique(np.round(_trainable(state)[0], 5))
    assert kept.tolist() == [0.0, 2.0, 4.0]  # by none, one or both of the examples


def test_a_batch_normalisation_is_refused_in_words():
    def make():
        return keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)])

    with pytest.raises(TracingError, match=r"assigns .*moving_mean.* from the examples of a batch, which couples"):
        build(make, private())


def test_a_frozen_batch_normalisation_is_accepted():
    def make():
        layers = [keras.Input((6,)), keras.layers.BatchNormalization(trainable=False), keras.layers.Dense(3)]
        return keras.Sequential(layers)

    _, metrics = trained(build(make, private())[0], [dataset(make())])
    assert metrics["client_work"]["train"]["num_examples"] == ROWS


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: build(dense_model, build_sgdm(0.1), server_optimizer_fn=private()), "gradients of no examples"),
        (lambda: build_dp_sgd(1.0, 1.0, private(), batch_size=4), "gradients of no examples"),
        (lambda: build_dp_sgd(0.0, 1.0, batch_size=4), "clip"),
        (lambda: build_dp_sgd(1.0, -1.0, batch_size=4), "noise_multiplier"),
        (lambda: build_dp_sgd(1.0, 1.0, batch_size=0), "batch_size"),
        (lambda: build_dp_sgd(1.0, 1.0, batch_size=4, sampling_rate=1.5), "sampling_rate is at most 1, not 1.5"),
        (
            lambda: build_dp_sgd(
                1.0, 1.0, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), batch_size=4
            ),
            "scales losses",
        ),
        (
            lambda: private().next(private().initialize(tf.zeros(2)), tf.zeros(2), tf.ones(2)),
            "gradients of a batch, which have no noise",
        ),
    ],
)
def test_a_wrong_use_is_told(use, words):
    with pytest.raises(FedcoreError, match=words):
        use()


def test_weights_of_half_precision_are_clipped_in_single():
    def make():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, dtype="mixed_float16")])

    process, _ = build(make, private())
    state = process.initialize()
    new, metrics = process.next(state, [dataset(make())])
    moved = [b - a for a, b in zip(_trainable(state), _trainable(new), strict=True)]
    norm = np.sqrt(sum(np.square(m).sum() for m in moved))
    assert 0 < norm <= ROWS / BATCH * CLIP * 1.001
    assert metrics["client_work"]["train"]["num_non_finite_clients"] == 0


def test_a_gradient_whose_factors_are_huge_and_tiny_is_clipped():
    """A server chooses weights by which a gradient is the product of activations of 10^18 and errors of 10^-19.

    Each square of such an error is 0 in float32.
    """
    sizes = (6, 5), 5, (5, 1024), 1024, (1024, 3), 3

    def make():
        dense = keras.layers.Dense
        hidden = [dense(5, activation="relu"), dense(1024, activation="relu")]
        return keras.Sequential([keras.Input((6,)), *hidden, dense(3)])

    process, _ = build(make, private())
    state = process.initialize()
    weights = [np.zeros(size, np.float32) for size in sizes]
    weights[1][:], weights[3][:], weights[4][:, 0] = 2e18, 1e-3, 1e-19
    start = attrs.evolve(process.get_model_weights(state), trainable=tuple(weights))
    new_state, _ = process.next(process.set_model_weights(state, start), [dataset(make(), 1)])
    pairs = zip(new_state.global_model_weights.trainable, weights, strict=True)
    norm = BATCH * np.sqrt(sum(np.square(np.float64(new) - old).sum() for new, old in pairs))

    assert 0.99 * CLIP < norm < 1.01 * CLIP


def test_an_example_with_huge_gradients_of_a_row_that_cancel_does_not_wipe_out_those_of_others():
    """A server chooses weights by which a token counts 10^15 in one place, and -10^15 in the other."""

    def make():
        def huge(shape, dtype=None):
            return tf.constant([[1e15], [-1e15]])

        tokens = keras.Input((2,), dtype="int32")
        words = keras.layers.Flatten()(keras.layers.Embedding(4, 1, embeddings_initializer="ones")(tokens))
        last = keras.layers.Dense(1, use_bias=False, kernel_initializer=huge, trainable=False)
        return keras.Model(tokens, last(words))

    def rows(*tokens):
        x = np.array([*[[0, 1]] * 20, *tokens], np.int32)
        return fc.data.ClientDataset.from_columns((x, np.ones((len(x), 1), np.float32))).batch(32)

    spec = rows().element_spec
    process = fc.learning.algorithms.build_unweighted_fed_avg(
        lambda: fc.learning.from_keras_model(make(), "mse", spec), build_dp_sgd(1.0, 0.0, build_sgdm(1.0), batch_size=1)
    )
    state = process.initialize()
    (without,), (with_one,) = (_trainable(process.next(state, [data])[0]) for data in (rows(), rows([0, 0])))

    assert np.abs(without).max() > 10.0
    assert np.linalg.norm(with_one - without) <= 1.0

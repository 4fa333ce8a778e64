"""One round (or more) of each algorithm against an independent numpy computation in float64."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch
from fedcore.learning import algorithms, optimizers

from .conftest import examples, random_clients

RATE, BATCH, SIZES = 0.1, 4, [7, 3, 12, 4, 1]


def sgd():
    return keras.optimizers.SGD(RATE)


BUILDERS = {
    "prox": lambda m: algorithms.build_weighted_fed_prox(m, 0.7, sgd),
    "sgd": lambda m: algorithms.build_fed_sgd(m, lambda: keras.optimizers.Adam(0.1)),
    "mime lite": lambda m: algorithms.build_unweighted_mime_lite(m, keras.optimizers.Adam(0.1)),
    "schedule": lambda m: algorithms.build_weighted_fed_avg_with_optimizer_schedule(
        m, lambda r: 0.1 / (1.0 + tf.cast(r, tf.float32)), lambda: keras.optimizers.SGD(5.0)
    ),
}


@pytest.fixture(scope="module")
def built(model_fn):
    """Each process of BUILDERS, built and compiled once."""
    return functools.cache(lambda name: BUILDERS[name](model_fn))


@pytest.fixture
def clients():
    return random_clients(SIZES)


def data_of(client):
    x, y = examples(client)
    return x.astype(np.float64), y


def loss(weights, x, y):
    """The mean cross entropy of a tanh layer and a linear layer."""
    w1, b1, w2, b2 = weights
    z = np.tanh(x @ w1 + b1) @ w2 + b2
    return np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y])


def gradient(weights, x, y):
    """Of the mean cross entropy of a tanh layer and a linear layer."""
    w1, b1, w2, b2 = weights
    h = np.tanh(x @ w1 + b1)
    z = h @ w2 + b2
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    dh = (p @ w2.T) * (1 - h * h)
    return [x.T @ dh, dh.sum(0), h.T @ p, p.sum(0)]


def batches(x, y):
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(y), BATCH)]


def train(start, x, y, rate=RATE, correction=lambda w: [0.0] * 4):
    """Gradient descent over the batches; `correction(w)` is added to every gradient."""
    w = [np.array(v, np.float64) for v in start]
    for xb, yb in batches(x, y):
        w = [v - rate * (g + c) for v, g, c in zip(w, gradient(w, xb, yb), correction(w), strict=True)]
    return w


def mean(parts, weights=None):
    return [np.average([p[i] for p in parts], axis=0, weights=weights) for i in range(4)]


def weights_of(state):
    return [np.array(w, np.float64) for w in state.global_model_weights.trainable]


def close(state, want):
    for a, b in zip(weights_of(state), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def change(start, clients, weights=SIZES, **options):
    trained = [train(start, *data_of(c), **options) for c in clients]
    return [m - s for m, s in zip(mean(trained, weights), start, strict=True)]


def test_weights_have_the_names_of_their_layers(process):
    names = process.next.module.element_names["trainable"]
    assert [re.sub(r"dense(_\d+)?/", "dense/", name) for name in names] == ["dense/kernel", "dense/bias"] * 2


def test_unweighted_fed_avg(model_fn, clients):
    process = algorithms.build_unweighted_fed_avg(model_fn, sgd)
    state = process.initialize()
    start = weights_of(state)
    close(process.next(state, clients).state, [s + d for s, d in zip(start, change(start, clients, None), strict=True)])


def test_a_weighting_function_reads_the_metrics(model_fn, clients):
    process = algorithms.build_weighted_fed_avg(
        model_fn, sgd, client_weighting=lambda metrics: tf.cast(metrics["num_examples"][0], tf.float32) ** 2
    )
    state = process.initialize()
    start = weights_of(state)
    moved = change(start, clients, np.square(SIZES))
    close(process.next(state, clients).state, [s + d for s, d in zip(start, moved, strict=True)])


@pytest.mark.parametrize("weights", [SIZES, None])
def test_fed_prox(model_fn, built, clients, weights):
    process = built("prox") if weights else algorithms.build_unweighted_fed_prox(model_fn, 0.7, sgd)
    state = process.initialize()
    start = weights_of(state)
    pull = lambda w: [0.7 * (v - s) for v, s in zip(w, start, strict=True)]  # noqa: E731
    moved = change(start, clients, weights, correction=pull)
    close(process.next(state, clients).state, [s + d for s, d in zip(start, moved, strict=True)])


def test_fed_sgd_is_one_step_on_the_union(model_fn, clients):
    process = algorithms.build_fed_sgd(model_fn, sgd)
    state = process.initialize()
    start = weights_of(state)
    x, y = (np.concatenate(parts) for parts in zip(*map(data_of, clients), strict=True))
    close(process.next(state, clients).state, [s - RATE * g for s, g in zip(start, gradient(start, x, y), strict=True)])


def adam(w, ds):
    m, v = 0.0, 0.0
    for t, d in enumerate(ds, 1):
        m, v = 0.9 * m + 0.1 * -d, 0.999 * v + 0.001 * d * d
        w = w - 0.05 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-3)
    return w


def yogi(w, ds):
    m, v = 0.0, 1e-6
    for t, d in enumerate(ds, 1):
        m, v = 0.9 * m + 0.1 * -d, v - 0.001 * np.sign(v - d * d) * d * d
        w = w - 0.05 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-3)
    return w


def adagrad(w, ds):
    total = 0.1
    for d in ds:
        total = total + d * d
        w = w + 0.05 * d / np.sqrt(total + 1e-7)
    return w


@pytest.mark.parametrize(
    ("server", "reference"),
    [
        (lambda: keras.optimizers.Adam(0.05, epsilon=1e-3), adam),
        (lambda: optimizers.build_yogi(0.05), yogi),
        pytest.param(lambda: keras.optimizers.Adagrad(0.05), adagrad, marks=pytest.mark.soak),
    ],
)
def test_fed_opt(model_fn, clients, server, reference):
    process = algorithms.build_weighted_fed_avg(model_fn, sgd, server)
    state = process.initialize()
    first, changes = weights_of(state), []
    for _ in range(2):
        changes.append(change(weights_of(state), clients))
        state, _ = process.next(state, clients)
    close(state, [reference(w, [d[i] for d in changes]) for i, w in enumerate(first)])


def test_the_learning_rate_follows_the_round(built, clients):
    process = built("schedule")
    state = process.initialize()
    for rate in (0.1, 0.05, 0.1 / 3):
        start = weights_of(state)
        moved = change(start, clients, rate=rate)
        state, _ = process.next(state, clients)
        close(state, [s + d for s, d in zip(start, moved, strict=True)])


def test_mime_lite_with_momentum(model_fn, clients):
    process = algorithms.build_weighted_mime_lite(model_fn, keras.optimizers.SGD(RATE, momentum=0.9))
    state = process.initialize()
    velocity = [0.0] * 4
    x, y = (np.concatenate(parts) for parts in zip(*map(data_of, clients), strict=True))
    for _ in range(3):
        start = weights_of(state)
        momentum = [-0.9 * v / RATE for v in velocity]
        moved = change(start, clients, correction=lambda w, m=momentum: m)
        velocity = [0.9 * v - RATE * g for v, g in zip(velocity, gradient(start, x, y), strict=True)]
        state, _ = process.next(state, clients)
        close(state, [s + d for s, d in zip(start, moved, strict=True)])


def test_scaffold_over_three_rounds_of_part_of_the_clients(model_fn, clients):
    process = algorithms.build_scaffold(model_fn, RATE, num_clients=5)
    state = process.initialize()
    states = {i: process.initial_client_state() for i in range(5)}
    control, own = [np.zeros(w.shape) for w in weights_of(state)], {i: [0.0] * 4 for i in range(5)}
    for cohort in ([0, 2, 3], [1, 2], [0, 1, 2, 3, 4]):
        start, trained, delta = weights_of(state), [], [0.0] * 4
        for i in cohort:
            x, y = data_of(clients[i])
            drift = [c - ci for c, ci in zip(control, own[i], strict=True)]
            w = train(start, x, y, correction=lambda w, d=drift: d)
            steps = -(-len(y) // BATCH)
            parts = zip(own[i], control, start, w, strict=True)
            after = [ci - c + (s - v) / (steps * RATE) for ci, c, s, v in parts]
            delta = [d + a - b for d, a, b in zip(delta, after, own[i], strict=True)]
            trained.append(w)
            own[i] = after
        control = [c + d / 5 for c, d in zip(control, delta, strict=True)]
        state, _, after = process.next(state, [clients[i] for i in cohort], [states[i] for i in cohort])
        states.update(zip(cohort, after, strict=True))
        close(state, mean(trained))
        for i in cohort:
            for a, b in zip(states[i], own[i], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_round_of_scaffold_of_rate_0_leaves_weights_and_controls(model_fn, clients):
    process = algorithms.build_scaffold(model_fn, RATE, num_clients=2)
    states = [process.initial_client_state() for _ in range(2)]
    state, _, states = process.next(process.initialize(), clients[:2], states)
    stopped = process.set_hparams(state, {"client_work": {"learning_rate": 0.0}})
    after, _, new_states = process.next(stopped, clients[:2], states)
    close(after, weights_of(state))
    np.testing.assert_array_equal(after.client_work["control"][0], state.client_work["control"][0])
    np.testing.assert_array_equal(new_states[0][0], states[0][0])


def test_k_means_moves_the_centres_to_running_means():
    rng = np.random.default_rng(0)
    points = [rng.normal(size=(n, 2)).astype(np.float32) for n in (5, 0, 9)]
    centers = np.array([[-1.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    process = algorithms.build_fed_kmeans(3, [2], initial_centers=centers)
    state, counts = process.initialize(), np.ones(3)
    data = [fc.data.ClientDataset.from_columns(p) for p in points]
    union = np.concatenate(points).astype(np.float64)
    for _ in range(3):
        distances = ((union[:, None] - centers) ** 2).sum(-1)
        nearest = distances.argmin(1)
        state, metrics = process.next(state, data)
        np.testing.assert_allclose(metrics["client_work"]["train"]["loss"], distances.min(1).mean(), rtol=1e-5)
        for k in range(3):
            mine = union[nearest == k]
            centers[k] = (centers[k] * counts[k] + mine.sum(0)) / (counts[k] + len(mine))
            counts[k] += len(mine)
        np.testing.assert_allclose(state.global_model_weights.trainable[0], centers, rtol=1e-5, atol=1e-6)
    assert (state.global_model_weights.trainable[0][2] == 9).all()


def test_personalization_gives_metrics_of_each_client_before_and_after(model_fn, clients):
    evaluate = algorithms.build_personalization_eval_computation(model_fn, {"sgd": sgd})
    start = algorithms.build_fed_eval(model_fn).initialize().global_model_weights
    metrics = evaluate(start, [{"train_data": c, "test_data": c} for c in clients])
    weights = [np.array(w, np.float64) for w in start.trainable]
    for name, found in {"baseline_metrics": weights, "sgd": None}.items():
        want = [loss(found or train(weights, *data_of(c)), *data_of(c)) for c in clients]
        np.testing.assert_allclose(metrics[name]["loss"], want, rtol=1e-5)  # in the order of the clients
    assert list(metrics["sgd"]["num_examples"]) == list(SIZES)
    assert metrics["sgd"]["loss"].mean() < metrics["baseline_metrics"]["loss"].mean()


def test_hyperparameters_are_read_and_set_in_a_state(process, clients):
    state = process.initialize()
    start = weights_of(state)
    hparams = process.get_hparams(state)
    np.testing.assert_allclose(hparams["client_work"]["learning_rate"], RATE, rtol=1e-6)
    assert hparams["finalizer"]["learning_rate"] == 1.0
    state = process.set_hparams(state, {"client_work": {"learning_rate": 0.02}, "finalizer": {"learning_rate": 0.5}})
    moved = change(start, clients, rate=0.02)
    close(process.next(state, clients).state, [s + 0.5 * d for s, d in zip(start, moved, strict=True)])
    with pytest.raises(
        FedcoreError, match=r"no hyperparameter client_work.rate; it has client_work.learning_rate, fin"
    ):
        process.set_hparams(state, {"client_work": {"rate": 1.0}})
    has = "the process has client_work.learning_rate, finalizer.learning_rate"
    with pytest.raises(TypeMismatch, match=f"by part and name, .* but learning_rate is 0.1; {has}"):
        process.set_hparams(state, {"learning_rate": 0.1})
    with pytest.raises(TypeMismatch, match=r"client_work.learning_rate is a number, not 'fast'"):
        process.set_hparams(state, {"client_work": {"learning_rate": "fast"}})
    with pytest.raises(InvalidValue, match=r"client_work.learning_rate is a finite float32, not 1e\+300"):
        process.set_hparams(state, {"client_work": {"learning_rate": 1e300}})


def test_robust_aggregation_of_a_round(model_fn, clients):
    median = fc.aggregators.as_weighted_aggregator(fc.aggregators.coordinate_median_factory())
    process = algorithms.build_weighted_fed_avg(model_fn, sgd, model_aggregator=median)
    state = process.initialize()
    start = weights_of(state)
    trained = [train(start, *data_of(c)) for c in clients]
    close(process.next(state, clients).state, [np.median([t[i] for t in trained], 0) for i in range(4)])


@pytest.mark.parametrize(
    "factory",
    [
        fc.aggregators.krum_factory(1),
        fc.aggregators.concat_factory(fc.aggregators.krum_factory(1)),
        fc.aggregators.coordinate_median_factory(),
        fc.aggregators.geometric_median_factory(weighted=False),
    ],
)
def test_robust_aggregators_leave_out_clients_that_do_not_count(model_fn, clients, factory):
    process = algorithms.build_unweighted_fed_avg(model_fn, sgd, model_aggregator=factory)
    state, counted = process.initialize(), [*clients, *clients[:2]]
    poisoned = clients[0].map(lambda x, y: (x * np.float32(np.nan), y))
    others = [clients[0].take(0)] * 3 + [poisoned] * 2
    among, alone = (process.next(state, given).state for given in (counted + others, counted))
    close(among, weights_of(alone))


def test_an_unweighted_aggregator_of_a_weighted_algorithm_is_refused(model_fn):
    with pytest.raises(TypeMismatch, match=r"takes no weights .*as_weighted_aggregator makes one"):
        algorithms.build_weighted_fed_avg(model_fn, sgd, model_aggregator=fc.aggregators.SumFactory())


@pytest.mark.parametrize(
    "wrong", ["mean", fc.aggregators.MeanFactory, fc.aggregators.MeanFactory().create(*[fc.to_type("float32")] * 2)]
)
@pytest.mark.parametrize("build", [algorithms.build_weighted_fed_avg, algorithms.build_weighted_mime_lite])
def test_what_is_no_aggregator_is_named(model_fn, build, wrong):
    with pytest.raises(
        TypeMismatch, match=r"model_aggregator is a factory of .*, such as fc.aggregators.MeanFactory\(\), n"
    ):
        build(model_fn, optimizers.build_sgdm(RATE), model_aggregator=wrong)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_round_without_clients_or_with_poisoned_ones_only_changes_no_weight(built, name):
    process = built(name)
    state = process.initialize()
    bad = random_clients([4])[0].map(lambda x, y: (x * np.nan, y))
    for data in ([], [bad]):
        after, _ = process.next(state, data)
        close(after, weights_of(state))
        assert after.round == 1
    after, _ = process.next(after, random_clients(SIZES))
    assert np.isfinite(np.concatenate([w.ravel() for w in weights_of(after)])).all()


@pytest.mark.parametrize("name", BUILDERS)
def test_local_and_reference_runtime_agree(built, name):
    process = built(name)
    state = process.initialize()
    local, _ = process.next(state, random_clients([5, 2]))
    with fc.use(fc.runtime.reference()):
        reference, _ = process.next(state, random_clients([5, 2]))
    close(local, weights_of(reference))


def test_seeds_of_clusters_are_numbers_of_any_sign_and_pairs():
    def centers(seed):
        process = algorithms.build_fed_kmeans(np.int64(3), np.array([2]), random_seed=seed)
        return process.initialize().model.trainable[0]

    np.testing.assert_array_equal(centers((5, 0)), centers(np.int32(5)))
    drawn = [centers(seed) for seed in (0, -1, (0, 1), [-(2**63), 2**63 - 1])]
    assert len({d.tobytes() for d in drawn}) == 4
    for wrong in (2**63, (1, 2, 3), 0.5):
        with pytest.raises(FedcoreError, match="random_seed is a"):
            centers(wrong)


def test_numbers_of_builders_are_numbers_of_numpy_too(model_fn):
    algorithms.build_weighted_fed_prox(model_fn, np.float32(0.1), sgd)
    algorithms.build_scaffold(model_fn, np.float32(0.1), np.int64(3))
    with pytest.raises(FedcoreError, match="proximal_strength is a finite number, 0 or more, not -0"):
        algorithms.build_weighted_fed_prox(model_fn, np.float32(-0.1), sgd)
    with pytest.raises(FedcoreError, match="num_clients is a whole number, 1 or more, not 0"):
        algorithms.build_scaffold(model_fn, 0.1, 0)
    with pytest.raises(FedcoreError, match="client_learning_rate is a finite number above 0, not 0"):
        algorithms.build_scaffold(model_fn, 0.0, 3)

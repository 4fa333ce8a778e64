"""FedNova, q-FedAvg, FedDyn, Ditto, optimizers that clients keep, and IFCA, against their papers' formulas in numpy."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue
from fedcore.learning import ClientWeighting, ModelWeights, algorithms

RATE, BATCH = 0.1, 4
SIZES = (5, 9, 2)
"""Examples of the three clients, who so take 2, 3 and 1 steps."""


def columns(number: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    return x, (x @ np.array([[number - 1.0], [1.0]]) + rng.normal(size=(rows, 1))).astype(np.float32)


DATA = [columns(number, rows) for number, rows in enumerate(SIZES)]
CLIENTS = [fc.data.ClientDataset.from_columns(c).batch(BATCH) for c in DATA]


def model_fn():
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), CLIENTS[0].element_spec)


def sgd():
    return keras.optimizers.SGD(RATE)


# Least squares in numpy: weights are lists [kernel, bias].


def loss(weights, x, y):
    return float(np.mean((x @ weights[0] + weights[1] - y) ** 2))


def gradient(weights, x, y):
    error = 2 * (x @ weights[0] + weights[1] - y) / len(x)
    return [x.T @ error, error.sum(0)]


def batches(client: int) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = (c.astype(np.float64) for c in DATA[client])
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]


def whole(client: int) -> tuple[np.ndarray, np.ndarray]:
    return tuple(c.astype(np.float64) for c in DATA[client])


def descend(weights, client: int, correction=lambda w: [0.0, 0.0]):
    """Plain gradient descent over the client's batches; `correction(w)` is added to each gradient."""
    for x, y in batches(client):
        parts = zip(weights, gradient(weights, x, y), correction(weights), strict=True)
        weights = [w - RATE * (g + c) for w, g, c in parts]
    return weights


def combine(function, *weights):
    return [function(*leaves) for leaves in zip(*weights, strict=True)]


def difference(a, b):
    return combine(lambda u, v: u - v, a, b)


def average(models, weights=None):
    return combine(lambda *leaves: np.average(leaves, axis=0, weights=weights), *models)


def weights_of(state):
    return [np.array(w, np.float64) for w in state.global_model_weights.trainable]


def assert_close(have, want):
    for a, b in zip(tf.nest.flatten(have), tf.nest.flatten(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def assert_rounds(process, by_hand, rounds=3):
    """Compares rounds of all clients with `by_hand : (weights -> weights)`."""
    state = process.initialize.invoke(seed=1)
    weights = weights_of(state)
    for _ in range(rounds):
        state, _ = process.next(state, CLIENTS)
        weights = by_hand(weights)
        assert_close(weights_of(state), weights)


# FedNova.


def factors(steps: int, momentum: float, proximal_strength: float) -> list[float]:
    """a_i: how far a gradient of 1 in one of the steps, and 0 in the others, moves a weight, over the rate."""
    moved = []
    for at in range(steps):
        weight, velocity = 0.0, 0.0
        for step in range(steps):
            velocity = momentum * velocity + (step == at)
            weight -= RATE * (velocity + proximal_strength * weight)
        moved.append(-weight / RATE)
    return moved


def test_factors_of_fed_nova_are_the_closed_forms_of_the_paper():
    rho, alpha = 0.9, RATE * 0.5
    np.testing.assert_allclose(factors(3, rho, 0.0), [(1 - rho**k) / (1 - rho) for k in (3, 2, 1)])
    np.testing.assert_allclose(factors(3, 0.0, 0.5), [(1 - alpha) ** k for k in (2, 1, 0)])
    norm = (3 - rho * (1 - rho**3) / (1 - rho)) / (1 - rho)
    np.testing.assert_allclose(sum(factors(3, rho, 0.0)), norm)


def train_with_momentum(sent, client, momentum, proximal_strength):
    weights, velocity = sent, [0.0, 0.0]
    for x, y in batches(client):
        velocity = combine(lambda v, g: momentum * v + g, velocity, gradient(weights, x, y))
        weights = combine(lambda w, v, s: w - RATE * (v + proximal_strength * (w - s)), weights, velocity, sent)
    return weights


@pytest.mark.parametrize(("momentum", "proximal_strength"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5), (0.6, 0.5)])
def test_fed_nova(momentum, proximal_strength):
    shares = np.array(SIZES) / sum(SIZES)

    def by_hand(weights):
        total, effective = [0.0, 0.0], 0.0
        for client, share in enumerate(shares):
            steps = len(batches(client))
            norm = sum(factors(steps, momentum, proximal_strength))
            change = difference(train_with_momentum(weights, client, momentum, proximal_strength), weights)
            total = combine(lambda t, c, s=share / norm: t + s * c, total, change)
            effective += share * (steps if proximal_strength else norm)
        return combine(lambda w, t: w + effective * t, weights, total)

    process = algorithms.build_fed_nova(model_fn, RATE, momentum=momentum, proximal_strength=proximal_strength)
    assert_rounds(process, by_hand)


def test_fed_nova_of_equal_numbers_of_steps_is_federated_averaging():
    nova, plain = algorithms.build_fed_nova(model_fn, RATE), algorithms.build_weighted_fed_avg(model_fn, sgd)
    clients = [client.take(1) for client in CLIENTS]
    state = nova.initialize()
    assert_close(weights_of(nova.next(state, clients).state), weights_of(plain.next(state, clients).state))


# q-FedAvg.


@pytest.mark.parametrize("fairness", [0, 0.5, 2])
def test_q_fed_avg(fairness):
    def by_hand(weights):
        numerator, denominator, lipschitz = [0.0, 0.0], 0.0, 1 / RATE
        for client in range(3):
            own_loss = loss(weights, *whole(client))
            step = [lipschitz * d for d in difference(weights, descend(weights, client))]
            numerator = combine(lambda n, s, f=own_loss**fairness: n + f * s, numerator, step)
            square = sum(np.sum(s**2) for s in step)
            denominator += fairness * own_loss ** (fairness - 1) * square + lipschitz * own_loss**fairness
        return combine(lambda w, n: w - n / denominator, weights, numerator)

    assert_rounds(algorithms.build_q_fed_avg(model_fn, fairness, RATE), by_hand)


def test_q_fed_avg_makes_losses_more_equal():
    def spread(fairness):
        process = algorithms.build_q_fed_avg(model_fn, fairness, 0.05)
        state = process.initialize.invoke(seed=1)
        for _ in range(60):
            state, _ = process.next(state, CLIENTS)
        return np.ptp([loss(weights_of(state), *whole(client)) for client in range(3)])

    assert spread(4.0) < spread(0.0)


def test_a_negative_loss_of_q_fed_avg_is_counted_as_not_finite():
    def forward_pass(weights, batch, training):
        return fc.learning.BatchOutput(tf.reduce_mean(batch[1]) * weights.trainable[0], (), tf.shape(batch[1])[0])

    start = ModelWeights((np.float32(1.0),), ())
    model = fc.learning.models.FunctionalModel(start, forward_pass, (tf.TensorSpec([None]),) * 2)
    process = algorithms.build_q_fed_avg(model, 2.0, RATE)
    labels = [np.float32([value]) for value in (1.0, -1.0)]
    clients = [fc.data.ClientDataset.from_columns((y, y)).batch(1) for y in labels]
    state, metrics = process.next(process.initialize(), clients)
    assert metrics["client_work"]["train"]["num_non_finite_clients"] == 1
    assert 0 < state.global_model_weights.trainable[0] < 1


# Methods whose clients keep a state.


COHORTS = ([0, 2], [1], [0, 1, 2], [1, 2])


def assert_rounds_with_states(process, by_hand, own_by_hand):
    """Compares rounds of parts of the clients with `by_hand : (weights, own states, cohort -> weights)`.

    Args:
        own_by_hand: the first states, which `by_hand` replaces.
    """
    state = process.initialize.invoke(seed=1)
    takes_state = bool(process.initial_client_state.module.main.parameters)
    weights, own = weights_of(state), {}
    for cohort in COHORTS:
        for client in cohort:
            if client not in own:
                own[client] = process.initial_client_state(*([state] if takes_state else []))
        output = process.next(state, [CLIENTS[i] for i in cohort], [own[i] for i in cohort])
        state = output.state
        own.update(zip(cohort, output.client_states, strict=True))
        weights = by_hand(weights, own_by_hand, cohort)
        assert_close(weights_of(state), weights)
    return state, own


def test_fed_dyn():
    alpha, h = 0.3, [np.zeros((2, 1)), np.zeros(1)]

    def by_hand(weights, own, cohort):
        nonlocal h
        trained = []
        for client in cohort:
            pull = lambda w, g=own[client]: combine(lambda v, s, gk: alpha * (v - s) - gk, w, weights, g)  # noqa: E731
            trained.append(descend(weights, client, pull))
            own[client] = combine(lambda gk, v, s: gk - alpha * (v - s), own[client], trained[-1], weights)
        for model in trained:
            h = combine(lambda a, v, s: a - alpha / 3 * (v - s), h, model, weights)
        return combine(lambda m, a: m - a / alpha, average(trained), h)

    own = {client: [np.zeros((2, 1)), np.zeros(1)] for client in range(3)}
    process = algorithms.build_fed_dyn(model_fn, alpha, RATE, num_clients=3)
    state, states = assert_rounds_with_states(process, by_hand, own)
    assert_close(state.client_work["h"], h)
    assert_close([states[i] for i in range(3)], [own[i] for i in range(3)])


def test_ditto():
    def by_hand(weights, personal, cohort):
        for client in cohort:
            pull = lambda v: [0.7 * d for d in difference(v, weights)]  # noqa: E731
            personal[client] = descend(personal.get(client, weights), client, pull)
        return average([descend(weights, client) for client in cohort], [SIZES[i] for i in cohort])

    personal = {}
    _, states = assert_rounds_with_states(algorithms.build_ditto(model_fn, 0.7, sgd), by_hand, personal)
    assert_close([states[i].trainable for i in range(3)], [personal[i] for i in range(3)])


def test_ditto_reports_the_metrics_of_both_models():
    process = algorithms.build_ditto(model_fn, 0.0, sgd, personal_optimizer_fn=lambda: keras.optimizers.SGD(0.0))
    state = process.initialize()
    zeros = ModelWeights((np.zeros((2, 1), np.float32), np.zeros(1, np.float32)), ())
    _, metrics, after = process.next(state, CLIENTS, [zeros] * 3)
    work = metrics["client_work"]
    examples = np.concatenate([y for _, y in DATA])
    np.testing.assert_allclose(work["personal"]["loss"], np.mean(examples**2), rtol=1e-5)
    assert work["personal"]["num_examples"] == work["train"]["num_examples"] == sum(SIZES)
    assert_close([a.trainable for a in after], [zeros.trainable] * 3)


def adam(weights, own, client):
    """A client's steps of Adam, and its moments and number of steps."""
    m, v, t = own
    for x, y in batches(client):
        g, t = gradient(weights, x, y), t + 1
        m, v = combine(lambda a, b: 0.9 * a + 0.1 * b, m, g), combine(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        rate = 0.05 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        weights = combine(lambda w, a, b, r=rate: w - r * a / (np.sqrt(b) + 1e-3), weights, m, v)
    return weights, (m, v, t)


def keras_adam():
    return keras.optimizers.Adam(0.05, epsilon=1e-3)


def test_adam_goes_on_with_a_clients_moments():
    def by_hand(weights, own, cohort):
        trained = []
        for client in cohort:
            model, own[client] = adam(weights, own[client], client)
            trained.append(model)
        return average(trained, [SIZES[i] for i in cohort])

    own = {client: ([0.0, 0.0], [0.0, 0.0], 0) for client in range(3)}
    process = algorithms.build_fed_avg_with_optimizer_states(model_fn, keras_adam)
    _, states = assert_rounds_with_states(process, by_hand, own)
    assert [int(states[i]["step"]) for i in range(3)] == [own[i][2] for i in range(3)] == [4, 9, 3]


def test_the_server_sets_the_rate_of_optimizers_that_clients_keep():
    process = algorithms.build_fed_avg_with_optimizer_states(model_fn, keras_adam)
    state = process.set_hparams(process.initialize(), {"client_work": {"learning_rate": 0.0}})
    output = process.next(state, CLIENTS, [process.initial_client_state()] * 3)
    assert_close(weights_of(output.state), weights_of(state))
    assert output.client_states[0]["learning_rate"] == 0.0


# IFCA.


def clustered(build):
    """A process of two models, its first state, and their weights."""
    process = build(model_fn, 2)
    state = process.initialize.invoke(seed=1)
    models = [ModelWeights((np.float32([[k], [1.0]]), np.float32([0.0])), ()) for k in (-1.0, 1.0)]
    return process, process.set_model_weights(state, models), [list(m.trainable) for m in models]


def choice_of(models, client):
    return int(np.argmin([loss(weights, *whole(client)) for weights in models]))


@pytest.mark.parametrize("weighting", [ClientWeighting.UNIFORM, ClientWeighting.NUM_EXAMPLES])
def test_ifca_with_model_averaging(weighting):
    process, state, models = clustered(
        functools.partial(algorithms.build_ifca, client_optimizer_fn=sgd, client_weighting=weighting)
    )
    seen = set()
    for cohort in ([0, 1, 2], [0], [1, 2]):
        state, metrics = process.next(state, [CLIENTS[i] for i in cohort])
        choices = {client: choice_of(models, client) for client in cohort}
        seen |= {*choices.values()}
        counts = [list(choices.values()).count(k) for k in range(2)]
        np.testing.assert_array_equal(metrics["client_work"]["clients_by_cluster"], counts)
        for k in range(2):
            mine = [client for client in cohort if choices[client] == k]
            if mine:
                by_examples = weighting is ClientWeighting.NUM_EXAMPLES
                shares = [SIZES[i] for i in mine] if by_examples else None
                models[k] = average([descend(models[k], client) for client in mine], shares)
        assert_close([m.trainable for m in process.get_model_weights(state)], models)
    assert seen == {0, 1}


def test_ifca_with_gradient_averaging():
    process, state, models = clustered(functools.partial(algorithms.build_ifca_with_gradients, server_optimizer_fn=sgd))
    for cohort in ([0, 1, 2], [0], [1, 2]):
        state, _ = process.next(state, [CLIENTS[i] for i in cohort])
        choices, rate = {client: choice_of(models, client) for client in cohort}, RATE / len(cohort)
        sums = [[0.0, 0.0], [0.0, 0.0]]
        for client, k in choices.items():
            sums[k] = combine(lambda a, b: a + b, sums[k], gradient(models[k], *whole(client)))
        models = [
            combine(lambda w, g, r=rate: w - r * g, weights, total) for weights, total in zip(models, sums, strict=True)
        ]
        assert_close([m.trainable for m in process.get_model_weights(state)], models)


def test_an_evaluation_of_ifca_is_of_the_best_model_of_each_client():
    _, state, models = clustered(functools.partial(algorithms.build_ifca, client_optimizer_fn=sgd))
    evaluation = algorithms.build_ifca_eval(model_fn, 2, per_client=[])
    evaluated = evaluation.set_model_weights(evaluation.initialize(), state.global_model_weights)
    output = evaluation.next(evaluated, CLIENTS)
    best = [min(loss(weights, *whole(client)) for weights in models) for client in range(3)]
    np.testing.assert_allclose([m["loss"] for m in output.client_metrics], best, rtol=1e-5)
    found = output.metrics["client_work"]["eval"]["current_round_metrics"]["loss"]
    np.testing.assert_allclose(found, np.average(best, weights=SIZES), rtol=1e-5)


def test_a_model_of_ifca_that_is_not_finite_is_not_chosen():
    process, state, models = clustered(functools.partial(algorithms.build_ifca, client_optimizer_fn=sgd))
    bad = ModelWeights((np.full((2, 1), np.nan, np.float32), np.zeros(1, np.float32)), ())
    state = process.set_model_weights(state, [bad, ModelWeights(tuple(models[1]), ())])
    state, metrics = process.next(state, CLIENTS)
    np.testing.assert_array_equal(metrics["client_work"]["clients_by_cluster"], [0, 3])
    assert_close(process.get_model_weights(state)[1].trainable, average([descend(models[1], i) for i in range(3)]))


def test_ifca_takes_models_with_frozen_layers():
    def make():
        frozen = keras.layers.Dense(2, kernel_initializer="identity", trainable=False)
        net = keras.Sequential([keras.Input((2,)), frozen, keras.layers.Dense(1)])
        return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), CLIENTS[0].element_spec)

    process, plain = (algorithms.build_ifca(fn, 2, sgd) for fn in (make, model_fn))
    state, start = process.initialize(), plain.initialize()
    models = process.get_model_weights(state)
    assert [len(weights.non_trainable) for weights in models] == [2, 2]
    start = plain.set_model_weights(start, [ModelWeights(weights.trainable, ()) for weights in models])
    after, expected = process.next(state, CLIENTS).state, plain.next(start, CLIENTS).state
    assert_close(after.global_model_weights, expected.global_model_weights)
    same = process.set_model_weights(state, process.get_model_weights(after))
    assert_close(same.global_model_weights, after.global_model_weights)


def test_a_client_of_ifca_sends_one_change():
    sent = {}
    for clusters in (1, 3):
        process = algorithms.build_ifca(model_fn, clusters, sgd)
        process.next(process.initialize(), CLIENTS)
        sent[clusters] = fc.context.last_report().aggregate_bits
    assert sent[3] == sent[1]


def test_models_of_ifca_that_begin_alike_are_warned_of():
    def make():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), CLIENTS[0].element_spec)

    with pytest.warns(RuntimeWarning, match=r"all models begin alike.*\n  fix: process\.set_model_weights\("):
        algorithms.build_ifca(make, 2, sgd)


# All of them.


BUILDERS = {
    "fed_nova": lambda: algorithms.build_fed_nova(model_fn, RATE, momentum=0.9),
    "q_fed_avg": lambda: algorithms.build_q_fed_avg(model_fn, 1.0, RATE),
    "fed_dyn": lambda: algorithms.build_fed_dyn(model_fn, 0.1, RATE, num_clients=3),
    "ditto": lambda: algorithms.build_ditto(model_fn, 0.5, sgd),
    "optimizer states": lambda: algorithms.build_fed_avg_with_optimizer_states(model_fn, keras_adam),
    "ifca": lambda: algorithms.build_ifca(model_fn, 2, sgd),
    "ifca with gradients": lambda: algorithms.build_ifca_with_gradients(model_fn, 2, sgd),
}


@pytest.fixture(scope="module")
def built():
    """Each process of BUILDERS, built and compiled once."""
    return functools.cache(lambda name: BUILDERS[name]())


def states_of(process, state, clients):
    if not isinstance(process, fc.learning.ClientStateProcess):
        return []
    takes_state = bool(process.initial_client_state.module.main.parameters)
    return [[process.initial_client_state(*([state] if takes_state else []))] * len(clients)]


@pytest.mark.parametrize("name", BUILDERS)
def test_clients_that_do_not_count_change_nothing(built, name):
    process = built(name)
    state = process.initialize.invoke(seed=3)
    x, y = columns(0, 4)
    poisoned = fc.data.ClientDataset.from_columns((x * np.float32(np.nan), y)).batch(BATCH)
    for clients in ([], [poisoned], [CLIENTS[0].take(0)]):
        after, *_ = process.next(state, clients, *states_of(process, state, clients))
        assert_close(after.global_model_weights, state.global_model_weights)
        assert_close(after.client_work, state.client_work)
    clients = [CLIENTS[0], poisoned, CLIENTS[1], CLIENTS[2].take(0)]
    mixed, metrics, *own = process.next(state, clients, *states_of(process, state, clients))
    alone, _, *_ = process.next(state, CLIENTS[:2], *states_of(process, state, CLIENTS[:2]))
    assert metrics["client_work"]["train"]["num_non_finite_clients"] == 1
    assert_close(mixed.global_model_weights, alone.global_model_weights)
    for states in own:
        first = states_of(process, state, clients)[0]
        assert_close([states[1], states[3]], [first[1], first[3]])


@pytest.mark.parametrize("name", BUILDERS)
def test_local_and_reference_runtime_agree(built, name):
    process = built(name)
    state = process.initialize.invoke(seed=3)
    given = CLIENTS, *states_of(process, state, CLIENTS)
    local = process.next(state, *given)
    with fc.use(fc.runtime.reference()):
        reference = process.next(state, *given)
    assert_close(local.state.global_model_weights, reference.state.global_model_weights)


@pytest.mark.parametrize("name", BUILDERS)
def test_clients_train_side_by_side(built, name):
    assert "strategy=vectorised" in built(name).next.to_text("planned")


def evaluation_of(name):
    return algorithms.build_ifca_eval(model_fn, 2) if "ifca" in name else algorithms.build_fed_eval(model_fn)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_resumed_training_is_an_unbroken_one(built, name, tmp_path):
    datasets = dict(zip("abc", CLIENTS, strict=True))
    data = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(list(datasets), datasets.get)
    train = functools.partial(
        fc.learning.programs.train,
        built(name),
        data,
        clients_per_round=2,
        seed=5,
        progress=False,
        evaluation=evaluation_of(name),
        evaluation_data=data,
        evaluate_every=2,
    )
    unbroken = train(rounds=6)
    for rounds in (2, 6):
        resumed = train(rounds=rounds, directory=tmp_path)
    leaves = [tf.nest.flatten((h.state, dict(h.client_states))) for h in (unbroken, resumed)]
    assert [np.asarray(a).tobytes() for a in leaves[0]] == [np.asarray(a).tobytes() for a in leaves[1]]
    assert [row for row in unbroken if row["round"] % 2 == 0] == [row for row in resumed if row["round"] % 2 == 0]


def test_a_rate_that_the_builder_refuses_is_refused_in_the_state_too():
    process = algorithms.build_fed_nova(model_fn, 0.5, proximal_strength=1)
    state = process.initialize()
    with pytest.raises(FedcoreError, match=r"client_work.learning_rate \* proximal_strength is below 1, not 1.5 \* 1"):
        process.set_hparams(state, {"client_work": {"learning_rate": 1.5}})
    changed = process.set_hparams(state, {"client_work": {"learning_rate": 0.9}, "finalizer": {"learning_rate": 2.0}})
    assert float(process.get_hparams(changed)["client_work"]["learning_rate"]) == pytest.approx(0.9)


def test_wrong_numbers_are_named():
    wrong = {
        "client_learning_rate is a finite number above 0, not 0": lambda: algorithms.build_fed_nova(model_fn, 0),
        "momentum is less than 1, not 1.0": lambda: algorithms.build_fed_nova(model_fn, RATE, momentum=1),
        r"client_learning_rate \* proximal_strength is below 1, not 0.5 \* 3": lambda: algorithms.build_fed_nova(
            model_fn, 0.5, proximal_strength=3
        ),
        "fairness is a finite number, 0 or more, not -1": lambda: algorithms.build_q_fed_avg(model_fn, -1, RATE),
        "regularization is a finite number above 0, not 0": lambda: algorithms.build_fed_dyn(model_fn, 0, RATE, 3),
        "num_clients is a whole number, 1 or more, not 0": lambda: algorithms.build_fed_dyn(model_fn, 1, RATE, 0),
        "personal_strength is a finite number, 0 or more, not -0.5": lambda: algorithms.build_ditto(
            model_fn, -0.5, sgd
        ),
        "num_clusters is a whole number, 1 or more, not 0": lambda: algorithms.build_ifca(model_fn, 0, sgd),
    }
    for message, build in wrong.items():
        with pytest.raises(FedcoreError, match=message):
            build()


def test_averages_of_optimizers_are_refused_where_nothing_reads_them():
    def averaging():
        return keras.optimizers.SGD(RATE, use_ema=True)

    for build in (
        lambda: algorithms.build_fed_avg_with_optimizer_states(model_fn, averaging),
        lambda: algorithms.build_ditto(model_fn, 0.5, averaging),
    ):
        with pytest.raises(FedcoreError, match="averages weights"):
            build()


def narrow_model_fn(dtype):
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype=dtype, kernel_initializer="ones")])
    return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), CLIENTS[0].element_spec)


def moved(process, clients):
    state = process.initialize.invoke(seed=1)
    after, *_ = process.next(state, clients, *states_of(process, state, clients))
    return [np.array(w, np.float64) for w in after.global_model_weights.trainable]


def test_q_fed_avg_of_float16_is_that_of_float32_where_its_sums_are_larger_than_a_float16():
    x = np.ones((4, 2), np.float32)
    clients = [fc.data.ClientDataset.from_columns((x, np.full((4, 1), y, np.float32))).batch(BATCH) for y in (8.0, 9.0)]
    wide, narrow = (
        moved(algorithms.build_q_fed_avg(functools.partial(narrow_model_fn, dtype), 3, 0.001), clients)
        for dtype in ("float32", "float16")
    )
    assert wide[1] > 0.01
    for a, b in zip(wide, narrow, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-3)


def test_fed_dyn_adds_more_changes_than_a_bfloat16_counts():
    x = np.ones((4, 2), np.float32)
    clients = [fc.data.ClientDataset.from_columns((x, x[:, :1])).batch(BATCH)] * 600
    process = algorithms.build_fed_dyn(functools.partial(narrow_model_fn, "bfloat16"), 0.1, RATE, 600)
    with fc.use(fc.runtime.local(block_size=600, vectorize=False)):
        many = moved(process, clients)
    for a, b in zip(many, (0.6, -0.4), strict=True):  # 1 and 0, less twice the only step: h has its change, over α
        np.testing.assert_allclose(a, b, rtol=0, atol=0.01)


def test_other_numbers_of_models_than_clusters_are_refused():
    process, state, models = clustered(functools.partial(algorithms.build_ifca, client_optimizer_fn=sgd))
    one = ModelWeights(tuple(models[0]), ())
    for weights, given in ((one, "one"), ([one] * 3, "3")):
        with pytest.raises(InvalidValue, match=f"there are 2 models; the weights are those of {given}"):
            process.set_model_weights(state, weights)

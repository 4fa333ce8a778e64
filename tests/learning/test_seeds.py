"""What a learning process draws: from its state's seed and round, and nothing else."""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.learning.models.traced import active_initialisers, reproducible
from fedcore.seeds import fold_in

SPEC = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None, 1], tf.float32))


def with_dropout(seed=None):
    def model_fn():
        model = keras.Sequential(
            [
                keras.Input([4]),
                keras.layers.Dense(8, kernel_initializer=keras.initializers.GlorotUniform(seed=3)),
                keras.layers.Dropout(0.5, seed=seed),
                keras.layers.Dense(1),
            ]
        )
        return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), input_spec=SPEC)

    return model_fn


def client(seed: int) -> fc.data.ClientDataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=[6, 4]).astype(np.float32)
    return fc.data.ClientDataset.from_columns((x, x.sum(1, keepdims=True))).batch(3)


def process_of(model_fn):
    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))


@pytest.fixture(scope="module")
def process():
    """Of a model with dropout, built and compiled once."""
    return process_of(with_dropout())


@pytest.fixture(scope="module")
def evaluation():
    return fc.learning.algorithms.build_fed_eval(with_dropout())


def weights_of(state) -> list:
    weights = state.global_model_weights
    return [*weights.trainable, *weights.non_trainable]


def same(left, right) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(weights_of(left), weights_of(right), strict=True))


def test_default_initialisers_follow_the_seed_and_given_seeds_stay(process):
    states = [process.initialize.invoke(seed=s) for s in (1, 2, 1)]
    first, second = (s.global_model_weights.trainable for s in states[:2])
    np.testing.assert_array_equal(first[0], second[0])  # its initialiser has a seed of its own
    assert not np.array_equal(first[2], second[2])
    assert same(states[0], states[2])


def test_the_seed_of_a_state_follows_that_of_the_call(process):
    first, other = (int(process.initialize.invoke(seed=s).seed) for s in (fold_in(6, 0), 7))
    assert first != other
    with fc.use(seed=6):
        assert process.initialize().seed == first
    with fc.use(fc.runtime.reference(), seed=6):
        assert process.initialize().seed == first


def test_without_a_seed_every_state_has_another_and_the_report_tells_how_to_get_it_again(process):
    state = process.initialize()
    report = fc.context.last_report()
    assert process.initialize().seed != state.seed
    again = process.initialize.invoke(seed=report.seed)
    assert again.seed == state.seed
    assert same(state, again)


def test_seeds_of_the_process_do_not_reach_initialize(process):
    for set_seed in (keras.utils.set_random_seed, tf.random.set_seed):
        drawn = []
        for _ in range(2):
            set_seed(0)
            drawn.append(process.initialize())
        assert drawn[0].seed != drawn[1].seed
        assert not same(*drawn)
    keras.utils.set_random_seed(0)
    assert process_of(with_dropout()).initialize == process.initialize


def test_a_keras_model_made_outside_of_model_fn_follows_the_seed_of_the_process():
    first = []
    for seed in (0, 0, 1):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        process = process_of(
            lambda model=model: fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), input_spec=SPEC)
        )
        state = process.initialize()
        np.testing.assert_array_equal(state.global_model_weights.trainable[0], model.weights[0])
        first.append(state)
    assert same(first[0], first[1])
    assert not same(first[0], first[2])


def test_a_state_made_inside_a_computation_or_from_a_file_has_a_seed_too(process, tmp_path):
    fc.save(process.initialize, tmp_path / "initialize.fed")
    want = process.initialize.invoke(seed=6).seed
    assert fc.load(tmp_path / "initialize.fed").invoke(seed=6).seed == want

    @fc.federated_computation
    def started():
        return process.initialize()

    assert started.invoke(seed=6).seed not in (0, want)


def test_rounds_from_a_stored_state_are_those_of_an_unbroken_run(process):
    data = [client(0), client(1)]
    unbroken = process.next(process.next(process.initialize.invoke(seed=1), data).state, data).state
    kept = process.next(process.initialize.invoke(seed=1), data).state
    rebuilt = tf.nest.map_structure(np.copy, [*weights_of(kept)])
    weights = fc.learning.models.ModelWeights(tuple(rebuilt[:4]), tuple(rebuilt[4:]))
    resumed = kept.replace(model=weights, seed=np.int64(int(kept.seed)), round=np.int64(int(kept.round)))
    assert same(process_of(with_dropout()).next(resumed, data).state, unbroken)


@pytest.mark.parametrize("seed", [None, 7])
def test_dropout_differs_by_round_and_seed_and_is_reproducible(process, seed):
    process = process if seed is None else process_of(with_dropout(seed))
    state = process.initialize.invoke(seed=1)
    data = [client(0), client(1)]
    after = process.next(state, data).state
    assert same(after, process.next(state, data).state)
    assert not same(after, process.next(state.replace(round=np.int64(5)), data).state)
    assert not same(after, process.next(state.replace(seed=np.int64(5)), data).state)


def test_steps_and_clients_drop_other_units():
    model = fc.learning.models.trace_model(with_dropout())

    @fc.tf_computation
    def forward():
        batch = tf.ones([1, 4]), tf.ones([1, 1])
        return model.step(model.initial_weights(), model.initial_metrics(), batch, training=True)[0].loss

    @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
    def losses(x):
        return fc.federated_map(fc.tf_computation("int32")(lambda _: _), x), fc.federated_eval(forward, fc.CLIENTS)

    drawn = losses.invoke([0] * 6, seed=1)[1]
    assert len({float(v) for v in drawn}) > 2


def test_evaluation_draws_nothing(evaluation):
    state = evaluation.initialize.invoke(seed=1)
    first = evaluation.next(state, [client(0)]).metrics["client_work"]["eval"]["current_round_metrics"]["loss"]
    other = evaluation.next(state.replace(seed=np.int64(9)), [client(0)])
    assert first == other.metrics["client_work"]["eval"]["current_round_metrics"]["loss"]


def test_evaluation_between_rounds_shifts_nothing(process, evaluation):
    data = [client(0), client(1)]

    def trained(*, evaluates: bool):
        state = process.initialize.invoke(seed=1)
        for _ in range(2):
            if evaluates:
                of = evaluation.set_model_weights(evaluation.initialize(), process.get_model_weights(state))
                evaluation.next(of, data)
            state = process.next(state, data).state
        return state

    assert same(trained(evaluates=False), trained(evaluates=True))


def test_a_state_may_be_a_number():
    @fc.federated_computation
    def initialize():
        return fc.federated_value(np.float32(1.5), fc.SERVER)

    @fc.federated_computation(
        initialize.type_signature.result, fc.FederatedType(fc.SequenceType(np.float32), fc.CLIENTS)
    )
    def next_round(state, data):
        return fc.learning.LearningProcessOutput(state, fc.federated_value((), fc.SERVER))

    process = fc.learning.LearningProcess(initialize, next_round)
    assert process.next(process.initialize(), [[1.0]]).state == 1.5


def test_a_thread_does_not_see_the_initialisers_of_another():
    with reproducible() as initialisers, ThreadPoolExecutor(1) as pool:
        assert active_initialisers() is initialisers
        assert pool.submit(active_initialisers).result() is not initialisers

"""fedcore's own functions are traced once; what could make another graph gives another key."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.computation import tracing
from fedcore.computation.own_functions import own_function_key
from fedcore.graphs.frontend import function_tracing
from fedcore.learning.optimizers import sgdm
from fedcore.learning.optimizers.optimizer import LeafwiseOptimizer

FACTOR = 2.0


def own(fn):
    """The function, as if a module of fedcore defined it."""
    fn.__module__ = "fedcore.learning"
    return fn


def times(value):
    return own(lambda x: x * value)


def test_functions_of_equal_closures_have_equal_keys():
    assert own_function_key(times(2.0)) == own_function_key(times(2.0)) is not None
    optimizers = (fc.learning.optimizers.build_adam(0.5), fc.learning.optimizers.build_adam(0.5))
    first, second = (own_function_key(times(optimizer)) for optimizer in optimizers)
    assert first == second is not None


@pytest.mark.parametrize("other", [3.0, 2, True, "2.0", None, (2.0,), [2.0], {"a": 2.0}, -2.0])
def test_another_value_in_the_closure_gives_another_key(other):
    assert own_function_key(times(other)) != own_function_key(times(2.0))


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, False])
def test_equal_numbers_of_other_kinds_have_other_keys(zero):
    keys = [own_function_key(times(value)) for value in (0, 0.0, -0.0, False)]
    assert keys.count(own_function_key(times(zero))) == 1


def test_another_number_of_an_optimizer_gives_another_key():
    build = fc.learning.optimizers.build_sgdm
    keys = {own_function_key(times(o)) for o in (build(0.1), build(0.2), build(0.1, 0.9), build(0.1, 0.9, True))}
    assert len(keys) == 4
    assert None not in keys


def test_functions_whose_trace_changes_what_is_around_them_are_traced_each_time():
    noted, count = [], 0

    def fills(x):
        noted.append(x)
        return x

    def counts(x):
        nonlocal count
        count += 1
        return x

    def counts_inside(x):
        def add():
            nonlocal count
            count += 1

        add()
        return x

    assert [own_function_key(own(fn)) for fn in (fills, counts, counts_inside)] == [None, None, None]


class Own(LeafwiseOptimizer):
    has_slots = False

    def slots(self, weight):
        return {}

    def step(self, hparams, step, slots, weight, gradient):
        return {}, weight


@pytest.mark.parametrize(
    "value",
    [np.ones(2), tf.constant(1.0), keras.layers.Dense(1), object(), lambda x: x, Own(learning_rate=0.1), {1, 2}, float],
    ids=lambda value: type(value).__name__,
)
def test_what_may_change_has_no_key(value):
    assert own_function_key(times(value)) is None


def test_a_function_has_no_key_before_its_closure_is_filled():
    fn = own(lambda x: x * factor)
    assert own_function_key(fn) is None
    factor = 2.0
    assert own_function_key(fn) == own_function_key(fn) is not None


def test_functions_of_the_user_have_no_key():
    assert own_function_key(lambda x: x) is None
    assert own_function_key(np.sum) is None


def test_a_replaced_method_or_attribute_of_an_optimizer_is_seen(monkeypatch):
    optimizer = fc.learning.optimizers.build_sgdm(0.1)
    before = own_function_key(times(optimizer))
    with monkeypatch.context() as patch:
        patch.setattr(sgdm._Sgdm, "step", own(lambda self, *args: ({}, args[3])))
        assert own_function_key(times(optimizer)) != before
    assert own_function_key(times(optimizer)) == before
    monkeypatch.setattr(optimizer, "next", lambda *args: args)
    assert own_function_key(times(optimizer)) is None


def test_a_replaced_global_is_seen(monkeypatch):
    scaled = own(lambda x: x * FACTOR)
    before = own_function_key(scaled)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert own_function_key(scaled) != before


@pytest.fixture
def traced(monkeypatch):
    """The names of the functions that are traced."""
    names = []
    trace_leaves = function_tracing.trace_leaves

    def noted(*args, describe, **options):
        names.append(describe.split("`")[1])
        return trace_leaves(*args, describe=describe, **options)

    monkeypatch.setattr(function_tracing, "trace_leaves", noted)
    monkeypatch.setattr(tracing, "_own_modules", tracing.LruCache(256))
    return names


def model_fn():
    spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
    return fc.learning.from_keras_model(keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]), "mse", spec)


def build(rate, server=None):
    sgdm = fc.learning.optimizers.build_sgdm
    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, sgdm(rate), server)


def test_a_process_of_another_rate_traces_the_model_only(traced):
    first = build(0.1)
    assert {"divide", "update"} < set(traced)
    traced.clear()
    second = build(0.2)
    assert sorted(traced) == ["<lambda>", "<lambda>", "begin", "finish", "step"]
    assert first.next.digest == second.next.digest
    assert first.initialize.digest != second.initialize.digest


def test_processes_with_other_server_optimizers_are_those_of_a_new_interpreter(traced, monkeypatch):
    optimizers = fc.learning.optimizers
    makes = [
        lambda: optimizers.build_sgdm(1.0, 0.9),
        lambda: optimizers.build_sgdm(1.0, 0.9, True),
        lambda: keras.optimizers.Adam(0.1, clipnorm=1.0),
    ]
    shared = [build(0.1, make()) for make in makes for _ in range(2)][1::2]
    for process, make in zip(shared, makes, strict=True):
        monkeypatch.setattr(tracing, "_own_modules", tracing.LruCache(256))
        alone = build(0.1, make())
        assert (process.next.digest, process.initialize.digest) == (alone.next.digest, alone.initialize.digest)


def test_a_rate_of_a_sweep_is_the_rate_that_trains(traced):
    client = fc.data.ClientDataset.from_columns((np.ones([2, 2], "f"), np.zeros([2, 1], "f"))).batch(2)
    moves = []
    for rate in (0.1, 0.2):
        process = build(rate)
        state = process.initialize()
        moved = process.next(state, [client]).state.global_model_weights.trainable[0]
        start = state.global_model_weights.trainable[0]
        error = np.ones([1, 2], "f") @ start
        np.testing.assert_allclose(moved, start - rate * 2 * error * np.ones([2, 1]), rtol=1e-4)
        moves.append(process.get_hparams(state)["client_work"]["learning_rate"])
    np.testing.assert_allclose(moves, [0.1, 0.2], rtol=1e-6)

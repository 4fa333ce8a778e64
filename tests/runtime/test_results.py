"""Server stages that are asked for again with the same tensors."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context

ROWS = ("float32", (3,))
ROW = fc.FederatedType(ROWS, fc.SERVER)
FLOATS = fc.FederatedType("float32", fc.CLIENTS)

halved = fc.tf_computation(lambda w: w / 2.0, ROWS)
noised = fc.tf_computation(lambda w: w + tf.random.normal([3]), ROWS)
scored = fc.tf_computation(lambda x, w: x * tf.reduce_sum(w), "float32", ROWS)


@fc.federated_computation(ROW, FLOATS)
def evaluate(weights, xs):
    return fc.federated_sum(fc.federated_map(scored, (xs, fc.federated_broadcast(fc.federated_map(halved, weights)))))


@fc.federated_computation(ROW, FLOATS)
def evaluate_noised(weights, xs):
    return fc.federated_sum(fc.federated_map(scored, (xs, fc.federated_broadcast(fc.federated_map(noised, weights)))))


@fc.federated_computation(ROW)
def next_state(weights):
    return fc.federated_map(halved, weights)


def server_calls(computation, *arguments):
    computation(*arguments)
    return context.last_report().graph_calls["server"]


def test_the_model_that_is_evaluated_again_is_prepared_once(runtime):
    state = next_state(np.full(3, 4.0, np.float32))
    first = evaluate(state, [1.0, 2.0])
    calls = context.last_report().graph_calls["server"]
    assert evaluate(state, [1.0, 2.0]) == first == 9.0
    assert context.last_report().graph_calls["server"] == calls - 1
    assert evaluate(state, [1.0]) == 3.0


def test_an_equal_model_in_other_memory_is_another(runtime):
    state = next_state(np.full(3, 4.0, np.float32))
    calls = server_calls(evaluate, state, [1.0])
    assert server_calls(evaluate, next_state(np.full(3, 4.0, np.float32)), [1.0]) == calls


def test_an_array_of_the_users_is_looked_at_each_time(runtime):
    weights = np.full(3, 2.0, np.float32)
    assert evaluate(weights, [1.0]) == 3.0
    weights[:] = 4.0
    assert evaluate(weights, [1.0]) == 6.0


def test_a_stage_that_draws_runs_each_time(runtime):
    state = next_state(np.full(3, 4.0, np.float32))
    with fc.use(seed=1):
        first, calls = evaluate_noised(state, [1.0]), context.last_report().graph_calls["server"]
    with fc.use(seed=2):
        assert evaluate_noised(state, [1.0]) != first
    assert context.last_report().graph_calls["server"] == calls


@pytest.mark.parametrize("same", [np.float32(3), 3.0])
def test_a_stage_that_prints_runs_each_time(runtime, same, capfd):
    @fc.tf_computation("float32")
    def shown(x):
        tf.print("seen", x)
        return x + 1

    @fc.federated_computation(fc.FederatedType("float32", fc.SERVER))
    def at_server(x):
        return fc.federated_map(shown, fc.federated_map(shown, x))

    for _ in range(2):
        assert at_server(same) == 5.0
    assert capfd.readouterr().err.split() == ["seen", "3", "seen", "4"] * 2


def test_results_go_with_the_state_they_were_made_of(runtime):
    kept = runtime._plans._results
    state = next_state(np.full(3, 4.0, np.float32))
    evaluate(state, [1.0])
    assert len(kept) > 0
    del state
    gc.collect()
    assert len(kept) == 0

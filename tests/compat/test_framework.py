"""The sizes of a run, under the names of the tutorials."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError


@fc.federated_computation(fc.FederatedType("int32", fc.SERVER), fc.FederatedType("int32", fc.CLIENTS))
def next_round(state, values):
    shifted = fc.federated_map(lambda x, s: x + s, (values, fc.federated_broadcast(state)))
    return fc.federated_sum(shifted)


@fc.federated_computation(fc.FederatedType("int32", fc.SERVER))
def doubled(x):
    return fc.federated_map(lambda v: fc.generic_plus(v, v), x)


@pytest.fixture
def env():
    made = fc.framework.set_sizing_environment()
    yield made
    fc.set_runtime(None)
    made.close()


def test_the_bits_of_a_run_are_summed_after_each_round(env):
    assert env.get_size_info() == fc.framework.SizeInfo()
    for clients in ([1, 2, 3], [4]):
        next_round(0, clients)
    sizes = env.get_size_info()
    assert sizes.broadcast_bits == sizes.aggregate_bits == (3 * 32, 4 * 32)
    assert [[(str(c.type), c.clients, c.bits) for c in calls] for calls in sizes.broadcast_history] == [
        [("int32", 3, 96)],
        [("int32", 1, 32)],
    ]
    assert [len(calls) for calls in sizes.aggregate_history] == [1, 1]


def test_calls_in_which_nothing_crosses_are_not_listed(env):
    assert doubled(3) == 6
    assert env.get_size_info().broadcast_bits == ()


def test_a_call_that_fails_counts_nothing(env):
    with pytest.raises(FedcoreError):
        next_round(0, ["x"])
    assert env.get_size_info() == fc.framework.SizeInfo()


def test_the_tutorials_own_function_works():
    environment = fc.framework.sizing_executor_factory()
    fc.framework.set_default_context(fc.framework.ExecutionContext(executor_fn=environment))
    next_round(0, [1])
    fc.set_runtime(None)
    assert environment.get_size_info().aggregate_bits[-1] == 32


def test_the_reference_runtime_is_refused():
    with fc.use(fc.runtime.reference()), pytest.raises(FedcoreError, match="ReferenceRuntime runs no plans"):
        fc.framework.set_sizing_environment()


def fedavg_cnn():
    layers = keras.layers
    conv = {"kernel_size": 5, "padding": "same", "data_format": "channels_last", "activation": "relu"}
    network = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, **conv),
            layers.MaxPooling2D(),
            layers.Conv2D(64, **conv),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(10),
        ]
    )
    return fc.learning.from_keras_model(
        network,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=(tf.TensorSpec((None, 28, 28, 1), tf.float32), tf.TensorSpec((None,), tf.int32)),
    )


@pytest.mark.slow
def test_a_round_of_the_tutorials_cnn_is_507_62_mibit_each_way(env):
    sgd = fc.learning.optimizers.build_sgdm
    process = fc.learning.algorithms.build_weighted_fed_avg(fedavg_cnn, sgd(0.02), sgd(1.0))
    state = process.initialize()
    columns = (np.zeros((1, 28, 28, 1), np.float32), np.zeros(1, np.int32))
    process.next(state, [fc.data.ClientDataset.from_columns(columns).batch(1)] * 10)
    sizes = env.get_size_info()
    for history, total in (
        (sizes.broadcast_history, sizes.broadcast_bits),
        (sizes.aggregate_history, sizes.aggregate_bits),
    ):
        (crossed,) = history
        assert sum(c.bits for c in crossed if ".trainable/" in c.tensor) == 10 * 1_663_370 * 32
        assert total == (sum(c.bits for c in crossed),)
        assert f"{total[-1] / 2**20:.2f}" == "507.62"

"""Client stages that XLA compiles because the user asked for it."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.errors import FedcoreError

BATCHES = fc.SequenceType(("float32", [None, 3]))


@fc.tf_computation(("float32", [3]), ("float32", [None, 3]))
def step(weights, batch):
    return weights - 0.1 * tf.reduce_mean(tf.tanh(batch) * weights, axis=0)


@fc.federated_computation(fc.FederatedType(BATCHES, fc.CLIENTS))
def train(clients):
    ones = fc.tf_computation(lambda: tf.ones([3]))
    return fc.federated_sum(fc.federated_map(lambda batches: fc.sequence_reduce(batches, ones(), step), clients))


@fc.tf_computation(("float32", [8, 8]))
def filtered(image):
    return tf.reduce_sum(tf.nn.conv2d(image[None, :, :, None], tf.ones([3, 3, 1, 2]), 1, "SAME"))


@fc.federated_computation(fc.FederatedType(("float32", [8, 8]), fc.CLIENTS))
def filter_all(images):
    return fc.federated_sum(fc.federated_map(filtered, images))


@pytest.fixture
def cohort():
    rng = np.random.default_rng(0)
    sizes = (5, 8, 1, 4)
    return [fc.data.ClientDataset.from_columns(rng.normal(size=(n, 3)).astype(np.float32)).batch(4) for n in sizes]


def client_stage(computation) -> dict:
    module = computation.to_module("traced")
    (stage,) = [f for f in context.plan_of(module).functions if f.name == "clients"]
    return dict(stage.attributes)


@pytest.mark.parametrize("vectorize", ["auto", False])
def test_a_stage_compiled_by_xla_gives_the_same_up_to_rounding(cohort, vectorize):
    with fc.use(fc.runtime.local(vectorize=vectorize)):
        want = train(cohort)
        assert "xla" not in client_stage(train)
    with fc.use(fc.runtime.local(vectorize=vectorize, xla=True)):
        assert client_stage(train)["xla"] is True
        have = train(cohort)
        assert np.array_equal(have, train(cohort))
    np.testing.assert_allclose(have, want, rtol=1e-6)


def test_convolutions_are_not_compiled_by_xla():
    images = [np.full((8, 8), i, np.float32) for i in range(3)]
    with fc.use(fc.runtime.local(xla=True)):
        assert "xla" not in client_stage(filter_all)
        have = filter_all(images)
    assert have == filter_all(images)


def test_a_word_that_says_nothing_of_xla_is_refused():
    with pytest.raises(FedcoreError, match=r"xla is 'auto', True or False, not 'yes'"):
        fc.runtime.local(xla="yes")

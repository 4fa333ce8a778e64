"""Checks and conversions of gradients."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import InvalidValue, TracingError

optimizers = fc.learning.optimizers
WEIGHTS = {"a": tf.zeros([2]), "b": (tf.zeros([]), tf.zeros([2, 3]))}


def test_gradients_of_the_weights_match_and_none_does():
    optimizers.check_weights_gradients_match(WEIGHTS, tf.nest.map_structure(tf.ones_like, WEIGHTS))
    optimizers.check_weights_gradients_match(WEIGHTS, {"a": None, "b": (tf.ones([]), None)})


@pytest.mark.parametrize(
    ("gradients", "says"),
    [
        ({"a": tf.ones([2])}, r"(?s)gradients are nested as weights are.*weights .*'b'.*gradients .*'float32\(2,\)'"),
        ({"a": tf.ones([2]), "b": [tf.ones([]), tf.ones([2, 3])]}, "gradients are nested as weights are"),
        ({"a": tf.ones([3]), "b": (None, None)}, r"a weight float32\(2,\) has a gradient float32\(3,\)"),
        ({"a": None, "b": (tf.ones([], tf.float64), None)}, r"a weight float32\(\) has a gradient float64\(\)"),
    ],
)
def test_other_gradients_are_refused(gradients, says):
    with pytest.raises(InvalidValue, match=says):
        optimizers.check_weights_gradients_match(WEIGHTS, gradients)


def test_slices_become_dense_and_other_leaves_stay():
    table = tf.Variable(tf.zeros([3, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [2, 0, 2]))
    (gradient,) = tape.gradient(loss, [table])
    assert isinstance(gradient, tf.IndexedSlices)
    dense = tf.ones([2])
    found = optimizers.handle_indexed_slices_gradients({"table": gradient, "dense": dense, "none": None})
    assert found["table"].numpy().tolist() == [[1, 1], [0, 0], [2, 2]]
    assert found["dense"] is dense
    assert found["none"] is None


@pytest.mark.parametrize("build", [optimizers.build_sgdm, optimizers.build_adam])
def test_the_learning_rate_has_its_key(build):
    optimizer = build(0.25)
    state = optimizer.set_hparams(optimizer.initialize(tf.zeros([2])), {optimizers.LEARNING_RATE_KEY: 0.5})
    assert optimizer.get_hparams(state)[optimizers.LEARNING_RATE_KEY] == 0.5


def test_a_training_whose_loss_depends_on_no_weight_is_refused():
    model = fc.learning.models.FunctionalModel(
        fc.learning.ModelWeights((np.zeros([2], np.float32),), ()),
        lambda weights, batch, training: fc.learning.BatchOutput(tf.reduce_sum(batch[0]), None, 1),
        (tf.TensorSpec([2]), tf.TensorSpec([])),
    )
    batch = tf.ones([2]), tf.zeros([])
    with pytest.raises(TracingError, match="every gradient is None: the loss depends on none of the trainable weights"):
        fc.learning.models.gradients_of(model, model.initial_weights(), model.initial_metrics(), batch)
    with pytest.raises(TracingError, match="every gradient is None"):
        fc.learning.algorithms.build_weighted_fed_avg(model, optimizers.build_sgdm(0.1)).next.to_module()

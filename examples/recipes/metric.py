"""A metric of Keras whose state adds up over batches and clients."""

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc


class WithinTolerance(keras.metrics.Metric):
    """The fraction of predictions within 0.5 of the target."""

    def __init__(self, name="within_tolerance"):
        super().__init__(name=name)
        self.hits = self.add_weight(name="hits", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        hits = tf.cast(tf.abs(y_true - y_pred) <= 0.5, tf.float32)
        self.hits.assign_add(tf.reduce_sum(hits))
        self.count.assign_add(tf.cast(tf.size(hits), tf.float32))

    def result(self):
        return tf.math.divide_no_nan(self.hits, self.count)


labels, predictions = np.array([0, 1, 2, 3], np.float32), np.array([0, 2, 2.25, 3], np.float32)
fc.testing.check_metric(WithinTolerance, labels, predictions, meaning=lambda y, p: np.mean(np.abs(y - p) <= 0.5))

examples = tf.data.Dataset.from_tensor_slices((np.ones((4, 1), np.float32), np.ones((4, 1), np.float32))).batch(2)


def model_fn():
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    loss = keras.losses.MeanSquaredError()
    return fc.learning.from_keras_model(net, loss, input_spec=examples.element_spec, metrics=[WithinTolerance()])


evaluation = fc.learning.algorithms.build_fed_eval(model_fn)
_, metrics = evaluation.next(evaluation.initialize(), [examples, examples])
assert metrics["client_work"]["eval"]["current_round_metrics"]["within_tolerance"] == 1.0

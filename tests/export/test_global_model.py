"""The global model as a .keras file and as a SavedModel, loaded inside and outside of a distribution strategy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras with numpy 2
def test_the_trained_model_predicts_the_same_inside_and_outside_of_a_strategy(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    client = fc.data.ClientDataset.from_columns((x, x.sum(1, keepdims=True))).batch(3)

    def keras_model():
        layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        return keras.Sequential(layers)

    process = fc.learning.algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(keras_model(), keras.losses.MeanSquaredError(), client.element_spec),
        fc.learning.optimizers.build_sgdm(0.1),
    )
    state, _ = process.next(process.initialize(), [client])
    model = keras_model()
    state.model.assign_weights_to(model)
    want = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "saved", verbose=False)

    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras").predict(x, verbose=0), want)
    outside = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(outside.serve(x), want, rtol=1e-6)
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        inside = keras.models.load_model(tmp_path / "model.keras")
        served = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(inside.predict(x, verbose=0), want, rtol=1e-6)
    np.testing.assert_allclose(served.serve(x), want, rtol=1e-6)

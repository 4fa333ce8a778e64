"""Losses, labels, inputs and metrics that cannot be right for a Keras model are named when the model is made."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import ClientError, TracingError
from fedcore.learning import algorithms, optimizers

L = keras.layers
CROSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SPEC = (tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int32))
BY_CLASS = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 3]))
X, Y = np.zeros([4, 6], np.float32), np.int32([0, 1, 2, 2])


def model(units=3, features=6):
    return keras.Sequential([keras.Input((features,)), L.Dense(units)])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((model,), r"needs a loss, such as loss=keras.losses"),
        ((model, None, SPEC), "or a model whose compile\\(\\) was given one"),
        (
            (model, SPEC, CROSS),
            r"input_spec is the type of a batch, not .*the order is from_keras_model\(keras_model, l",
        ),
        ((model, keras.losses.Tversky, SPEC), r"the loss of \w+ does not take labels of type int32\[\?\]"),
        ((model, "sparse_crossentropy", SPEC), "Keras has no loss named 'sparse_crossentropy'"),
        ((model, "LossFunctionWrapper", SPEC), "the loss is the class LossFunctionWrapper, which takes arguments"),
        ((model, 0.1, SPEC), "a loss is a Keras loss, its name or a function"),
        (
            (lambda: model(features=5), CROSS, SPEC),
            r"inputs of type float32\[\?,6\]; it takes float32\[\?,5\]: Input 0",
        ),
        ((model, CROSS, BY_CLASS), r"labels of type float32\[\?,3\] for predictions of shape \[\?,3\]"),
        (
            (model, keras.losses.CategoricalCrossentropy(), SPEC),
            "integer labels take keras.losses.SparseCategoricalCross",
        ),
        (
            (model, keras.losses.MeanSquaredError(), SPEC),
            r"labels of shape \[\?\] with predictions of shape \[\?,3\], one",
        ),
        ((model, "mse", SPEC), r"labels of shape \[\?\] with predictions of shape \[\?,3\], one by one"),
        ((model, CROSS, SPEC, [keras.metrics.R2Score()]), r"r2_score \(R2Score\) compares labels of shape \[\?\]"),
        ((model, CROSS, SPEC, [keras.metrics.CategoricalAccuracy()]), "take keras.metrics.SparseCategoricalAccuracy"),
        ((model, CROSS, SPEC, [keras.metrics.MeanSquaredError()]), "mean_squared_error .*one by one"),
        ((model, CROSS, SPEC, [1.0]), r"not 1\.0; by position, metrics stand before loss_weights"),
        ((model, CROSS, SPEC, None, [keras.metrics.Mean()]), "a loss weight is a number, not .*; by position, metrics"),
        ((model, CROSS, SPEC, None, ["1"]), "a loss weight is a number, not '1'"),
        ((model, CROSS, SPEC, [lambda: 0.0]), "without arguments makes no keras.metrics.Metric, but 0.0"),
        (
            (lambda: model(2), CROSS, (X, Y)),
            "a label of the sample batch is 2, but the output has 2 units, for the labels 0",
        ),
        ((model, CROSS, (X, Y - 1)), "a label of the sample batch is -1"),
    ],
)
def test_what_is_wrong_is_named_with_its_fix(arguments, says):
    make, *others = arguments
    with pytest.raises(TracingError, match=says) as caught:
        fc.learning.from_keras_model(make(), *others)
    assert "\x1b" not in str(caught.value)
    assert "Arguments received by" not in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "spec", "units"),
    [
        (keras.losses.MeanSquaredError(), (tf.TensorSpec([None, 6]), tf.TensorSpec([None])), 1),
        (keras.losses.Huber(), BY_CLASS, 3),
        (CROSS, (X, Y), 3),
        (
            lambda y, p: tf.reduce_mean(p) + 0 * tf.reduce_sum(y),
            (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 9])),
            3,
        ),
    ],
)
def test_what_fits_is_taken(loss, spec, units):
    metrics = [keras.metrics.MeanSquaredError()] if loss is not CROSS and units != 3 else []
    assert fc.learning.from_keras_model(model(units), loss, spec, metrics).batch_type is not None


@pytest.mark.parametrize(("units", "label"), [(2, 2), (40, 40), (40, -1)])
def test_a_label_without_output_is_told_without_the_list_of_all_labels(units, label):
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(model(units), CROSS, SPEC), optimizers.build_sgdm(0.1)
    )
    data = fc.data.ClientDataset.from_columns((X, np.int32([0, 1, label, label]))).batch(2)
    with pytest.raises(ClientError) as caught:
        process.next(process.initialize(), [data])
    says = f"a label is {label}, but the predictions have {units} classes, for the labels 0 to {units - 1}; give the "
    assert f"{says}last layer a unit for each" in str(caught.value)
    assert "Label values" not in str(caught.value)


def over_steps(layer, *, length=None):
    return keras.Sequential([keras.Input((length, 6)), layer, L.GlobalMaxPooling1D(), L.Dense(3)])


@pytest.mark.parametrize("length", [None, 5])
def test_a_layer_that_takes_examples_for_time_steps_is_named_where_lengths_are_unknown(length):
    spec = tf.TensorSpec([None, length, 6]), tf.TensorSpec([None], tf.int32)
    distributed = over_steps(L.TimeDistributed(L.Dense(2)), length=length)
    if length is not None:
        fc.learning.from_keras_model(distributed, CROSS, spec)
        return
    says = (
        r"traced for inputs \[\?,\?,6\], returns predictions that differ by .* for inputs \[2,8,6\]; "
        r"time_distributed\w* takes as many time steps as there are examples .* pad batches to one length"
    )
    with pytest.raises(TracingError, match=says):
        fc.learning.from_keras_model(distributed, CROSS, spec)


def test_a_layer_that_decides_by_a_size_is_told_where_sizes_are_unknown():
    class FirstSteps(L.Layer):
        def call(self, x):
            return x[:, : x.shape[1] or 2]

    spec = tf.TensorSpec([None, None, 6]), tf.TensorSpec([None], tf.int32)
    with pytest.warns(UserWarning, match="a layer decides by sizes that are unknown while a step is traced, as it is"):
        fc.learning.from_keras_model(over_steps(FirstSteps()), CROSS, spec)


def test_comparing_predictions_changes_no_state_of_a_layer():
    class Counts(L.Layer):
        def build(self, shape):
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

        def call(self, x):
            self.calls.assign_add(1.0)
            return x

    spec = tf.TensorSpec([None, None, 6]), tf.TensorSpec([None], tf.int32)
    fixed, ragged = (over_steps(Counts(), length=length) for length in (5, None))
    fc.learning.from_keras_model(fixed, CROSS, (tf.TensorSpec([None, 5, 6]), spec[1]))
    fc.learning.from_keras_model(ragged, CROSS, spec)
    assert float(ragged.layers[0].calls) == float(fixed.layers[0].calls)


def test_an_error_in_a_function_of_the_user_names_its_line():
    def loss(y_true, y_pred):
        return tf.reduce_mean(y_pred, axis=[0, 1, 2])

    with pytest.raises(TracingError, match="Invalid reduction dimension 2") as caught:
        fc.learning.from_keras_model(model(), loss, SPEC)

    line = loss.__code__.co_firstlineno + 1
    assert str(caught.value).endswith(f"test_wrong_models.py:{line}: return tf.reduce_mean(y_pred, axis=[0, 1, 2])")

"""Two Keras models of handwritten digits: flat images of 784 pixels, the same first weights in every process."""

import keras
import tensorflow as tf

from fedcore.learning.metrics import NumExamplesCounter


def create_simple_keras_model(learning_rate: float = 0.1) -> keras.Model:
    """A compiled model of one dense layer, whose weights start from zeros: 784 pixels -> 10 probabilities.

    Example:
        >>> fc.simulation.models.mnist.create_simple_keras_model().output_shape
        (None, 10)
    """
    model = keras.Sequential(
        [keras.Input((784,)), keras.layers.Dense(10, activation="softmax", kernel_initializer="zeros")]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(),
        optimizer=keras.optimizers.SGD(learning_rate),
        metrics=[keras.metrics.SparseCategoricalAccuracy(), NumExamplesCounter()],
    )
    return model


def create_keras_model(compile_model: bool = False) -> keras.Model:
    """A model of two convolutions and two dense layers: 784 pixels -> 10 logits.

    Args:
        compile_model: whether the model is compiled, with SGD of rate 0.1 and a cross entropy of logits. TFF compiles
            it with a cross entropy of probabilities, which these outputs are not.
    """
    seeds = iter(range(1, 5))

    def normal() -> keras.initializers.Initializer:
        return keras.initializers.RandomNormal(seed=next(seeds))

    model = keras.Sequential(
        [
            keras.Input((784,)),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(32, 5, padding="same", activation="relu", kernel_initializer=normal()),
            keras.layers.MaxPooling2D(padding="same"),
            keras.layers.Conv2D(64, 5, padding="same", activation="relu", kernel_initializer=normal()),
            keras.layers.MaxPooling2D(padding="same"),
            keras.layers.Flatten(),
            keras.layers.Dense(1024, activation="relu", kernel_initializer=normal()),
            keras.layers.Dropout(0.4, seed=1),
            keras.layers.Dense(10, kernel_initializer=normal()),
        ]
    )
    if compile_model:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, optimizer=keras.optimizers.SGD(0.1))
    return model


def keras_dataset_from_emnist(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Examples of `fc.simulation.datasets.emnist` as the models take them: `<x=float32[784],y=int32>*`."""
    return dataset.map(lambda example: {"x": tf.reshape(example["pixels"], [-1]), "y": example["label"]})

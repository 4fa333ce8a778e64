"""Keras models of 28 x 28 digits, which TFF's tutorials and tests train."""

import keras
import tensorflow as tf

from fedcore.learning.metrics import NumExamplesCounter
from fedcore.scalars import real_number

__all__ = ["create_keras_model", "create_simple_keras_model", "keras_dataset_from_emnist"]


def create_simple_keras_model(learning_rate: float = 0.1) -> keras.Model:
    """A compiled model of one dense layer, zero at first, from float32[?,784] to probabilities of 10 digits.

    Args:
        learning_rate: of SGD.
    Raises:
        FedcoreError: the rate is no number of at least 0.
    Example:
        >>> model = fc.simulation.models.mnist.create_simple_keras_model()
        >>> model.count_params()
        7850
    """
    model = keras.Sequential(
        [
            keras.Input((784,)),
            keras.layers.Flatten(),
            keras.layers.Dense(10, "softmax", kernel_initializer="zeros"),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(),
        optimizer=keras.optimizers.SGD(float(real_number("learning_rate", learning_rate, at_least=0))),
        metrics=[keras.metrics.SparseCategoricalAccuracy(), NumExamplesCounter()],
    )
    return model


def keras_dataset_from_emnist(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The examples of EMNIST as the models take them: `x` are the pixels in a row, `y` is the label.

    Types:
        (<label=int32,pixels=float32[28,28]>* -> <x=float32[784],y=int32>*)

    Example:
        >>> data = fc.simulation.datasets.emnist.get_synthetic()
        >>> clients = fc.simulation.models.mnist.keras_dataset_from_emnist(
        ...     data.create_tf_dataset_for_client(data.client_ids[0]))
        >>> clients.element_spec['x'].shape
        TensorShape([784])
    """
    return dataset.map(lambda example: {"x": tf.reshape(example["pixels"], [-1]), "y": example["label"]})


def create_keras_model(compile_model: bool = False) -> keras.Model:
    """A network of two convolutions, from float32[?,784] to logits of 10 digits. Equal calls give equal weights.

    Args:
        compile_model: whether it is compiled, with SGD at 0.1 and a cross entropy that takes its results as TFF's does,
            for probabilities.
    Example:
        >>> fc.simulation.models.mnist.create_keras_model().count_params()
        3274634
    """
    seeds = iter(range(1, 5))

    def initializer() -> keras.initializers.Initializer:
        return keras.initializers.RandomNormal(seed=next(seeds))

    def convolution(filters: int) -> keras.layers.Layer:
        return keras.layers.Conv2D(filters, 5, padding="same", activation="relu", kernel_initializer=initializer())

    model = keras.Sequential(
        [
            keras.Input((784,)),
            keras.layers.Reshape((28, 28, 1)),
            convolution(32),
            keras.layers.MaxPooling2D(padding="same"),
            convolution(64),
            keras.layers.MaxPooling2D(padding="same"),
            keras.layers.Flatten(),
            keras.layers.Dense(1024, "relu", kernel_initializer=initializer()),
            keras.layers.Dropout(0.4, seed=1),
            keras.layers.Dense(10, kernel_initializer=initializer()),
        ]
    )
    if compile_model:
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(), optimizer=keras.optimizers.SGD(0.1))
    return model

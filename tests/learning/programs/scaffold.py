"""SCAFFOLD with a linear model."""

import keras
import numpy as np

import fedcore as fc

CLIENTS = 6


def _client(number: int) -> fc.data.ClientDataset:
    x = np.random.default_rng(number).normal(size=(3 + number, 2)).astype(np.float32)
    return fc.data.ClientDataset.from_columns((x, x @ np.array([[number], [1]], np.float32))).batch(2)


def clients() -> fc.simulation.datasets.ClientData:
    datasets = {f"client_{i}": _client(i) for i in range(CLIENTS)}
    return fc.simulation.datasets.ClientData.from_clients_and_tf_fn(datasets, datasets.get)


def build() -> fc.learning.ClientStateProcess:
    spec = _client(0).element_spec

    def model_fn():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), spec)

    return fc.learning.algorithms.build_scaffold(model_fn, 0.1, CLIENTS)

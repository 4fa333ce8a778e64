"""One round of federated averaging, which docs/how-fedcore-works.md follows through the modules.

python examples/one_round.py
"""

import keras
import numpy as np

import fedcore as fc

rng = np.random.default_rng(0)
clients = [
    fc.data.ClientDataset.from_columns(
        (rng.normal(size=(20, 8)).astype("f"), rng.integers(0, 3, 20).astype("i"))
    ).batch(5)
    for _ in range(6)
]


def model_fn():
    layers = [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return fc.learning.from_keras_model(keras.Sequential(layers), loss, clients[0].element_spec)


process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
state, metrics = process.next(process.initialize(), clients)

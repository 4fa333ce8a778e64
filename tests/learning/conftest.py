import keras
import numpy as np
import pytest

import fedcore as fc


def client(x, y, batch=4):
    """A client's batches of pairs of features and labels."""
    columns = (np.asarray(x, np.float32), np.asarray(y, np.int32))
    return fc.data.ClientDataset.from_columns(columns).batch(batch)


def random_clients(sizes, features=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return [client(rng.normal(size=(n, features)), rng.integers(0, classes, n)) for n in sizes]


def examples(dataset):
    """All features and all labels of a client's batches."""
    return tuple(np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator(), strict=True))


@pytest.fixture(scope="session")
def model_fn():
    spec = client(np.zeros((1, 5)), [0]).element_spec

    def make():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)])
        return fc.learning.from_keras_model(
            model,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=spec,
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )

    return make


@pytest.fixture(scope="session")
def process(model_fn):
    """Federated averaging of `model_fn`, built and compiled once."""
    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))

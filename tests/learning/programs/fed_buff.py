"""FedBuff with a linear model, on a clock whose clients are all at work all the time."""

import keras
import numpy as np

import fedcore as fc

WORK_S = [3.0123, 4.5717, 7.1331, 9.3171, 11.9373, 31.7751]  # no two results arrive at the same time
RATE, SERVER_RATE, BUFFER = 0.05, 0.7, 3


def arrays(client: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(client).normal(size=(3 + client, 2)).astype(np.float32)
    return x, x @ np.array([[client], [1]], np.float32)


def clients() -> fc.simulation.datasets.ClientData:
    datasets = {f"client_{i}": fc.data.ClientDataset.from_columns(arrays(i)).batch(2) for i in range(len(WORK_S))}
    return fc.simulation.datasets.ClientData.from_clients_and_tf_fn(datasets, datasets.get)


def build(**options) -> fc.learning.AsynchronousProcess:
    def model_fn():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), clients().element_type_structure)

    sgd = fc.learning.optimizers.build_sgdm
    return fc.learning.algorithms.build_fed_buff(model_fn, sgd(RATE), sgd(SERVER_RATE), **options)


def clock(**options) -> fc.simulation.BufferedClock:
    devices = fc.simulation.Devices(clients().client_ids, WORK_S, seed=0)
    return fc.simulation.BufferedClock(devices, BUFFER, **{"concurrency": len(WORK_S), "seed": 0, **options})


OPTIONS = {"clock": clock()}
"""Further arguments of `train`."""

"""What gradients of examples cost a step of training (DP-SGD), beside those of batches, in processor seconds.

One client, as at a site. "gradients" are clipped and have no noise; "noisy" ones have it too.
"""

import time

import keras
import numpy as np

import fedcore as fc

EXAMPLES, BATCH, RATE = 640, 32, 0.1


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((784,)), keras.layers.Dense(200, activation="relu"), keras.layers.Dense(10)])


def convolutions() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


MODELS = {"784-200-10": dense, "convolutions": convolutions}


def measure_private_gradients(rounds: int) -> dict:
    """The figures of each model; rounds of plain and private training alternate."""
    models = {name: _figures(make, max(rounds, 9)) for name, make in MODELS.items()}
    return {"name": "private", "target": 2.0, "models": models}


def _figures(make, rounds: int) -> dict:
    from benchmarks.measure import WARM_UP, interval

    rng = np.random.default_rng(0)
    shape = make().input_shape[1:]
    columns = rng.normal(size=(EXAMPLES, *shape)).astype("f"), rng.integers(0, 10, EXAMPLES).astype("i")
    client = fc.data.ClientDataset.from_columns(columns).batch(BATCH)

    def model_fn():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(make(), loss, client.element_spec)

    plain = fc.learning.optimizers.build_sgdm(RATE)
    private = [fc.learning.optimizers.build_dp_sgd(1.0, z, plain, batch_size=BATCH) for z in (0.0, 1.0)]
    processes = [fc.learning.algorithms.build_unweighted_fed_avg(model_fn, o) for o in (plain, *private)]
    states = [process.initialize() for process in processes]
    times = []
    for _ in range(WARM_UP + rounds):
        begins = [time.process_time()]
        for i, process in enumerate(processes):
            states[i], _ = process.next(states[i], [client])
            begins.append(time.process_time())
        times.append(np.diff(begins))
    plain_s, *others = np.array(times[WARM_UP:]).T
    figures: dict = {"plain_s": float(np.median(plain_s))}
    for name, seconds in zip(("gradients", "noisy"), others, strict=True):
        low, high = interval(seconds / plain_s)
        ratio = float(np.median(seconds / plain_s))
        figures[name] = {"seconds": float(np.median(seconds)), "ratio": ratio, "low": low, "high": high}
    return figures

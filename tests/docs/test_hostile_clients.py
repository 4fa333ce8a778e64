"""The hostile clients of docs/training.md attack, and an aggregator that is robust trains against them."""

import re
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc

PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text()


def test_a_median_trains_against_the_hostile_clients_of_the_page():
    x = np.random.default_rng(0).normal(size=(240, 4)).astype(np.float32)
    data = fc.simulation.datasets.from_arrays((x, (x[:, 0] > 0).astype(np.int32)), np.arange(240) % 12)
    data = data.preprocess(lambda client: client.batch(10))

    def model_fn():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, kernel_initializer="zeros")])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(model, loss, data.element_type_structure)

    (block,) = re.findall(r"```python\n(class SignFlips.*?)```", PAGE, re.DOTALL)
    names = {"fc": fc, "tf": tf, "model_fn": model_fn, "client_optimizer": fc.learning.optimizers.build_sgdm(0.2)}
    exec(block, names)
    processes = [
        names["process"],
        fc.learning.algorithms.build_unweighted_fed_avg(
            model_fn,
            names["client_optimizer"],
            model_aggregator=names["SignFlips"](fc.aggregators.UnweightedMeanFactory(), share=0.25),
        ),
    ]

    robust, mean = (
        fc.learning.programs.train(process, data, 20, clients_per_round=None, seed=0)["loss"] for process in processes
    )

    assert robust[-1] < 0.7 * robust[0]
    assert mean[-1] > mean[0]

"""Clients that attack with their updates, and an aggregator that withstands them.

python examples/hostile_clients.py
"""

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc


class SignFlips(fc.aggregators.UnweightedAggregationFactory):
    """A share of a round's clients, drawn anew in each round, send -10 times their update to an inner aggregator."""

    def __init__(self, inner, share):
        self.inner, self.share = inner, share

    def create(self, value_type):
        inner, share = self.inner.create(value_type), self.share

        @fc.tf_computation(value_type)
        def attack(update):
            factor = tf.where(tf.random.uniform([]) < share, -10.0, 1.0)
            return tf.nest.map_structure(lambda x: tf.cast(factor, x.dtype) * x, update)

        def body(state, value, _):
            return inner.next(state, fc.federated_map(attack, value))

        return fc.aggregators.aggregation_process(inner.initialize, value_type, None, body)


def main(rounds=20):
    x = np.random.default_rng(0).normal(size=(240, 4)).astype(np.float32)
    examples = fc.simulation.datasets.from_arrays((x, (x[:, 0] > 0).astype(np.int32)), np.arange(240) % 12)
    data = examples.preprocess(lambda client: client.batch(10))

    def model_fn():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, kernel_initializer="zeros")])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(model, loss, data.element_type_structure)

    losses = {}
    inner = {"mean": fc.aggregators.UnweightedMeanFactory(), "median": fc.aggregators.coordinate_median_factory()}
    for name, factory in inner.items():
        process = fc.learning.algorithms.build_unweighted_fed_avg(
            model_fn, fc.learning.optimizers.build_sgdm(0.2), model_aggregator=SignFlips(factory, share=0.25)
        )
        losses[name] = fc.learning.programs.train(process, data, rounds, clients_per_round=None, seed=0)["loss"]
        print(f"{name}: loss {losses[name][0]:.3f} -> {losses[name][-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()

"""Ditto with plain gradient descent: each client keeps a personal model that is pulled towards the global one.

Source: Li et al. 2021, arXiv:2012.04221. The library's `build_ditto` takes optimizers.
"""

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.learning import ModelWeights
from fedcore.learning.models import gradients_of, trace_model


def build_plain_ditto(model_fn, rate, strength):
    """Federated averaging, with personal models v_k that descend on loss(v_k) + strength / 2 * |v_k - w|^2."""
    model = trace_model(model_fn)

    def descend(weights, gradients):
        trainable = tuple(w - rate * g for w, g in zip(weights.trainable, gradients, strict=True))
        return ModelWeights(trainable, weights.non_trainable)

    def local_step(weights, personal, metrics, batch, sent):
        own_gradients, *_ = gradients_of(model, personal, metrics, batch)
        pull = [strength * (v - w) for v, w in zip(personal.trainable, sent.trainable, strict=True)]
        gradients, _, _, metrics = gradients_of(model, weights, metrics, batch)
        pulled = [g + p for g, p in zip(own_gradients, pull, strict=True)]
        return descend(weights, gradients), descend(personal, pulled), metrics

    # A client's personal model begins as the global model of its first round.
    return fc.learning.algorithms.build_fed_avg_with_client_states(model, local_step, lambda weights: weights)


examples = tf.data.Dataset.from_tensor_slices((np.ones((4, 1), np.float32), np.ones((4, 1), np.float32))).batch(2)


def model_fn():
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), input_spec=examples.element_spec)


ditto = build_plain_ditto(model_fn, rate=0.1, strength=0.5)
clients = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(["a", "b", "c"], lambda client_id: examples)
history = fc.learning.programs.train(ditto, clients, rounds=3, clients_per_round=2, seed=0)
assert isinstance(history.client_states["a"], ModelWeights)

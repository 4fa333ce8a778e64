"""FedNova with plain gradient descent, beside the library's; and an algorithm without a model.

A client divides its change by its number of steps, so that clients with more batches do not dominate; the server
multiplies the mean by the mean number of steps. Clients send a pair, of which `conclude` makes the weights' change.

Source: Wang et al. 2020, arXiv:2007.07481. The library's `build_fed_nova` adds momentum and a proximal term.
"""

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.learning import ClientWeighting, ModelWeights
from fedcore.learning.algorithms.fed_avg import federated_averaging, local_training
from fedcore.learning.models import trace_model


def build_plain_fed_nova(model_fn, rate):
    def update_of(change, metrics):
        steps = tf.cast(metrics["num_batches"][0], tf.float32)
        normalized = tuple(c / tf.maximum(steps, 1.0) for c in change.trainable)
        return {"normalized": ModelWeights(normalized, change.non_trainable), "steps": steps}

    def conclude(mean):
        change = tuple(mean["steps"] * d for d in mean["normalized"].trainable)
        return ModelWeights(change, mean["normalized"].non_trainable)

    model, sgd = trace_model(model_fn), fc.learning.optimizers.build_sgdm(rate)
    work = local_training(model, sgd, ClientWeighting.NUM_EXAMPLES, update_of=update_of, conclude=conclude)
    return federated_averaging(model, work)


examples = tf.data.Dataset.from_tensor_slices((np.ones((4, 1), np.float32), np.ones((4, 1), np.float32))).batch(2)
start = ModelWeights((np.ones([1, 1], np.float32), np.zeros([1], np.float32)), ())


def model_fn():
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    return fc.learning.from_keras_model(net, keras.losses.MeanSquaredError(), input_spec=examples.element_spec)


def moved(process):
    state = process.set_model_weights(process.initialize(), start)
    return process.next(state, [examples, examples.take(1)]).state.global_model_weights.trainable[0]


ours, theirs = build_plain_fed_nova(model_fn, 0.1), fc.learning.algorithms.build_fed_nova(model_fn, 0.1)
np.testing.assert_allclose(moved(ours), moved(theirs), rtol=1e-5)


@fc.federated_computation
def initialize():
    return fc.federated_value(0.0, fc.SERVER)


@fc.federated_computation(initialize.type_signature.result, fc.FederatedType("float32", fc.CLIENTS))
def next_round(centre, readings):
    away = fc.federated_map(lambda x, c: x - c, (readings, fc.federated_broadcast(centre)))
    return fc.federated_map(lambda c, step: c + step, (centre, fc.federated_mean(away)))


process = fc.templates.IterativeProcess(initialize, next_round)
assert process.next(process.initialize(), [1.0, 3.0]) == 2.0

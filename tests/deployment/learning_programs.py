"""Learning processes that tests run at sites, each built once."""

import functools

import keras
from direct_exchange import ELEMENT

import fedcore as fc
from fedcore.deployment.site_cohorts import Sites


def build_model():
    dense = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)]
    return fc.learning.models.from_keras_model(
        keras.Sequential([keras.layers.Input((6,)), *dense]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
        input_spec=Sites(None, fc.to_type(ELEMENT)).element_type_structure,
    )


@functools.cache
def build_fed_avg(**settings):
    return fc.learning.algorithms.build_weighted_fed_avg(
        build_model, client_optimizer_fn=fc.learning.optimizers.build_sgdm(0.1), **settings
    )


@functools.cache
def build_fed_eval():
    return fc.learning.algorithms.build_fed_eval(build_model)


@functools.cache
def build_scaffold():
    return fc.learning.algorithms.build_scaffold(build_model, 0.1, num_clients=3)

"""Digits of 100 clients, E epochs, batches of B: McMahan et al. 2017, arXiv:1602.05629, table 2."""

import keras
from classifiers import load_digits, model_fn_for

import fedcore as fc


def load_data(data):
    return load_digits(100, lambda d: d.shuffle(100).batch(data["batch_size"]).repeat(data["epochs"]), data["alpha"])


def build_process(train, optimizer):
    return fc.learning.algorithms.build_weighted_fed_avg(
        model_fn_for(train, hidden_units=64), lambda: keras.optimizers.SGD(optimizer["lr"])
    )


def build_evaluation(train):
    return fc.learning.algorithms.build_fed_eval(model_fn_for(train, hidden_units=64))


def build_callbacks(stop):
    return [fc.learning.programs.StopAt("val_accuracy", stop["accuracy"])]

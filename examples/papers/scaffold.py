"""SCAFFOLD and FedAvg on clients with one label: Karimireddy et al. 2020, arXiv:1910.06378, table 3."""

import keras
from classifiers import load_digits, model_fn_for

import fedcore as fc


def load_data(data):
    return load_digits(100, lambda d: d.shuffle(100).batch(3).repeat(data["epochs"]), data["alpha"])


def build_process(train, method):
    if method["name"] == "SCAFFOLD":
        return fc.learning.algorithms.build_scaffold(model_fn_for(train), method["lr"], len(train.client_ids))
    return fc.learning.algorithms.build_unweighted_fed_avg(
        model_fn_for(train), lambda: keras.optimizers.SGD(method["lr"])
    )


def build_evaluation(train):
    return fc.learning.algorithms.build_fed_eval(model_fn_for(train))


def build_callbacks(stop):
    return [fc.learning.programs.StopAt("val_accuracy", stop["accuracy"])]

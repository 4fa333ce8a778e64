"""Digits of 100 clients, E epochs, batches of B: McMahan et al. 2017, arXiv:1602.05629, table 2."""

import keras

import fedcore as fc


def load_data(data):
    train, test = fc.simulation.datasets.digits.load_data(100, data["alpha"])
    train, test = (c.preprocess(lambda d: d.map(lambda e: (e["pixels"], e["label"]))) for c in (train, test))
    train = train.preprocess(lambda d: d.shuffle(100).batch(data["batch_size"]).repeat(data["epochs"]))
    return train, test.preprocess(lambda d: d.batch(300))


def _model(clients):
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    spec = clients.element_type_structure
    return lambda: fc.learning.from_keras_model(keras.Sequential(layers), loss, input_spec=spec, metrics=metrics)


def build_process(train, optimizer):
    return fc.learning.algorithms.build_weighted_fed_avg(_model(train), lambda: keras.optimizers.SGD(optimizer["lr"]))


def build_evaluation(train):
    return fc.learning.algorithms.build_fed_eval(_model(train))


def build_callbacks(stop):
    return [fc.learning.programs.StopAt("val_accuracy", stop["accuracy"])]

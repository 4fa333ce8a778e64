"""What the entries share: clients with digits, and classifiers of ten classes."""

import keras

import fedcore as fc


def load_digits(clients, prepare, alpha=0.3):
    """Digits to train with, prepared at each client by a function of its data set, and those to evaluate with."""
    train, test = fc.simulation.datasets.digits.load_data(clients, alpha)
    train, test = (c.preprocess(lambda d: d.map(lambda e: (e["pixels"], e["label"]))) for c in (train, test))
    return train.preprocess(prepare), test.preprocess(lambda d: d.batch(300))


def model_fn_for(clients, hidden_units=None):
    """A function that makes a model for the clients' examples: linear from zeros, or with a hidden layer."""
    spec = clients.element_type_structure

    def model_fn():
        network = keras.Sequential([keras.Input(spec[0].shape[1:]), keras.layers.Flatten()])
        if hidden_units:
            network.add(keras.layers.Dense(hidden_units, "relu"))
        network.add(keras.layers.Dense(10, kernel_initializer="glorot_uniform" if hidden_units else "zeros"))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        return fc.learning.from_keras_model(network, loss, input_spec=spec, metrics=metrics)

    return model_fn

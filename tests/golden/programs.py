"""The programs whose traced, lowered and planned forms are kept as text."""

import functools

import fedcore as fc

FLOATS = fc.FederatedType("float32", fc.CLIENTS)


@fc.federated_computation(FLOATS)
def mean_and_variance(xs):
    """Two phases: the variance is about the mean, which every client gets first."""
    mean = fc.federated_mean(xs)
    squares = fc.federated_map(lambda x, m: (x - m) * (x - m), (xs, fc.federated_broadcast(mean)))
    return mean, fc.federated_mean(squares)


@fc.tf_computation("float32[8]", "int32")
def row(table, key):
    import tensorflow as tf

    return tf.gather(table, key)


@fc.federated_computation(
    fc.FederatedType("int32[2]", fc.CLIENTS),
    fc.FederatedType("int32", fc.SERVER),
    fc.FederatedType("float32[8]", fc.SERVER),
)
def selected(keys, max_key, table):
    """Each client gets the two rows of the server's table that it asks for, and the server their sum."""
    rows = fc.federated_select(keys, max_key, table, row)
    return fc.federated_sum(fc.federated_map(lambda s: fc.sequence_sum(s), rows))


@functools.cache
def model_fn():
    import keras
    import tensorflow as tf

    def make():
        return fc.learning.from_keras_model(
            keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=(tf.TensorSpec((None, 5), tf.float32), tf.TensorSpec((None,), tf.int32)),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )

    return make


def fed_avg():
    sgd = fc.learning.optimizers.build_sgdm
    return fc.learning.algorithms.build_weighted_fed_avg(model_fn(), sgd(0.1), sgd(1.0)).next


def fed_eval():
    return fc.learning.algorithms.build_fed_eval(model_fn()).next


def fed_prox():
    sgd = fc.learning.optimizers.build_sgdm
    return fc.learning.algorithms.build_weighted_fed_prox(model_fn(), 0.5, sgd(0.1), sgd(1.0)).next


PROGRAMS = {
    "fed_avg": fed_avg,
    "fed_eval": fed_eval,
    "fed_prox": fed_prox,
    "mean_and_variance": lambda: mean_and_variance,
    "selected": lambda: selected,
}

"""Trainings and evaluations of `benchmarks.bits`: small models over few clients, so that each takes about a second.

Together with `bit_programs` they reach the row layouts, the strategies and the batching rules of
`fedcore/graphs/batched`.
"""

from collections.abc import Callable

import attrs
import keras
import numpy as np
import tensorflow as tf

import fedcore as fc
from benchmarks.bit_configuration import AVX2, SEED, SLOW, SSE, Arrays, Configuration, floats, named_arrays

ROUNDS = 2
L, optimizers, algorithms, encoders = keras.layers, keras.optimizers, fc.learning.algorithms, fc.aggregators.encoders


# --- models ---


def vectors(*shape: int) -> Callable:
    return lambda rng, rows: floats(rng.normal(size=(rows, *shape)))


def integers(high: int, *shape: int, dtype: str = "int32") -> Callable:
    return lambda rng, rows: rng.integers(0, high, (rows, *shape)).astype(dtype)


@attrs.frozen
class Model:
    """A Keras model.

    Args:
        x, y: (rng, rows) -> a column of the examples.
        outputs: inputs -> logits of classes.
    """

    x: Callable
    y: Callable
    outputs: Callable

    def make(self) -> keras.Model:
        column = self.x(np.random.default_rng(0), 1)
        inputs = keras.Input(column.shape[1:], dtype=column.dtype.name)
        return keras.Model(inputs, self.outputs(inputs))


def stack(*makers: Callable) -> Callable:
    """The layers that the functions make, one behind the other."""

    def outputs(x):
        for make in makers:
            x = make()(x)
        return x

    return outputs


def dense(units: int, activation: str | None = None) -> Callable:
    return lambda: L.Dense(units, activation)


def convolution(filters: int, **settings) -> Callable:
    return lambda: L.Conv2D(filters, 3, padding="same", **{"activation": "relu", **settings})


def transformer(ids):
    x = L.Embedding(12, 8)(ids)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    x = x + L.Dense(8)(L.Dense(16, "gelu")(x))
    return L.Dense(12)(x)


MODELS = {
    "logistic": Model(vectors(10), integers(4), stack(dense(4))),
    "one-step": Model(vectors(256), integers(3), stack(dense(16))),
    "mlp": Model(vectors(256), integers(3), stack(dense(64, "relu"), dense(3))),
    "pixels": Model(
        integers(256, 16, 16, dtype="uint8"),
        integers(3),
        stack(lambda: L.Rescaling(1 / 255, offset=-0.5), L.Flatten, dense(64, "relu"), dense(3)),
    ),
    "dropout": Model(
        vectors(20),
        integers(3),
        stack(dense(16, "tanh"), lambda: L.Dropout(0.3, seed=1), L.BatchNormalization, dense(8, "selu"), dense(3)),
    ),
    "cnn": Model(
        vectors(8, 8, 1),
        integers(3),
        stack(convolution(4), L.MaxPool2D, convolution(6), L.MaxPool2D, L.Flatten, dense(3)),
    ),
    "large-cnn": Model(
        vectors(6, 6, 1), integers(3), stack(convolution(4), L.MaxPool2D, L.Flatten, dense(512, "relu"), dense(3))
    ),
    "separable": Model(
        vectors(8, 8, 3),
        integers(3),
        stack(
            convolution(6, activation=None, use_bias=False),
            *(L.BatchNormalization, L.ReLU, lambda: L.SeparableConv2D(8, 3)),
            *(lambda: L.AveragePooling2D(2), lambda: L.Conv2DTranspose(4, 2), L.GlobalAveragePooling2D, dense(3)),
        ),
    ),
    "volumes": Model(
        vectors(4, 6, 6, 1),
        integers(3),
        stack(lambda: L.Conv3D(3, 2, activation="relu"), lambda: L.AveragePooling3D(2), L.Flatten, dense(3)),
    ),
    "series": Model(
        vectors(9, 4),
        integers(3),
        stack(lambda: L.Conv1D(5, 3, activation="relu"), lambda: L.MaxPool1D(2), lambda: L.GRU(6), dense(3)),
    ),
    "lstm": Model(
        integers(40, 12),
        integers(40, 12),
        stack(lambda: L.Embedding(40, 8), lambda: L.LSTM(24, return_sequences=True), dense(40)),
    ),
    "rnn": Model(
        integers(12, 7),
        integers(3),
        stack(lambda: L.Embedding(12, 4, mask_zero=True), lambda: L.SimpleRNN(40), dense(500, "relu"), dense(3)),
    ),
    "transformer": Model(integers(12, 6), integers(12, 6), transformer),
    "embedding": Model(
        integers(200, 6), integers(3), stack(lambda: L.Embedding(200, 16), L.GlobalAveragePooling1D, dense(3))
    ),
}


# --- algorithms: model_fn -> a learning process ---


def sgd():
    return optimizers.SGD(0.1)


def fed_avg(optimizer: Callable = sgd, aggregator: Callable = lambda: None) -> Callable:
    return lambda model_fn: algorithms.build_weighted_fed_avg(model_fn, optimizer, model_aggregator=aggregator())


def entropy_coding():
    encoder = encoders.chain(encoders.uniform_quantization(bits=8), encoders.entropy())
    return fc.learning.compression_aggregator(encoder_fn=lambda spec: encoder)


ALGORITHMS = {
    "sgd": fed_avg(),
    "momentum": fed_avg(lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "adam": fed_avg(lambda: optimizers.Adam(0.01)),
    "schedule": fed_avg(lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.2, 1, 0.5), clipvalue=0.05)),
    "proximal": lambda model_fn: algorithms.build_weighted_fed_prox(model_fn, 0.3, sgd),
    "unweighted": lambda model_fn: algorithms.build_unweighted_fed_avg(model_fn, sgd),
    "clipping": fed_avg(aggregator=fc.learning.robust_aggregator),
    "secure": fed_avg(aggregator=fc.learning.secure_aggregator),
    "entropy-coding": fed_avg(aggregator=entropy_coding),
    "fed-sgd": lambda model_fn: algorithms.build_fed_sgd(model_fn, lambda: optimizers.SGD(0.3)),
    "evaluation": algorithms.build_fed_eval,
}


# --- data ---

FEW_STEPS = (41, 4, 0, 33, 50, 9, 12, 1)
MANY_STEPS = (61, 4, 0, 33, 118, 50, 51, 9, 12, 70, 5)
ONE_STEP = (20, 3, 17, 20, 1, 9, 20, 12, 20, 5)
ONE_STEP_OR_MORE = (45, 3, 0, 20, 61, 9, 20, 12, 33, 5)
EQUAL = (20,) * 19
FEW_EXAMPLES = (12, 7, 0, 5, 1)
"""Examples of clients. In batches of 5, few or many steps keep the kernels of the MLP low-rank without adding factors
up, or with it; in batches of 20, some clients take one step.
"""


def in_order(batch: int, **settings) -> Callable:
    return lambda columns: fc.data.ClientDataset.from_columns(columns).batch(batch, **settings)


batches_of_5 = in_order(5)


def shuffled(batch: int) -> Callable:
    return lambda columns: fc.data.ClientDataset.from_columns(columns).shuffle(50, seed=1).repeat(2).batch(batch)


def mapped(columns):
    examples = fc.data.ClientDataset.from_columns(columns).map(lambda x, y: (x * 0.5, y))
    return examples.batch(5).map(lambda x, y: (x[:, ::-1], y))


def mapped_where_odd(columns):
    """A block that has clients of both layouts runs client by client."""
    examples = fc.data.ClientDataset.from_columns(columns)
    return (examples.map(lambda x, y: (x * 0.5, y)) if len(columns[0]) % 2 else examples).batch(5)


def tf_data_shuffled(columns):
    return tf.data.Dataset.from_tensor_slices(columns).shuffle(50, seed=1, reshuffle_each_iteration=False).batch(5)


def tf_data_taken(columns):
    return tf.data.Dataset.from_tensor_slices(columns).skip(1).take(30).batch(5)


# --- trainings ---


@attrs.frozen
class Training(Configuration):
    """A training, or an evaluation.

    Args:
        model, algorithm: keys of `MODELS` and `ALGORITHMS`.
        sizes: examples of each client.
        pipeline: the columns of a client -> its data set of batches.
        is_poisoned: one more client has an infinite example.
    """

    model: str
    algorithm: str = "sgd"
    sizes: tuple[int, ...] = FEW_STEPS
    pipeline: Callable = batches_of_5
    is_poisoned: bool = attrs.field(default=False, kw_only=True)

    def results(self) -> Arrays:
        """The metrics of all rounds, and the weights behind the last one."""
        model, clients = MODELS[self.model], self._clients()

        def model_fn():
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
            return fc.learning.from_keras_model(model.make(), loss, clients[0].element_spec, metrics=metrics)

        process = ALGORITHMS[self.algorithm](model_fn)
        state, arrays = process.initialize(), Arrays()
        state = process.set_model_weights(state, first_weights(process.get_model_weights(state)))
        for number in range(1, ROUNDS + 1):
            state, metrics = process.next(state, clients)
            arrays |= named_arrays(f"round {number}", metrics["client_work"])
        weights = process.get_model_weights(state)
        return arrays | named_arrays("weights", [*weights.trainable, *weights.non_trainable])

    def _clients(self) -> list:
        model, rng = MODELS[self.model], np.random.default_rng(SEED)
        columns = [(model.x(rng, size), model.y(rng, size)) for size in self.sizes]
        if self.is_poisoned:
            x, y = columns[0]
            infinite = x.copy()
            infinite[0] = np.inf
            columns.append((infinite, y))
        return [self.pipeline(of_client) for of_client in columns]


def first_weights(weights: fc.learning.ModelWeights) -> fc.learning.ModelWeights:
    """The weights with matrices and kernels drawn by numpy; vectors stay as their layers make them."""
    rng = np.random.default_rng(SEED + 1)

    def drawn(array: np.ndarray) -> np.ndarray:
        limit = np.sqrt(3 / np.prod(array.shape[:-1]))
        return floats(rng.uniform(-limit, limit, array.shape))

    trainable = [drawn(w) if w.ndim > 1 else w for w in map(np.asarray, weights.trainable)]
    return fc.learning.ModelWeights(tuple(trainable), weights.non_trainable)


_ONE_WORKER = {"workers_per_device": 1}

TRAININGS = {
    "mlp": Training("mlp"),
    "mlp-many-steps": Training("mlp", sizes=MANY_STEPS),
    "mlp-batches-of-10": Training("mlp", sizes=MANY_STEPS, pipeline=in_order(10)),
    "mlp-remainders-dropped": Training("mlp", pipeline=in_order(5, drop_remainder=True)),
    "mlp-shuffled-epochs": Training("mlp", pipeline=shuffled(5)),
    "mlp-mapped": Training("mlp", pipeline=mapped),
    "mlp-two-layouts": Training("mlp", pipeline=mapped_where_odd),
    "mlp-tf-data-shuffled": Training("mlp", pipeline=tf_data_shuffled),
    "mlp-tf-data-taken": Training("mlp", pipeline=tf_data_taken),
    "mlp-poisoned": Training("mlp", is_poisoned=True),
    "mlp-momentum": Training("mlp", "momentum", MANY_STEPS),
    "mlp-adam": Training("mlp", "adam", MANY_STEPS),
    "mlp-schedule": Training("mlp", "schedule"),
    "mlp-proximal": Training("mlp", "proximal"),
    "mlp-unweighted": Training("mlp", "unweighted", MANY_STEPS),
    "mlp-clipping": Training("mlp", "clipping"),
    "mlp-secure": Training("mlp", "secure"),
    "mlp-entropy-coding": Training("mlp", "entropy-coding", has_reference=False),
    "mlp-fed-sgd": Training("mlp", "fed-sgd"),
    "mlp-fed-sgd-many-steps": Training("mlp", "fed-sgd", MANY_STEPS),
    "mlp-evaluation": Training("mlp", "evaluation"),
    "mlp-dense": Training("mlp", settings={"low_rank": False}),
    "mlp-dense-equal": Training("mlp", sizes=EQUAL, settings={"low_rank": False}),
    "mlp-bfloat16": Training("mlp", settings={"compute_dtype": "bfloat16"}),
    "mlp-float64": Training("mlp", float_type="float64"),
    "mlp-client-by-client": Training("mlp", settings={"vectorize": False}),
    "mlp-width-4": Training("mlp", settings={"vectorize": 4}),
    "mlp-little-memory": Training("mlp", settings={"vectorize": 2, **_ONE_WORKER}, failing_calls=2),
    "mlp-avx2": Training("mlp", settings={"target": AVX2}),
    "mlp-avx2-many-steps": Training("mlp", sizes=MANY_STEPS, settings={"target": AVX2}),
    "mlp-avx2-shuffled-epochs": Training("mlp", pipeline=shuffled(5), settings={"target": AVX2}),
    "mlp-avx2-evaluation": Training("mlp", "evaluation", settings={"target": AVX2}),
    "mlp-sse": Training("mlp", settings={"target": SSE}),
    "mlp-slow-memory-adam": Training("mlp", "adam", settings={"target": SLOW}),
    "one-step": Training("one-step", sizes=ONE_STEP, pipeline=in_order(20)),
    "one-step-120-clients": Training("one-step", sizes=ONE_STEP * 12, pipeline=in_order(20)),
    "one-step-equal": Training("one-step", sizes=EQUAL, pipeline=in_order(20)),
    "one-step-large-batches": Training("one-step", sizes=(60,) * 9, pipeline=in_order(60)),
    "one-step-shuffled": Training("one-step", sizes=ONE_STEP, pipeline=shuffled(40)),
    "one-step-avx2": Training("one-step", sizes=EQUAL, pipeline=in_order(20), settings={"target": AVX2}),
    "one-step-or-more": Training("one-step", sizes=ONE_STEP_OR_MORE, pipeline=in_order(20)),
    "one-step-or-more-fed-sgd": Training("one-step", "fed-sgd", ONE_STEP_OR_MORE, in_order(20)),
    "one-step-or-more-avx2": Training("one-step", "sgd", ONE_STEP_OR_MORE, in_order(20), settings={"target": AVX2}),
    "more-than-one-step": Training("one-step", sizes=(45, 33, 61), pipeline=in_order(20)),
    "logistic": Training("logistic", sizes=ONE_STEP_OR_MORE, pipeline=in_order(20)),
    "logistic-equal": Training("logistic", sizes=EQUAL * 4, pipeline=in_order(20)),
    "pixels": Training("pixels"),
    "dropout": Training("dropout", sizes=MANY_STEPS, has_reference=False),
    "dropout-adam": Training("dropout", "adam", has_reference=False),
    "cnn": Training("cnn"),
    "cnn-fed-sgd": Training("cnn", "fed-sgd"),
    "cnn-evaluation": Training("cnn", "evaluation"),
    "cnn-bfloat16-fed-sgd": Training("cnn", "fed-sgd", settings={"compute_dtype": "bfloat16"}),
    "cnn-avx2-fed-sgd": Training("cnn", "fed-sgd", settings={"target": AVX2}),
    "cnn-avx2-evaluation": Training("cnn", "evaluation", settings={"target": AVX2}),
    "large-cnn": Training("large-cnn", sizes=(30, 12, 4, 0, 20)),
    "large-cnn-mapped": Training("large-cnn", sizes=(30, 12, 4), pipeline=mapped),
    "large-cnn-momentum": Training("large-cnn", "momentum", (33, 4, 0, 61, 12)),
    "large-cnn-little-memory": Training("large-cnn", sizes=(30, 12, 4), settings=_ONE_WORKER, failing_calls=1),
    "separable-width-2": Training("separable", sizes=FEW_EXAMPLES, settings={"vectorize": 2}),
    "separable-fed-sgd": Training("separable", "fed-sgd", FEW_EXAMPLES),
    "separable-evaluation": Training("separable", "evaluation", FEW_EXAMPLES),
    "volumes-fed-sgd": Training("volumes", "fed-sgd", FEW_EXAMPLES, has_reference=False),
    "series": Training("series", sizes=FEW_EXAMPLES),
    "series-fed-sgd": Training("series", "fed-sgd", FEW_EXAMPLES),
    "lstm": Training("lstm", sizes=FEW_EXAMPLES, pipeline=in_order(8)),
    "lstm-shuffled-epochs": Training("lstm", sizes=FEW_EXAMPLES, pipeline=shuffled(8)),
    "lstm-adam": Training("lstm", "adam", FEW_EXAMPLES, in_order(8)),
    "lstm-evaluation": Training("lstm", "evaluation", FEW_EXAMPLES, in_order(8)),
    "lstm-avx2": Training("lstm", sizes=FEW_EXAMPLES, pipeline=in_order(8), settings={"target": AVX2}),
    "rnn": Training("rnn", sizes=FEW_EXAMPLES),
    "transformer": Training("transformer", sizes=FEW_EXAMPLES),
    "transformer-adam": Training("transformer", "adam", FEW_EXAMPLES),
    "embedding": Training("embedding", sizes=FEW_EXAMPLES),
    "embedding-fed-sgd": Training("embedding", "fed-sgd", FEW_EXAMPLES),
}

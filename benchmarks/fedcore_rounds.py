"""The workloads on fedcore: an ordinary Keras model and an ordinary call."""

import keras
from keras import layers

import fedcore as fc
from benchmarks.workloads import BATCH, CLIENT_RATE, LETTERS, LINE, SERVER_RATE, Workload, first_weights


def keras_model(kind: str) -> keras.Model:
    if kind == "lstm":
        text = [layers.Embedding(LETTERS, 8), layers.LSTM(128, return_sequences=True), layers.Dense(LETTERS)]
        return keras.Sequential([keras.Input((LINE,), dtype="int32"), *text])
    stack = {
        "logistic": lambda: [layers.Flatten(), layers.Dense(10)],
        "mlp": lambda: [layers.Flatten(), layers.Dense(200, activation="relu"), layers.Dense(10)],
        "cnn": lambda: [
            layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(10),
        ],
    }[kind]()
    return keras.Sequential([keras.Input((28, 28, 1)), *stack])


def datasets(clients) -> list[fc.data.ClientDataset]:
    return [fc.data.ClientDataset.from_columns(client).batch(BATCH) for client in clients]


class Rounds:
    """A process at its first weights; every round starts from them again."""

    def __init__(self, workload: Workload, spec):
        def model_fn():
            return fc.learning.from_keras_model(
                keras_model(workload.model),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                input_spec=spec,
                metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            )

        algorithms = fc.learning.algorithms
        self.process = {
            "fed_avg": lambda: algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(CLIENT_RATE)),
            "fed_sgd": lambda: algorithms.build_fed_sgd(model_fn, lambda: keras.optimizers.SGD(SERVER_RATE)),
            "fed_eval": lambda: algorithms.build_fed_eval(model_fn),
        }[workload.algorithm]()
        weights = fc.learning.ModelWeights(tuple(first_weights(workload)), ())
        self.state = self.process.set_model_weights(self.process.initialize(), weights)
        self.trains = workload.algorithm != "fed_eval"

    def round(self, clients) -> tuple:
        """(weights after the round, loss, accuracy)."""
        state, metrics = self.process.next(self.state, clients)
        found = metrics["client_work"]
        found = found["train"] if self.trains else found["eval"]["current_round_metrics"]
        return state.global_model_weights.trainable, float(found["loss"]), float(found["accuracy"])

"""Texts of log-normal lengths, and a client of 1 GB, beside a loop written by hand over clients and batches.

In processor seconds: rounds of either side alternate. The loop pads each batch to its own longest text, as
`tf.data`'s `padded_batch` does. A stream has a process of its own, whose peak of resident memory is taken.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import attrs
import numpy as np

from benchmarks.process_memory import memory_bytes

WORDS, BATCH, RATE = 1000, 8, 0.1
INPUTS, ROWS, STREAM_BYTES = 784, 32, 1 << 30
CHILD = "FEDCORE_STREAM_CHILD"


@attrs.frozen
class Case:
    """A model of texts and a cohort.

    Args:
        layer: `pooling` or `gru` over the words of a text, in padded batches of texts; `words`: a batch is one text, of
            which each word is an example.
        clients: how many.
        sigma: of the logarithm of lengths.
        like: all texts of a client have one length.
    """

    layer: str
    clients: int
    sigma: float = 0.8
    like: bool = False


CASES = {
    "padded batches, mean of words": Case("pooling", 20),
    "padded batches, GRU": Case("gru", 10),
    "a text a batch": Case("words", 30, 1.3),
    "a text a batch, a client's of one length": Case("words", 100, 1.0, like=True),
}


def measure_ragged(rounds: int) -> dict:
    """The figures of each case."""
    figures = {name: _figures(case, max(rounds, 5)) for name, case in CASES.items()}
    return {"name": "ragged", "target": 1.2, "cases": figures}


def measure_streams() -> dict:
    """The figures of each kind of data, each from a process of its own."""
    figures = {}
    for kind in ("arrays", "generator"):
        environment = {**os.environ, CHILD: kind}
        command = [sys.executable, "-m", "benchmarks.ragged"]
        child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        figures[kind] = json.loads(child.stdout.splitlines()[-1])
    return {"name": "streams", "target": 1.3, "bytes": STREAM_BYTES, "kinds": figures}


def _texts(case: Case) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """The batches of each client: words and labels."""
    rng = np.random.default_rng(0)

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        lengths = rng.lognormal(3.0, case.sigma, int(rng.integers(*((4, 12) if case.layer == "words" else (16, 40)))))
        lengths = lengths.clip(2, 2000).astype(int)
        if case.layer == "words":
            for n in np.full_like(lengths, lengths[0]) if case.like else lengths:
                yield tuple(rng.integers(0, WORDS, (2, n)).astype("i"))
            return
        for begin in range(0, len(lengths), BATCH):
            several = lengths[begin : begin + BATCH]
            words = [np.pad(rng.integers(1, WORDS, n), (0, several.max() - n)) for n in several]
            yield np.stack(words).astype("i"), rng.integers(0, 2, len(several)).astype("i")

    return [list(batches()) for _ in range(case.clients)]


def _model(layer: str):
    import keras

    is_masked = layer != "words"
    x = keras.Input((None,) if is_masked else (), dtype="int32")
    h = keras.layers.Embedding(WORDS, 32, mask_zero=is_masked)(x)
    if is_masked:
        h = keras.layers.GRU(32)(h) if layer == "gru" else keras.layers.GlobalAveragePooling1D()(h)
    h = keras.layers.Dense(64, activation="relu")(h)
    return keras.Model(x, keras.layers.Dense(2 if is_masked else WORDS)(h))


def _figures(case: Case, rounds: int) -> dict:
    import keras
    import tensorflow as tf

    import fedcore as fc
    from benchmarks.measure import WARM_UP, interval

    clients = _texts(case)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    words = tf.TensorSpec([None] if case.layer == "words" else [None, None], tf.int32)
    spec = (words, tf.TensorSpec([None], tf.int32))
    process = fc.learning.algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(_model(case.layer), loss, spec), lambda: keras.optimizers.SGD(RATE)
    )
    run = _hand_written_round(_model(case.layer), loss, spec, clients)
    state, times = process.initialize(), []
    for _ in range(WARM_UP + rounds):
        begins = [time.process_time()]
        state, _ = process.next(state, clients)
        begins.append(time.process_time())
        run()
        begins.append(time.process_time())
        times.append(np.diff(begins))
    ours, by_hand = np.array(times[WARM_UP:]).T
    low, high = interval(ours / by_hand)
    return {
        "fedcore_s": float(np.median(ours)),
        "by_hand_s": float(np.median(by_hand)),
        "ratio": float(np.median(ours / by_hand)),
        "low": low,
        "high": high,
    }


def _hand_written_round(model, loss, spec, clients: list) -> Callable[[], None]:
    """A round of federated averaging: a loop over clients and batches around one traced step."""
    import tensorflow as tf

    weights = [v.value + 0.0 for v in model.trainable_variables]
    specs = [tf.TensorSpec(w.shape, w.dtype) for w in weights]
    others = [v.value for v in model.non_trainable_variables]

    @tf.function(input_signature=[specs, *spec])
    def step(local, x, y):
        with tf.GradientTape() as tape:
            tape.watch(local)
            outputs, _ = model.stateless_call(local, others, x, training=True)
            value = loss(y, outputs)
        gradients = tape.gradient(value, local)
        return [w - RATE * tf.convert_to_tensor(g) for w, g in zip(local, gradients, strict=True)]

    def run() -> None:
        total, count = [tf.zeros_like(w) for w in weights], 0
        for batches in clients:
            local, examples = weights, sum(len(y) for _, y in batches)
            for x, y in batches:
                local = step(local, x, y)
            total = [t + (a - b) * examples for t, a, b in zip(total, local, weights, strict=True)]
            count += examples
        weights[:] = [w + t / count for w, t in zip(weights, total, strict=True)]

    return run


def _measure_stream(kind: str) -> dict:
    """The peak of resident memory over that before the data, in the bytes of the data, and a round's seconds."""
    import keras
    import tensorflow as tf

    import fedcore as fc

    def model_fn():
        layers = [keras.Input((INPUTS,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(keras.Sequential(layers), loss, spec)

    spec = (tf.TensorSpec([None, INPUTS]), tf.TensorSpec([None], tf.int32))
    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.01))
    state = process.initialize()
    small = fc.data.ClientDataset.from_columns((np.zeros((64, INPUTS), "f"), np.zeros(64, "i"))).batch(ROWS)
    process.next(state, [small])
    started = memory_bytes("VmRSS")
    count, rng = STREAM_BYTES // (4 * INPUTS), np.random.default_rng(0)

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for begin in range(0, count, ROWS):
            rows = min(ROWS, count - begin)
            yield np.full((rows, INPUTS), begin / count, "f"), np.full(rows, begin % 10, "i")

    if kind == "arrays":
        x, y = np.empty((count, INPUTS), "f"), rng.integers(0, 10, count).astype("i")
        for row in x:
            row[:] = 0.5
        x.flags.writeable = y.flags.writeable = False
        client = fc.data.ClientDataset.from_columns((x, y)).batch(ROWS)
    else:
        client = tf.data.Dataset.from_generator(batches, output_signature=spec)
    cpu_s = time.process_time()
    process.next(state, [client])
    cpu_s = time.process_time() - cpu_s
    return {"memory": (memory_bytes() - started) / STREAM_BYTES, "round_s": cpu_s}


if __name__ == "__main__":
    print(json.dumps(_measure_stream(os.environ[CHILD])))
